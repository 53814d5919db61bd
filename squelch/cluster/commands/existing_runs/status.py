"""`squelch status`: prints the progress of a run once, or lists runs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from squelch.cluster.commands.arguments import RUNS, described_place, in_store, place_of
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.listing import is_run, runs_below, statuses, table
from squelch.cluster.runs.status import read_status
from squelch.cluster.runs.status_text import headline, status_rows
from squelch.kit.archive.store import Store
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.process.terminal import say
from squelch.kit.untrusted.memory import memory_of_at_most


def run(options: argparse.Namespace) -> int:
    """Prints the status, or the list."""
    with bad_files_are_the_users(), memory_of_at_most(str(options.run_dir)):
        runs = _several(options.run_dir)
        if runs is None:
            text = status(described_place(options.run_dir), as_json=options.json)
        else:
            text = listed(runs, as_json=options.json)
    say(text)
    return 0


def _several(place: str) -> dict[str, Path | str] | None:
    """The folders or URLs of the runs below the place by name; None if it is one run, or nothing."""
    if in_store(place):
        from squelch.cluster.runs.in_store.reading import runs_at

        return runs_at(place)
    folder = Path(place)
    if is_run(folder):
        return None
    found = runs_below(folder)
    if not found and folder == RUNS:
        raise UserError(
            f"there is no run in {RUNS}: `squelch train frozenlake` makes one; or give the folder of others"
        )
    return found or None


def listed(runs: Mapping[str, Path | str], as_json: bool = False) -> str:
    """A table of the runs, the most recent first; as JSON an object by name, where text says why one is unreadable."""
    found = statuses(runs, time.time(), lambda place: place if isinstance(place, Path) else place_of(place))
    if as_json:
        return json.dumps({name: one if isinstance(one, str) else asdict(one) for name, one in found.items()}, indent=2)
    return "\n".join(table(found))


def status(place: Path | str | Store, as_json: bool = False) -> str:
    """The status of a run as text or as one JSON object. UserError if a file of the run is damaged."""
    folder = RunFolder(place).require()
    now = read_status(folder, time.time())
    if as_json:
        return json.dumps(asdict(now), indent=2)
    rows = [f"  {row.name:20s} {row.value}" for row in status_rows(now, folder.metrics())]
    return "\n".join([headline(now), *rows])
