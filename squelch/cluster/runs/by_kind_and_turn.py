"""Where a run collapses: the metrics that are recorded for each kind of task and for each turn.

A run's means may stand while its late turns, or its hard kinds, have collapsed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_PARTS = 24
"""Parts of a dimension that are read from a run's file. As many kinds have metrics
(`kit.filter.coverage.SHOWN_KINDS`); fewer turns have."""


@dataclass(frozen=True)
class Column:
    """One metric of the parts. `key`: a pattern of the flat keys whose group is the part's name; `share`: its axis is
    [0, 1], else it begins at 0 or at the least value."""

    title: str
    unit: str
    key: re.Pattern[str]
    share: bool = False


DIMENSIONS: Mapping[str, tuple[Column, ...]] = {
    "kind": (
        Column("MI", "first turns, nats per token", re.compile(r"kind/([^/]+)/mi_est")),
        Column("D", "fixed probe, nats per answer", re.compile(r"probe/link/dependence/([^/]+)")),
        Column("kept", "share of the groups", re.compile(r"kinds/kept/([^/]+)"), True),
        Column("success", "share of the trajectories", re.compile(r"kinds/success/([^/]+)"), True),
    ),
    "turn": (
        Column("MI", "nats per token", re.compile(r"turn/([0-9]+\+?)/mi_est")),
        Column("D", "fixed probe, nats per answer", re.compile(r"probe/link/dependence()")),
        Column("kept", "of the trajectories with this turn", re.compile(r"turns/kept/([0-9]+\+?)"), True),
        Column("success", "of the trajectories with this turn", re.compile(r"turns/success/([0-9]+\+?)"), True),
    ),
}
"""The columns by dimension. D is measured at first turns alone, so its key names none."""
FIRST = ("kind/", "kinds/", "probe/link/dependence", "turn/", "turns/")
"""Beginnings of the columns' keys, by which most other keys are passed over."""


def part_of(column: Column, key: str) -> str | None:
    """The part whose metric a flat key is; None if it is none of this column."""
    found = column.key.fullmatch(key)
    return None if found is None else found[1] or "1"


def place(name: str) -> tuple[int, str]:
    """The order of a dimension's parts: by the number that a name begins with, then by name."""
    number = re.match("[0-9]{1,9}", name)
    return int(number[0]) if number else -1, name
