"""The table of the fault study, from the files of its cells. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

COLUMNS = (
    "kind of fault",
    "faults",
    "went on",
    "ended by name",
    "hung",
    "noticed after, s",
    "largest",
    "steps again, s",
)
Cell = dict[str, Any]
NOTHING = "-"


def read_cells(folder: Path) -> list[Cell]:
    """The finished cells in a folder, in order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("cell-*.json"))]


def figures(found: Sequence[Cell]) -> dict[str, Any]:
    """All figures of the study; `right`: cells whose run ended right and whose ledger agrees with its archive."""
    verdicts = [cell["verdict"] for cell in found if cell["verdict"]]
    outcomes = Counter(fault["outcome"] for fault in _faults(found))
    return {
        "cells": len(found),
        "right": sum(cell["verdict"] is not None and cell["end"]["code"] == 143 for cell in found),
        "faults": sum(outcomes.values()) - outcomes["no such process"],
        "outcomes": dict(outcomes),
        "tickets": sum(verdict["tickets"] for verdict in verdicts),
        "lost": sum(len(verdict["lost"]) for verdict in verdicts),
        "doubled": sum(len(verdict["doubled"]) for verdict in verdicts),
        "machines": [cell["machine"] for cell in found],
        "kinds": {kind: _kind(faults) for kind, faults in _by_kind(found).items()},
    }


def rows(found: Sequence[Cell]) -> list[tuple[Any, ...]]:
    """A row for each kind of fault, and one for all."""
    kinds = [(kind, *_kind(faults).values()) for kind, faults in _by_kind(found).items()]
    return [*kinds, ("all", *_kind(_faults(found)).values())]


def _faults(found: Sequence[Cell]) -> list[dict[str, Any]]:
    return [fault for cell in found for fault in cell["faults"] if fault["outcome"] != "no such process"]


def _by_kind(found: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    kinds: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for fault in _faults(found):
        kinds[fault["fault"]["kind"]].append(fault)
    return dict(sorted(kinds.items()))


def _kind(faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(fault["outcome"] for fault in faults)
    noticed = [fault["detected_s"] for fault in faults if fault["detected_s"] is not None]
    return {
        "faults": len(faults),
        "went_on": outcomes["went on"],
        "ended": outcomes["ended"],
        "hung": outcomes["hung"],
        "noticed_s": median(noticed) if noticed else NOTHING,
        "noticed_largest_s": max(noticed, default=NOTHING),
        "seconds": median(fault["seconds"] for fault in faults) if faults else NOTHING,
    }
