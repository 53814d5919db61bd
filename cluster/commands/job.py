"""`squelch job`: prints the status or logs of a submitted job, or stops it."""

from __future__ import annotations

import argparse

from cluster.commands.arguments import add_job_server
from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("action", choices=("status", "logs", "stop"))
    parser.add_argument("job_id")
    add_job_server(parser)


def run(options: argparse.Namespace) -> int:
    """Sends the request to the cluster's job server."""
    from cluster.fleet.jobs import job

    return job(options.address, options.action, options.job_id, say)
