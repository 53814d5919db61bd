"""The alarm on the fixed probe: reasoning depends less on its task, or the answer depends less on the reasoning.

Two metrics of each probe evaluation are watched, in nats: MI of task and reasoning (`probe/mi`), and D, the dependence
of the answer on its reasoning (`probe/link/dependence`). Each has its own one-sided CUSUM (`kit.diagnosis.alarm`).
The probe uses the same tasks each time, so a level is known after `BASELINE` evaluations, fewer than the alarm on
scorer steps needs. A metric may lose the share `DRIFT` of its best level, because both metrics shrink as the policy
becomes more certain of its answers. The alarm is raised while one of the two is. One low evaluation never raises it;
two clearly low evaluations do.

The parameters were fixed before any run was judged by them; docs/research/alarms.md judges them.

Invariants: evaluations must come in order of their steps; a metric of NaN changes nothing, and `blind` names it.
Pure; plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from squelch.kit.diagnosis.alarm import DependenceAlarm

WATCHED: Mapping[str, str] = {"mi": "probe/mi", "dependence": "probe/link/dependence"}
"""Keys of the watched metrics by name; each also has keys with `_standard_error` and `_p_value` appended."""
WORDS: Mapping[str, str] = {
    "mi": "the reasoning tells less about its task",
    "dependence": "the answer follows less from the reasoning",
}
BASELINE = 2
DRIFT = 0.25
SIGNIFICANT = 0.05
"""Largest p-value at which a metric is significant against its null."""


class ProbeAlarm:
    """The alarm's state, updated with each evaluation; see the module's head."""

    def __init__(self) -> None:
        self.alarms = {name: DependenceAlarm(baseline=BASELINE, drift=DRIFT) for name in WATCHED}

    @property
    def raised(self) -> tuple[str, ...]:
        """The metrics whose alarm is raised at present."""
        return tuple(name for name, alarm in self.alarms.items() if alarm.raised)

    def update(self, step: int, found: Mapping[str, float | None]) -> tuple[str, ...]:
        """Records one evaluation, by the flat keys of `metrics.jsonl`; returns the metrics whose alarm it raises."""
        new = []
        for name, alarm in self.alarms.items():
            value, error, p_value = _measured(name, found)
            if alarm.update(step, value, error, p_value <= SIGNIFICANT):
                new.append(name)
        return tuple(new)

    def blind(self, found: Mapping[str, float | None]) -> tuple[str, ...]:
        """The metrics that have a level but are NaN in this evaluation, so that their alarm cannot be raised."""
        armed = (name for name, alarm in self.alarms.items() if alarm.reference is not None)
        return tuple(name for name in armed if not all(map(math.isfinite, _measured(name, found)[:2])))

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry: 1 for a metric whose alarm is raised at present, else 0."""
        return {f"probe/alarm/{name}": float(alarm.raised) for name, alarm in self.alarms.items()}

    def text(self, metric: str) -> str:
        """Description of a metric's alarm."""
        alarm = self.alarms[metric]
        since = "the first probe evaluation" if alarm.since is None else f"step {alarm.since}"
        level, latest = (math.nan if value is None else value for value in (alarm.reference, alarm.latest))
        return f"{WORDS[metric]} since {since} (fixed probe, {level:.2f} -> {latest:.2f} nats)"

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {name: alarm.state() for name, alarm in self.alarms.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        for name, own in state.items():
            self.alarms[name].restore(own)


def _measured(name: str, found: Mapping[str, float | None]) -> list[float]:
    """A metric's value, standard error and p-value in an evaluation; NaN where unknown."""
    values = (found.get(f"{WATCHED[name]}{end}") for end in ("", "_standard_error", "_p_value"))
    return [math.nan if value is None else value for value in values]
