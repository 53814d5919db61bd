"""`squelch status`: where a run is, once."""

from __future__ import annotations

import argparse

from cluster.commands.arguments import add_run_dir, run_folder
from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_run_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Prints the status."""
    from cluster.commands.watch import status

    say(status(run_folder(options.run_dir), as_json=options.json))
    return 0
