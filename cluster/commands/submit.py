"""`squelch submit`: runs `squelch train` as a job on a running Ray cluster."""

from __future__ import annotations

import argparse

from cluster.commands.arguments import add_job_server, add_recipe
from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Submits the recipe as a Ray job, follows its logs until it ends, and returns its success. RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH authenticate, as for `ray job`."
    )
    add_recipe(parser)
    add_job_server(parser)
    parser.add_argument("--no-wait", action="store_true", help="return after the submission; do not follow the logs")
    parser.add_argument("--resume", action="store_true", help="continue the run of this name from its last checkpoint")


def run(options: argparse.Namespace) -> int:
    """Checks the recipe on this machine, then submits it."""
    from cluster.config import load

    config = load(options.recipe, options.overrides)
    from cluster.fleet.jobs import settled, submit

    overrides = settled(options.recipe, config, options.overrides)
    return submit(options.address, options.recipe, overrides, options.resume, not options.no_wait, say)
