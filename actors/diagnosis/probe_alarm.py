"""The alarm on the fixed probe: reasoning tells less about its task, or the answer follows less from the reasoning.

Two metrics of each reading are watched, in nats: MI of task and reasoning (`probe/mi`), and D, what the answer takes
from its reasoning (`probe/link/dependence`). Each has its own one-sided CUSUM (`actors.diagnosis.alarm`). The probe
asks the same tasks each time, so a level is known after `BASELINE` readings, fewer than the alarm on scorings needs; a
metric may lose the share `DRIFT` of its best level, because a policy that becomes surer of its answers takes fewer nats
from anywhere. The alarm is raised while either is. One low reading never raises it; two clearly low readings do.

The parameters were fixed before any run was judged by them; `research.made_to_collapse` judges them.

Invariants: readings must come in order of their steps; an unknown (NaN) metric changes nothing, and `blind` names it.
Pure; plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from squelch.actors.diagnosis.alarm import DependenceAlarm

WATCHED: Mapping[str, str] = {"mi": "probe/mi", "dependence": "probe/link/dependence"}
"""Watched metrics, by name; beside each `_standard_error` and `_p_value`."""
WORDS: Mapping[str, str] = {
    "mi": "the reasoning tells less about its task",
    "dependence": "the answer follows less from the reasoning",
}
BASELINE = 2
DRIFT = 0.25
TOLD = 0.05
"""Largest p-value at which a reading is told from its null."""


class ProbeAlarm:
    """The alarm's state, updated with each reading; see the module's head."""

    def __init__(self) -> None:
        self.figures = {name: DependenceAlarm(baseline=BASELINE, drift=DRIFT) for name in WATCHED}

    @property
    def raised(self) -> tuple[str, ...]:
        """The metrics whose fall is told at present."""
        return tuple(name for name, alarm in self.figures.items() if alarm.raised)

    def reading(self, step: int, found: Mapping[str, float | None]) -> tuple[str, ...]:
        """Records one reading, by the flat keys of `metrics.jsonl`; returns the metrics whose alarm it raises."""
        new = []
        for name, alarm in self.figures.items():
            value, error, p_value = _measured(name, found)
            if alarm.scoring(step, value, error, p_value <= TOLD):
                new.append(name)
        return tuple(new)

    def blind(self, found: Mapping[str, float | None]) -> tuple[str, ...]:
        """The metrics that have a level and that a reading does not know, so that their alarm cannot be raised."""
        armed = (name for name, alarm in self.figures.items() if alarm.reference is not None)
        return tuple(name for name in armed if not all(map(math.isfinite, _measured(name, found)[:2])))

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry: 1 for a metric whose fall is told at present, else 0."""
        return {f"probe/alarm/{name}": float(alarm.raised) for name, alarm in self.figures.items()}

    def text(self, metric: str) -> str:
        """The alarm of a metric in words."""
        alarm = self.figures[metric]
        since = "the first reading" if alarm.since is None else f"step {alarm.since}"
        level, latest = (math.nan if value is None else value for value in (alarm.reference, alarm.latest))
        return f"{WORDS[metric]} since {since} (fixed probe, {level:.2f} -> {latest:.2f} nats)"

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {name: alarm.state() for name, alarm in self.figures.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        for name, own in state.items():
            self.figures[name].restore(own)


def _measured(name: str, found: Mapping[str, float | None]) -> list[float]:
    """A metric's value, standard error and p-value in a reading; NaN where unknown."""
    values = (found.get(f"{WATCHED[name]}{end}") for end in ("", "_standard_error", "_p_value"))
    return [math.nan if value is None else value for value in values]
