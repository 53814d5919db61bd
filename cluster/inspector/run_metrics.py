"""The metrics of a run over its steps, for the charts and the line at the top of every page.

`RunMetrics` follows `metrics.jsonl` and keeps the columns that a chart shows, so that a step of a long run costs a few
hundred bytes. Of whole lines it keeps those that `cluster.runs.status` needs: the newest ones, and the last ones with a
validation and with a scorer step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.actors.archive.reader import METRICS
from squelch.cluster.errors import bad_files_are_the_users
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.following import LineFollower
from squelch.cluster.runs.shapes import check_metrics
from squelch.cluster.runs.status import RECENT_STEPS, RunStatus, status_of
from squelch.cluster.runs.status_text import clipped

MOST_POINTS = 2_000
"""Points of a curve; a longer run shows the mean of neighbouring steps."""


@dataclass(frozen=True)
class Curve:
    """One curve. `role`: `line`; `low` and `high`, the ends of a band; `reference`, a dashed line."""

    key: str
    label: str
    role: str = "line"


@dataclass(frozen=True)
class Chart:
    """One chart. `share`: its axis is [0, 1]."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    share: bool = False


def _with_interval(key: str, label: str) -> tuple[Curve, ...]:
    return Curve(key, label), Curve(f"{key}_low", "low", "low"), Curve(f"{key}_high", "high", "high")


_TURN = "first_turn"
CHARTS = (
    Chart(
        "Success", "share", (*_with_interval("validation/success", "validation"), Curve("success", "training")), True
    ),
    Chart(
        "Retrieval accuracy",
        "share",
        (
            *_with_interval(f"{_TURN}/retrieval_accuracy", "accuracy"),
            Curve(f"{_TURN}/retrieval_chance", "chance", "reference"),
        ),
        True,
    ),
    Chart(
        "Mutual information",
        "nats per token",
        (*_with_interval(f"{_TURN}/mi_est", "MI-Est"), Curve(f"{_TURN}/mi_est_null_95", "null 95%", "reference")),
    ),
    Chart(
        "Fixed probe",
        "nats per reasoning",
        (*_with_interval("probe/mi", "MI"), Curve("probe/mi_upper", "upper bound", "reference")),
    ),
    Chart(
        "H(Z|X)",
        "nats per token",
        (
            *_with_interval(f"{_TURN}/conditional_entropy", "H(Z|X)"),
            Curve(f"{_TURN}/marginal_entropy", "H(Z)", "reference"),
        ),
    ),
    Chart("Reward variance", "reward squared", (Curve("reward_variance_mean", "mean of groups"),)),
    Chart("Kept mass", "share", (Curve("kept_mass", "of reward variance"), Curve("kept_fraction", "of groups")), True),
    Chart(
        "Groups",
        "groups",
        (
            Curve("num_groups", "played", "reference"),
            Curve("kept_groups", "kept"),
            Curve("zero_variance_groups", "without variance"),
        ),
    ),
    Chart(
        "Reward",
        "reward",
        (Curve("reward_mean", "all"), Curve("reward_mean_kept", "kept"), Curve("reward_mean_dropped", "dropped")),
    ),
    Chart("Format", "share", (Curve("format_validity", "valid turns"), Curve("truncated_share", "truncated")), True),
    Chart("Reasoning length", "tokens per turn", (Curve("reasoning_length", "reasoning"),)),
    Chart(
        "Turns cut at the token limit",
        "share",
        (Curve("turns_cut/reasoning", "in the reasoning"), Curve("turns_cut/answer", "in the answer")),
        True,
    ),
    Chart(
        "Seconds of a step",
        "seconds",
        (
            Curve("seconds/rollout", "rollout"),
            Curve("seconds/train", "training"),
            Curve("seconds/publish", "publication"),
            Curve("seconds/step", "step", "reference"),
        ),
    ),
    Chart("Staleness", "versions", (Curve("staleness_mean", "mean"), Curve("staleness_max", "largest", "reference"))),
)
"""The charts in order: success, dependence on the input, what the filter saw, where time went."""

KEYS = ("step", "time", *dict.fromkeys(curve.key for chart in CHARTS for curve in chart.curves))


class RunMetrics:
    """The metrics of a live or finished run. Threads may share it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._follower = LineFollower(folder.store, METRICS)
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        """`KEYS` of each line; NaN where it has no number."""
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS + 2)
        self._marked: dict[str, dict[str, Any]] = {}

    def refresh(self) -> None:
        """Reads the new lines. UserError for a damaged line."""
        with self._lock, bad_files_are_the_users():
            void, lines = self._follower.news()
            if void:
                self._clear()
            for line in lines:
                check_metrics([line], self.folder.store.where(METRICS), len(self.rows) + 1)
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        shown = line | {"probe/mi_high": clipped(line.get("probe/mi_high"), line.get("probe/ceiling"))}
        self.rows.append(tuple(np.nan if shown.get(key) is None else float(shown[key]) for key in KEYS))
        self._recent.append(line)
        if line.get("validation/success") is not None:
            if line.get("gain") is None:  # the first on these tasks
                self._marked["first validation"] = line
            self._marked["validation"] = line
        if line.get(f"{_TURN}/mi_est") is not None:
            self._marked["scorer step"] = line

    def status(self, now: float) -> RunStatus:
        """The run's status at `now`, unix seconds."""
        with self._lock:
            found = {line["step"]: line for line in (*self._marked.values(), *self._recent)}
        lines = [found[step] for step in sorted(found)]
        return status_of(self.folder, lines, now)

    def columns(self, keys: Sequence[str]) -> list[list[float | None]]:
        """The columns of `keys`, each with at most `MOST_POINTS` values; None where a step has none."""
        with self._lock:
            table = np.array(self.rows or np.zeros((0, len(KEYS))))[:, [KEYS.index(key) for key in keys]]
        return [
            [None if np.isnan(value) else float(f"{value:.6g}") for value in column] for column in _thinned(table).T
        ]

    def times(self) -> list[tuple[int, float]]:
        """(step, time of its record in unix seconds) of every step."""
        with self._lock:
            return [(int(row[0]), row[1]) for row in self.rows]


def _thinned(table: np.ndarray) -> np.ndarray:
    """(num_steps, num_keys) with at most `MOST_POINTS` rows: means of neighbouring rows without their NaN."""
    if len(table) <= MOST_POINTS:
        return table
    parts = np.array_split(table, MOST_POINTS)
    counts = [np.maximum((~np.isnan(part)).sum(axis=0), 1) for part in parts]
    known = [(~np.isnan(part)).any(axis=0) for part in parts]
    means = [np.nansum(part, axis=0) / count for part, count in zip(parts, counts, strict=True)]
    return np.array([np.where(has, mean, np.nan) for has, mean in zip(known, means, strict=True)])
