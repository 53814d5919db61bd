"""The runs below a folder or a store, and a table of their states. A run that cannot be read is listed with the reason.

RUNS/NAME            a run: it has a `config.yaml`, or is starting
RUNS/SWEEP/NAME      the runs of a sweep; nothing deeper is looked at
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.starting import has_stage
from squelch.cluster.runs.status import RunStatus, read_status
from squelch.kit.archive.reader import CONFIG
from squelch.kit.archive.store import Store
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import UNKNOWN, aligned, duration, known
from squelch.kit.untrusted.files import is_file, is_folder, shortened

HEADINGS = ("run", "state", "step", "success", "last step", "alarms")
MAX_REASON = 80
"""Characters that are shown of the reason why a run cannot be read."""
_MANIFEST = re.compile(r"((?:[^/]+/)?[^/]+)/manifests/[0-9]+\.json")


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run, or one that is starting."""
    return is_file(folder / CONFIG) or has_stage(folder)


def runs_below(folder: Path) -> dict[str, Path | str]:
    """The runs below a folder by name, ascending."""
    found: dict[str, Path | str] = {}
    for place in _folders(folder):
        inner = [place] if is_run(place) else [below for below in _folders(place) if is_run(below)]
        found |= {str(run.relative_to(folder)): run for run in inner}
    return found


def _folders(folder: Path) -> list[Path]:
    with_names = sorted(folder.iterdir()) if is_folder(folder) else []
    return [place for place in with_names if not place.name.startswith(".") and is_folder(place)]


def runs_in(store: Store) -> list[str]:
    """The names of the runs below the prefix of a store, ascending."""
    return sorted({match[1] for match in map(_MANIFEST.fullmatch, store.list()) if match})


def statuses(
    runs: Mapping[str, Path | str], now: float, opened: Callable[[Path | str], Path | Store]
) -> dict[str, RunStatus | str]:
    """The status of each run by name, the most recent first; why it cannot be read as text. `opened`: what
    `RunFolder` reads, of a folder or URL."""
    found = {name: _status(place, now, opened) for name, place in runs.items()}
    return dict(sorted(found.items(), key=lambda item: _age(item[1])))


def _status(place: Path | str, now: float, opened: Callable[[Path | str], Path | Store]) -> RunStatus | str:
    try:
        return read_status(RunFolder(opened(place)), now)
    except UserError as error:
        return str(error)


def _age(status: RunStatus | str) -> float:
    if isinstance(status, str):
        return math.inf
    return 0.0 if status.starting else math.inf if status.seconds_since_step is None else status.seconds_since_step


def table(found: dict[str, RunStatus | str]) -> list[str]:
    """The lines of the table."""
    return aligned([HEADINGS, *(_row(name, status) for name, status in found.items())])


def _row(name: str, status: RunStatus | str) -> Sequence[str]:
    if isinstance(status, str):
        return (name, "unreadable", "", "", "", shortened(status, MAX_REASON))
    success = status.success if status.validation_success is None else status.validation_success
    return (
        name,
        status.state,
        f"{status.step}/{status.total_steps}" if status.total_steps else str(status.step or UNKNOWN),
        known(success),
        UNKNOWN if status.seconds_since_step is None else f"{duration(status.seconds_since_step)} ago",
        "; ".join(_alarms(status)) or "-",
    )


def _alarms(status: RunStatus) -> Iterator[str]:
    """What is to be looked at, in words; what a starting run does."""
    if status.starting:
        yield status.starting
    if status.stopped and status.state == "stopped":
        yield status.stopped
    if status.no_signal_streak:
        yield f"no signal for {status.no_signal_streak:.0f} steps"
    if status.dependence:
        yield status.dependence
    yield from (one["name"] for one in status.findings if one["severity"] != "notice")
