"""The metrics of a run over its steps, for the charts and the line at the top of every page.

`RunMetrics` follows `metrics.jsonl` and keeps the columns that a chart shows, so that a step of a long run costs a few
hundred bytes. Of whole lines it keeps those that `cluster.runs.status` needs: the newest ones, and the last ones with a
validation, a scorer step, a regime, and the evaluation of the probe that the regime is of.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squelch.cluster.config import RunConfig
from squelch.cluster.inspector.by_kind_and_turn import Parts, Row
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.findings import replayed
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.following import LineFollower
from squelch.cluster.runs.next_run import remedy
from squelch.cluster.runs.series import described
from squelch.cluster.runs.shapes import check_metrics
from squelch.cluster.runs.status import RECENT_STEPS, RunStatus, regime_of, status_of
from squelch.cluster.runs.status_text import clipped
from squelch.kit.archive.reader import METRICS
from squelch.kit.archive.store import Stat
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.findings.finder import Finding
from squelch.kit.untrusted.text import own_yaml


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


_TURN = "first_turn"


def _chart(
    title: str, unit: str, curves: Mapping[str, str], references: Mapping[str, str] | None = None, share: bool = False
) -> Chart:
    found = [Curve(key, label) for key, label in curves.items()]
    bounded = [key for key in curves if f"{key}_low" in REGISTRY.known_keys]
    found += [Curve(f"{key}_{end}", end, end) for key in bounded for end in ("low", "high")]
    found += [Curve(key, label, "reference") for key, label in (references or {}).items()]
    return Chart(title, unit, tuple(found), share)


CHARTS = tuple(_chart(**one) for one in own_yaml(Path(__file__).with_name("charts.yaml")))
CURVES = tuple(dict.fromkeys(curve.key for chart in CHARTS for curve in chart.curves))
SMOOTHED = tuple(
    curve.key for chart in CHARTS for curve in chart.curves if curve.role == "line" and f"{curve.key}_low" not in CURVES
)
"""Keys that can be smoothed: a value with an interval states its noise already."""
KEYS = ("step", "time", *CURVES)


class RunMetrics:
    """The metrics of a live or finished run. Threads may share it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._follower = LineFollower(folder.store, METRICS)
        self._lock = threading.Lock()
        self._replayed: tuple[Stat | None, list[tuple[Finding, str]]] | None = None
        """File facts of the metrics, and the findings in them."""
        self._clear()

    def _clear(self) -> None:
        self._lines = 0
        self._rows: dict[int, list[float]] = {}
        """`KEYS` by the step that they describe, which may be an earlier one than their line's; NaN where there is no
        number."""
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS + 2)
        self._marked: dict[str, dict[str, Any]] = {}
        self.regimes: dict[int, str] = {}
        """The first turn's regime by scored step."""
        self._parts = Parts()

    def refresh(self) -> None:
        """Reads the new lines. UserError for a damaged line."""
        with self._lock, bad_files_are_the_users():
            void, lines = self._follower.news()
            if void:
                self._clear()
            for line in lines:
                check_metrics([line], self.folder.store.where(METRICS), self._lines + 1)
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        shown = line | {"probe/mi_high": clipped(line.get("probe/mi_high"), line.get("probe/ceiling"))}
        shown["probe/hard/mi_high"] = clipped(line.get("probe/hard/mi_high"), line.get("probe/hard/ceiling"))
        for place, key in enumerate(KEYS):
            if (value := shown.get(key)) is not None:
                self._row(described(line, key))[place] = float(value)
        self._lines += 1
        self._recent.append(line)
        self._parts.take(line)
        if line.get("validation/success") is not None:
            if line.get("gain") is None:  # the first on these tasks
                self._marked["first validation"] = line
            self._marked["validation"] = line
        if line.get(f"{_TURN}/mi_est") is not None:
            self._marked["scorer step"] = line
        if (regime := regime_of(line)) is not None:
            self.regimes[described(line, "first_turn/")] = regime
            self._marked |= {"regime": line, "its probe": self._marked.get("probe", line)}
        if line.get("probe/step") is not None:
            self._marked["probe"] = line

    def _row(self, step: int) -> list[float]:
        if step not in self._rows:
            self._rows[step] = [float(step), *[np.nan] * (len(KEYS) - 1)]
        return self._rows[step]

    def status(self, now: float) -> RunStatus:
        """The run's status at `now`, unix seconds."""
        with self._lock:
            found = {id(line): line for line in (*self._marked.values(), *self._recent)}
        return status_of(self.folder, sorted(found.values(), key=lambda line: line["step"]), now)

    def findings(self) -> list[tuple[Finding, str]]:
        """The findings that hold, each with its command; those of a run of an earlier release are found again from its
        metrics. UserError for a damaged file."""
        found = self.folder.findings()
        if found is not None:
            return found
        stamp = self.folder.metrics_stamp()
        if self._replayed is None or self._replayed[0] != stamp:
            config = self._config()
            held = replayed(self.folder.metrics()).open
            again = [(one, "" if config is None else remedy(config, one)) for one in held]
            self._replayed = stamp, again
        return self._replayed[1]

    def _config(self) -> RunConfig | None:
        """The run's configuration; None if this release cannot read it."""
        try:
            return self.folder.config()
        except UserError:
            return None

    def table(self, keys: Sequence[str]) -> np.ndarray:
        """(num_steps, num_keys) values of `keys`; NaN where a step has none."""
        with self._lock:
            return self._table()[:, [KEYS.index(key) for key in keys]]

    def part_rows(self, dimension: str) -> list[Row]:
        """The parts of a dimension, as `Parts.rows`."""
        with self._lock:
            return self._parts.rows(dimension)

    def times(self) -> list[tuple[int, float]]:
        """(step, time of its record in unix seconds) of every step that has a line of its own."""
        with self._lock:
            return [(step, row[1]) for step, row in sorted(self._rows.items()) if not math.isnan(row[1])]

    def _table(self) -> np.ndarray:
        return np.array([self._rows[step] for step in sorted(self._rows)] or np.zeros((0, len(KEYS))))
