"""Specification of a metric: name, kind, help, labels, and the flat keys that feed it. Pure.

Each component declares its metrics in `metrics.yaml` beside its module `metrics`, which gives them as `METRICS`
(`kit.metrics.declared`); `cluster.metrics` composes them. Names follow Prometheus' conventions: seconds and bytes as
base units, `_total` for counters, `_ratio` for shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from squelch.kit.base.lookup import nearest

Kind = Literal["counter", "gauge", "histogram"]
LabelValues = tuple[str, ...]


class Section(StrEnum):
    """The question that a metric answers; docs/reference/metrics.md has a section for each, in this order."""

    PROGRESS = "Progress"
    LEARNING = "Is it learning"
    FILTER = "Filter"
    REASONING = "Does reasoning depend on the input"
    TIME = "Where time goes"
    LEARNER = "Learner"
    GRADIENTS = "Gradients"
    HEALTH = "Health"


@dataclass(frozen=True)
class MetricSpec:
    """One metric: a name, its labels, and the flat key that feeds it."""

    name: str
    kind: Kind
    help: str
    key: str = ""
    """Flat key with `{label}` in place of a label's value; empty if the metric is set by name, not by a step's dict."""
    labels: tuple[str, ...] = ()
    seeds: tuple[LabelValues, ...] = ()
    """Label values present from the start, one tuple per series."""
    open: bool = False
    """Whether label values other than the seeds are accepted (workers, reasons)."""
    keys: Mapping[str, LabelValues] = field(default_factory=dict)
    """Flat keys that follow no pattern, each with its label values."""
    buckets: tuple[float, ...] = ()

    def flat_keys(self) -> dict[str, LabelValues]:
        """Every flat key known in advance that feeds this metric, with its label values."""
        if not self.key:
            return dict(self.keys)
        seeds = self.seeds if self.labels else ((),)
        seeded = {self.key.format(**dict(zip(self.labels, values, strict=True))): values for values in seeds}
        return seeded | dict(self.keys)

    def pattern(self) -> re.Pattern[str] | None:
        """The pattern of an open metric's flat keys; None for a closed metric."""
        if not (self.open and self.key):
            return None
        parts = re.split(r"\{(\w+)\}", self.key)
        text = "".join(re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+)" for i, p in enumerate(parts))
        return re.compile(text)

    def label_values(self, labels: Mapping[str, str]) -> LabelValues:
        """The values of `labels` in this metric's order. Raises ValueError for wrong names or values."""
        for label in labels:
            if label not in self.labels:
                raise ValueError(f"{self.name} has no label `{label}`, only {self.labels}{nearest(label, self.labels)}")
        missing = [label for label in self.labels if label not in labels]
        if missing:
            raise ValueError(f"{self.name} needs the labels {self.labels}; missing: {missing}")
        values = tuple(str(labels[label]) for label in self.labels)
        if self.labels and not self.open and values not in self.seeds:
            hint = nearest("/".join(values), map("/".join, self.seeds))
            raise ValueError(f"{self.name} has no series {values}{hint}")
        return values


Table = Callable[[], Mapping[Section, tuple[MetricSpec, ...]]]
"""Reads the metrics that one component declares, by section."""
