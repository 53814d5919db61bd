"""Follows a run's steps and says when a finding begins, worsens and ends. Pure; plain JSON state.

Invariants: steps come in their order. A level that is not known changes nothing. What a finding says stays as it was at
its last change, so that a reader sees the numbers by which it was raised.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from squelch.kit.findings import pace, reasoning, rewards, updates
from squelch.kit.findings.catalogue import SEVERITIES, Entry, Severity, catalogue, entry_of
from squelch.kit.findings.history import History
from squelch.kit.findings.level import Level, Levels
from squelch.kit.findings.measures import Measured, Tasks, derived, measured
from squelch.kit.findings.view import Example, StepView

LEVELS: Levels = {**reasoning.LEVELS, **rewards.LEVELS, **updates.LEVELS, **pace.LEVELS}


@dataclass(frozen=True)
class Evidence:
    """A metric that supports a finding, by its flat key, with its 95% interval where it has one."""

    key: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Finding:
    """What is wrong. `since`: the first step that showed it; `step`: that of its last change."""

    name: str
    severity: Severity
    since: int
    step: int
    says: str
    evidence: tuple[Evidence, ...] = ()
    examples: tuple[Example, ...] = ()

    @property
    def entry(self) -> Entry:
        """Its causes, remedy and pages."""
        return catalogue()[self.name]

    @property
    def rank(self) -> int:
        """The larger, the more severe."""
        return SEVERITIES.index(self.severity)


@dataclass(frozen=True)
class Change:
    """A finding that began, worsened or ended with a step."""

    kind: Literal["began", "worsened", "ended"]
    finding: Finding


@dataclass
class _Stand:
    """Where a finding stands. `above`: successive steps at each severity's threshold; `first`: the first of them."""

    finding: Finding | None = None
    above: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    below: int = 0


class Findings:
    """The findings of one run.

    Args:
        ignore: names that are left out.
        steps: how many steps there are, if they are known and few: a threshold needs no more than these.

    Raises:
        ValueError: no finding has a name that is ignored.
    """

    def __init__(self, ignore: Collection[str] = (), steps: int | None = None) -> None:
        for name in ignore:
            entry_of(name)
        self._entries = {name: entry for name, entry in catalogue().items() if name not in ignore}
        self._history, self._tasks = History(steps or sys.maxsize), Tasks()
        self._stands = {name: _Stand() for name in self._entries}
        self._exported: set[tuple[str, Severity]] = set()

    @property
    def last_step(self) -> int:
        """The newest step; 0 before the first."""
        return self._history.step

    @property
    def open(self) -> list[Finding]:
        """Those that hold, the most severe first, and then the oldest."""
        found = [stand.finding for stand in self._stands.values() if stand.finding is not None]
        return sorted(found, key=lambda one: (-one.rank, one.since))

    def ends(self, steps: int) -> None:
        """The next step is the last of so many: a threshold needs no more of them."""
        self._history.most = steps

    def step(self, view: StepView) -> tuple[dict[str, float], list[Change]]:
        """Takes a step; returns its own metrics (flat keys: what its groups and texts show, the findings that hold, the
        seconds that this took) and what changed."""
        started = time.perf_counter()
        shown = measured(view, self._tasks)
        metrics = {**derived(view.metrics), **reasoning.derived(view.metrics), **view.metrics, **shown.metrics}
        self._history.add(view.step, metrics)
        changes = [
            change
            for name, entry in self._entries.items()
            if (level := self.level(name)) is not None
            if (change := self._take(entry, level, metrics, shown)) is not None
        ]
        order = {"worsened": 0, "began": 0, "ended": 1}
        changes.sort(key=lambda change: (order[change.kind], -change.finding.rank))
        return {**shown.metrics, **self.metrics(), "seconds/findings": time.perf_counter() - started}, changes

    def level(self, name: str) -> Level | None:
        """A finding's level in the newest step; None if the step does not show it."""
        level = LEVELS[name](self._history)
        return level if level is not None and math.isfinite(level.value) else None

    def metrics(self) -> dict[str, float]:
        """`finding/NAME/SEVERITY`: 1 for those that hold, 0 for those that held."""
        now = {(one.name, one.severity) for one in self.open}
        self._exported |= now
        return {
            f"finding/{name}/{severity}": float((name, severity) in now) for name, severity in sorted(self._exported)
        }

    def _holds(self, name: str) -> bool:
        return name in self._stands and self._stands[name].finding is not None

    def _take(self, entry: Entry, level: Level, metrics: Mapping[str, float | None], shown: Measured) -> Change | None:
        stand, step = self._stands[entry.name], self._history.step
        reached: Severity | None = None
        for severity, (threshold, steps) in entry.thresholds.items():
            if level.value < threshold:
                stand.above[severity] = 0
                continue
            if not stand.above.get(severity):
                stand.first[severity] = step
            stand.above[severity] = stand.above.get(severity, 0) + 1
            if stand.above[severity] >= min(steps, self._history.most):
                reached = severity
        before = stand.finding
        if before is None and any(self._holds(other) for other in entry.unless):
            return None
        if reached is not None and (before is None or SEVERITIES.index(reached) > before.rank):
            since = (
                before.since
                if before is not None
                else min(first for key, first in stand.first.items() if stand.above[key])
            )
            stand.finding = _made(entry, reached, since, step, level, metrics, shown)
            stand.below = 0
            return Change("began" if before is None else "worsened", stand.finding)
        if before is None:
            return None
        stand.below = stand.below + 1 if level.value < entry.ends_below else 0
        if stand.below < entry.lowest[1]:
            return None
        stand.finding, stand.below = None, 0
        return Change("ended", before)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {
            "history": self._history.state(),
            "tasks": self._tasks.counts,
            "stands": {name: asdict(stand) for name, stand in self._stands.items() if stand.above or stand.finding},
            "exported": [list(one) for one in sorted(self._exported)],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state of a checkpoint; findings that are not known, or ignored now, are left out."""
        self._history.restore(state["history"])
        self._tasks = Tasks({task: list(counts) for task, counts in state["tasks"].items()})
        for name, stand in state["stands"].items():
            if name in self._stands:
                finding = None if stand["finding"] is None else finding_of(stand["finding"])
                self._stands[name] = _Stand(finding, dict(stand["above"]), dict(stand["first"]), stand["below"])
        self._exported = {(name, severity) for name, severity in state["exported"] if name in self._stands}


def finding_of(plain: Mapping[str, Any]) -> Finding:
    """The finding whose `asdict` this is."""
    evidence = tuple(Evidence(**one) for one in plain["evidence"])
    examples = tuple(Example(**one) for one in plain["examples"])
    fields: dict[str, Any] = {**plain, "evidence": evidence, "examples": examples}
    return Finding(**fields)


def _made(
    entry: Entry,
    severity: Severity,
    since: int,
    step: int,
    level: Level,
    metrics: Mapping[str, float | None],
    shown: Measured,
) -> Finding:
    facts = {name: math.nan if fact is None else fact for name, fact in level.facts.items()}
    says = " ".join(entry.says.format(level=level.value, **facts).split())
    found = [_evidence(key, metrics) for key in entry.evidence]
    return Finding(
        entry.name,
        severity,
        since,
        step,
        says,
        tuple(one for one in found if one is not None),
        tuple(shown.examples.get(entry.examples, ())),
    )


def _evidence(key: str, metrics: Mapping[str, float | None]) -> Evidence | None:
    value, low, high = (_known(metrics.get(f"{key}{end}")) for end in ("", "_low", "_high"))
    return None if value is None else Evidence(key, value, low, high)


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
