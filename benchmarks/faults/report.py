"""The table of the fault study, from the boots of its cells. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = (
    "kind of fault",
    "faults",
    "went on",
    "ended by name",
    "hung or unexplained",
    "noticed after, s",
    "largest",
    "steps again, s",
    "workers back",
    "later than their start, s",
)
Boot = dict[str, Any]
NOTHING = "-"


def read_boots(place: Path) -> list[Boot]:
    """The boots of a study in order: of the cells in a folder, or of a Parquet file with a row for each boot."""
    if place.is_file():
        return pq.read_table(place).to_pylist()
    files = sorted(place.glob("cell-*.json"))
    return [{"cell": file.stem, **boot} for file in files for boot in json.loads(file.read_text())]


def keep(found: Sequence[Boot], file: Path) -> None:
    """Writes boots into the Parquet file of the committed ones, each cell in place of one of the same name."""
    new = {boot["cell"] for boot in found}
    old = [boot for boot in read_boots(file) if boot["cell"] not in new] if file.is_file() else []
    rows = sorted([*old, *found], key=lambda boot: boot["cell"])
    pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd", compression_level=19)


def summary(found: Sequence[Boot]) -> dict[str, Any]:
    """All metrics of the study; `right`: boots whose run ended right and whose ledger agrees with its archive."""
    verdicts = [boot["verdict"] for boot in found if boot["verdict"]]
    outcomes = Counter(fault["outcome"] for fault in _faults(found))
    return {
        "boots": len(found),
        "right": sum(boot["verdict"] is not None and boot["end"]["code"] == 143 for boot in found),
        "faults": sum(outcomes.values()) - outcomes["no such process"],
        "outcomes": dict(outcomes),
        "tickets": sum(verdict["tickets"] for verdict in verdicts),
        "lost": sum(len(verdict["lost"]) for verdict in verdicts),
        "doubled": sum(len(verdict["doubled"]) for verdict in verdicts),
        "machines": [boot["machine"] for boot in found],
        "kinds": {kind: _kind(faults) for kind, faults in _by_kind(found).items()},
    }


def rows(found: Sequence[Boot]) -> list[tuple[Any, ...]]:
    """A row for each kind of fault, and one for all."""
    kinds = [(kind, *_kind(faults).values()) for kind, faults in _by_kind(found).items()]
    return [*kinds, ("all", *_kind(_faults(found)).values())]


def _faults(found: Sequence[Boot]) -> list[dict[str, Any]]:
    return [fault for boot in found for fault in boot["faults"] if fault["outcome"] != "no such process"]


def _by_kind(found: Sequence[Boot]) -> dict[str, list[dict[str, Any]]]:
    kinds: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for fault in _faults(found):
        kinds[fault["fault"]["kind"]].append(fault)
    return dict(sorted(kinds.items()))


def _kind(faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(fault["outcome"] for fault in faults)
    returned = [one for fault in faults for one in fault.get("returned") or ()]  # not in cells of the first studies
    noticed = [fault["detected_s"] for fault in faults if fault["detected_s"] is not None]
    return {
        "faults": len(faults),
        "went_on": outcomes["went on"],
        "ended": outcomes["ended"],
        "wrong": outcomes["hung"] + outcomes["ended without a cause"],
        "noticed_s": median(noticed) if noticed else NOTHING,
        "noticed_largest_s": max(noticed, default=NOTHING),
        "seconds": median(fault["seconds"] for fault in faults) if faults else NOTHING,
        "returned": len(returned),
        "returned_late_s": max((one["back_s"] - one["start_s"] for one in returned), default=NOTHING),
    }
