"""The current value of every metric series: pure state that the exporter serves.

Invariants:

- Every series with seeded labels exists from the start: a gauge is NaN until it is first set ("not measured" is not
  0), a counter is 0. A null in a step's dict sets a gauge to NaN and leaves a counter unchanged.
- A step with a wrong key or value raises an error and changes no series.
- `forget` ends the series of a label value; a later value of it starts a new series.
- A store is not thread-safe; its owner holds a lock (`kit.metrics.exporter.Recorder`). Nothing waits.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.specification import LabelValues, MetricSpec

Flat = Mapping[str, float | int | bool | None]


@dataclass
class Histogram:
    """One histogram series: `counts[i]` observations lie in (bounds[i - 1], bounds[i]]; the last bound is inf."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, observations at or below it), in Prometheus' format."""
        names = [*(str(bound) for bound in self.bounds[:-1]), "+Inf"]
        return list(zip(names, itertools.accumulate(self.counts), strict=True))


class MetricStore:
    """The current value of every series of `registry`. `seeds` maps a label's name to further values known at the
    start, e.g. `{"worker": ["rollout-0"]}`, for metrics with this single open label."""

    def __init__(self, registry: Registry, seeds: Mapping[str, Iterable[str]] | None = None) -> None:
        self.registry = registry
        self._seeds = {label: tuple(values) for label, values in (seeds or {}).items()}
        self.scalars: dict[str, dict[LabelValues, float]] = {name: {} for name in registry.specs}
        self.histograms: dict[str, Histogram] = {}
        for spec in registry.specs.values():
            self._seed(spec)

    def _seed(self, spec: MetricSpec) -> None:
        if spec.kind == "histogram":
            bounds = (*spec.buckets, math.inf)
            self.histograms[spec.name] = Histogram(bounds, [0] * len(bounds))
            return
        start = 0.0 if spec.kind == "counter" else math.nan
        for values in spec.seeds if spec.labels else ((),):
            self.scalars[spec.name][values] = start
        if spec.open and len(spec.labels) == 1:
            for value in self._seeds.get(spec.labels[0], ()):
                self.scalars[spec.name][(value,)] = start

    def observe(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge, add to a counter, or observe in a histogram."""
        spec = self.registry.spec(name)
        self._apply(spec, spec.label_values(labels), value)

    def replace(self, name: str, values: Mapping[LabelValues, float | None]) -> None:
        """Sets all series of a gauge: those that `values` lacks are removed."""
        spec = self.registry.spec(name)
        self.scalars[name] = {
            spec.label_values(dict(zip(spec.labels, labels, strict=True))): math.nan if value is None else value
            for labels, value in values.items()
        }

    def forget(self, label: str, values: Collection[str]) -> None:
        """Removes every series whose `label` has one of `values`, of all metrics whose labels are open."""
        for name, spec in self.registry.specs.items():
            if spec.open and label in spec.labels:
                at, series = spec.labels.index(label), self.scalars[name]
                for gone in [found for found in series if found[at] in values]:
                    del series[gone]

    def step(self, flat: Flat) -> None:
        """Applies all values of a training step. Raises ValueError, and changes nothing, if a key or value is wrong."""
        series = ((key, *found) for key in flat for found in self.registry.series_of(key))
        updates = [(spec, values, _number(key, flat[key])) for key, spec, values in series]
        for spec, _, value in updates:
            _refuse_negative(spec, value)
        for spec, values, value in updates:
            self._apply(spec, values, value)

    def _apply(self, spec: MetricSpec, values: LabelValues, value: float | None) -> None:
        _refuse_negative(spec, value)
        if spec.kind == "gauge":
            self.scalars[spec.name][values] = math.nan if value is None else float(value)
        elif value is None or math.isnan(value):
            return
        elif spec.kind == "counter":
            series = self.scalars[spec.name]
            series[values] = series.get(values, 0.0) + float(value)
        else:
            self.histograms[spec.name].observe(float(value))


def _refuse_negative(spec: MetricSpec, value: float | None) -> None:
    if spec.kind != "gauge" and value is not None and value < 0:
        raise ValueError(f"{spec.name} is a {spec.kind} and cannot take {value}; it must be 0 or more")


def _number(key: str, value: object) -> float | None:
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]  # numpy scalars and bools are numbers here
    except (TypeError, ValueError):
        raise ValueError(f"metric key `{key}` must be a number or null, not {value!r}") from None
