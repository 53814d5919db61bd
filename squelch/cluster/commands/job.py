"""`squelch job`: lists submitted jobs, prints the status or logs of one, or stops it."""

from __future__ import annotations

import argparse

from squelch.cluster.commands.arguments import add_job_server
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say

ACTIONS = ("status", "logs", "stop", "list")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "A job that is stopped finishes its step and writes a checkpoint; it has five minutes for that. `--resume` of "
        "`squelch submit` continues its run."
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("job_id", nargs="?", default="", help="the id that `squelch submit` printed; not for `list`")
    parser.add_argument("--follow", action="store_true", help="with `logs`: print new lines until the job ends")
    add_job_server(parser)


def run(options: argparse.Namespace) -> int:
    """Sends the request to the cluster's job server."""
    if options.action != "list" and not options.job_id:
        raise UserError(f"squelch job {options.action} needs the id of a job; `squelch job list` shows them")
    if options.follow and options.action != "logs":
        raise UserError("--follow goes with `squelch job logs`")
    from squelch.cluster.fleet.jobs import act

    return act(options.address, options.action, options.job_id, options.follow, say)
