"""`squelch submit`: runs `squelch train` as a job on a running Ray cluster."""

from __future__ import annotations

import argparse

from squelch.kit.process.terminal import say


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
