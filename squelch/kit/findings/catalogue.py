"""Reads the catalogue of findings, `catalogue.yaml`. Pure.

none_solved:                     # the finding's name, which is that of its level too
  of: ...                        # what the level is, for docs/reference/findings.md
  notice: [0.75, 10]             # threshold, and in how many successive steps that show it; so `warning`, `critical`
  clear: 0.6                     # it ends below; by default at 0.8 of its lowest threshold
  says: ...                      # one sentence; {level} and the level's facts stand in it
  evidence: [success]            # flat keys, which are shown with their intervals
  examples: groups/none_solved   # the measure whose rows are shown
  causes: ...                    # what usually causes it
  change: ...                    # what to change
  settings: [{KEY: x0.5}, ...]   # the same as settings of a run; the first that can be changed. `x0.5`: times 0.5;
                                 # `filter: stricter` and `prompt: natural` are a run's own (`cluster.runs.next_run`)
  trl: {learning_rate: x0.5}     # the same as settings of TRL
  tried: docs/...                # the page on which the change was tried here; else
  source: ...                    # where the advice is from
  page: docs/...                 # where it is explained
  shown: ..., quiet: ...         # real runs in which it was found, and in which it was not; without, none
  alert: SquelchNoSignal         # the alert rule of its own, beside the one by severity
  unless: [format_invalid]       # findings that explain it: while one holds, this does not begin
  told: true                     # an alarm of a run says the same, so that only a notice prints a line
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from squelch.kit.base.lookup import look_up
from squelch.kit.untrusted.text import own_yaml

Severity = Literal["notice", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("notice", "warning", "critical")
PATH = Path(__file__).with_suffix(".yaml")
CLEAR = 0.8
"""Share of the lowest threshold below which a finding ends, unless it says otherwise."""


@dataclass(frozen=True)
class Entry:
    """One finding's entry; see the module's head."""

    name: str
    of: str
    says: str
    evidence: tuple[str, ...]
    causes: str
    change: str
    page: str
    notice: Sequence[float] | None = None
    warning: Sequence[float] | None = None
    critical: Sequence[float] | None = None
    clear: float | None = None
    examples: str = ""
    settings: tuple[Mapping[str, Any], ...] = ()
    trl: Mapping[str, Any] | None = None
    tried: str = ""
    source: str = ""
    shown: str = ""
    quiet: str = ""
    alert: str = ""
    unless: tuple[str, ...] = ()
    told: bool = False

    @property
    def thresholds(self) -> dict[Severity, tuple[float, int]]:
        """(level, steps) of each severity that it may have, the lowest first."""
        given = ((severity, getattr(self, severity)) for severity in SEVERITIES)
        return {severity: (float(one[0]), int(one[1])) for severity, one in given if one is not None}

    @property
    def lowest(self) -> tuple[float, int]:
        """Those of its lowest severity."""
        return next(iter(self.thresholds.values()))

    @property
    def ends_below(self) -> float:
        """The level below which it ends."""
        return self.clear if self.clear is not None else min(self.lowest[0], CLEAR * self.lowest[0])


@functools.cache
def catalogue() -> dict[str, Entry]:
    """Every finding by name, in the file's order."""
    found = own_yaml(PATH)
    return {name: _entry(name, written) for name, written in found.items()}


def _entry(name: str, written: Mapping[str, Any]) -> Entry:
    lists = {key: tuple(written.get(key, ())) for key in ("evidence", "settings", "unless")}
    fields: dict[str, Any] = {**written, **lists}
    entry = Entry(name, **fields)
    if not entry.thresholds or bool(entry.tried) == bool(entry.source):
        raise ValueError(f"{PATH}: {name}: it needs a threshold, and either `tried` or `source`")
    return entry


def entry_of(name: str) -> Entry:
    """The finding of this name. ValueError with the nearest one for an unknown name."""
    return look_up(catalogue(), name, "finding")
