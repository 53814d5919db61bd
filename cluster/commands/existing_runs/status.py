"""`squelch status`: prints the progress of a run once."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from squelch.actors.archive.store import Store
from squelch.cluster.commands.arguments import add_run_place, described_place
from squelch.cluster.errors import bad_files_are_the_users
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.status import read_status
from squelch.cluster.runs.status_text import headline, status_rows
from squelch.cluster.terminal import say
from squelch.envs.untrusted.memory import memory_of_at_most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_run_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Prints the status."""
    with bad_files_are_the_users(), memory_of_at_most(str(options.run_dir)):
        text = status(described_place(options.run_dir), as_json=options.json)
    say(text)
    return 0


def status(place: Path | str | Store, as_json: bool = False) -> str:
    """The status of a run as text or as one JSON object. UserError if a file of the run is damaged."""
    folder = RunFolder(place).require()
    now = read_status(folder, time.time())
    if as_json:
        return json.dumps(asdict(now), indent=2)
    rows = [f"  {row.name:20s} {row.value}" for row in status_rows(now, folder.metrics())]
    return "\n".join([headline(now), *rows])
