"""`squelch submit`: runs `squelch train` as a job on a running Ray cluster."""

from __future__ import annotations

import argparse

from squelch.cluster.commands.arguments import add_job_server, add_recipe
from squelch.kit.process.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Submits the recipe as a Ray job, follows its logs until it ends, and returns its success. A recipe that is a "
        "file travels with the job, and so does the checkout that this command runs from. Ray's token is found "
        "as Ray's own commands find it."
    )
    add_recipe(parser)
    add_job_server(parser)
    parser.add_argument("--no-wait", action="store_true", help="return after the submission; do not follow the logs")
    parser.add_argument("--resume", action="store_true", help="as `train --resume`")
    code = parser.add_mutually_exclusive_group()
    code.add_argument(
        "--working-dir", default="", metavar="DIR", help="send this folder, e.g. with an environment of your own"
    )
    code.add_argument("--wheel", default="", metavar="FILE", help="send this wheel of Squelch; nothing is installed")
    code.add_argument("--installed", action="store_true", help="send no code: the nodes' installed Squelch runs")
    packages = parser.add_mutually_exclusive_group()
    for name in ("pip", "uv"):
        text = f"package that Ray installs with {name} for this job, beside those of the nodes; may be repeated"
        packages.add_argument(f"--{name}", action="append", default=[], metavar="PACKAGE", help=text)
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable whose value here the job gets; may be repeated. Whoever has the cluster's token can "
        "read it",
    )


def run(options: argparse.Namespace) -> int:
    """Checks the recipe on this machine, then submits it."""
    from squelch.cluster.config import load

    config = load(options.recipe, options.overrides)
    from squelch.cluster.fleet.bootstrap import cached_tiny_policy
    from squelch.cluster.fleet.job_files import chosen
    from squelch.cluster.fleet.jobs import Job, submit, with_lasting_caches
    from squelch.cluster.kept_secrets import handed_on

    job = Job(
        recipe=options.recipe,
        overrides=with_lasting_caches(config, options.overrides),
        code=chosen(options.working_dir, options.wheel, options.installed),
        resume=options.resume,
        installer="pip" if options.pip else "uv",
        packages=options.pip or options.uv,
        forwarded=options.env,
        policy=cached_tiny_policy(config),
        secret=bool(handed_on()),
    )
    return submit(options.address, job, not options.no_wait, say)
