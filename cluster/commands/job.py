"""`squelch job`: status, logs or stop of a submitted job."""

from __future__ import annotations

import argparse

from cluster.commands.arguments import add_job_server
from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("action", choices=("status", "logs", "stop"))
    parser.add_argument("job_id")
    add_job_server(parser)


def run(options: argparse.Namespace) -> int:
    """Asks the cluster's job server."""
    from cluster.fleet.jobs import job

    return job(options.address, options.action, options.job_id, say)
