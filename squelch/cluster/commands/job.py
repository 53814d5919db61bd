"""`squelch job`: lists submitted jobs, prints the status or logs of one, or stops it."""

from __future__ import annotations

import argparse

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say


def run(options: argparse.Namespace) -> int:
    """Sends the request to the cluster's job server."""
    if options.action != "list" and not options.job_id:
        raise UserError(f"squelch job {options.action} needs the id of a job; `squelch job list` shows them")
    if options.follow and options.action != "logs":
        raise UserError("--follow goes with `squelch job logs`")
    from squelch.cluster.fleet.jobs import act

    return act(options.address, options.action, options.job_id, options.follow, say)
