"""Specification of a metric: name, kind, help, labels, and the flat keys that feed it. Pure.

Each component declares its metrics beside itself, in a module `metrics` whose `METRICS` is a `Table`; `cluster.metrics`
composes them. Names follow Prometheus' conventions: seconds and bytes as base units, `_total` for counters, `_ratio`
for shares.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
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


Table = Mapping[Section, tuple[MetricSpec, ...]]
"""The metrics that one component declares, by section."""


def _scalar(
    kind: Kind,
    name: str,
    key: str | Mapping[str, LabelValues],
    help: str,
    seeds: tuple[LabelValues, ...] = (),
    *,
    labels: tuple[str, ...] = (),
    open: bool = False,
) -> MetricSpec:
    """A metric.

    Args:
        key: its flat key, whose `{label}`s are its labels; or its flat keys that follow no pattern, each with its label
            values; or empty.
        seeds: label values present from the start. Without them a metric with labels is open.
        labels: of a metric without such a pattern.
    """
    if not isinstance(key, str):
        return MetricSpec(name, kind, help, labels=labels, seeds=tuple(key.values()), keys=key)
    labels = labels or tuple(re.findall(r"\{(\w+)\}", key))
    return MetricSpec(name, kind, help, key, labels, seeds, open or (bool(labels) and not seeds))


gauge, counter = partial(_scalar, "gauge"), partial(_scalar, "counter")
"""A gauge or a counter: its name, flat key or keys, help and seeds (`_scalar`)."""


def product(*values: Iterable[str]) -> tuple[LabelValues, ...]:
    """Every combination of label values."""
    return tuple(itertools.product(*values))


def measured(
    spec: MetricSpec, *, interval: str | None = None, error: str | None = None, null: bool = False
) -> tuple[MetricSpec, ...]:
    """An estimate with its 95% interval, whose ends are the label `bound`, its standard error, and the 95% point of its
    null distribution. `interval`, `error`: what their help says after the name; None for an estimate without."""
    found = [spec]
    if interval is not None:
        bounded = tuple((*values, bound) for values in spec.seeds or ((),) for bound in ("low", "high"))
        found.append(_beside(spec, "interval", "_{bound}", f"95% interval of {spec.name}{interval}", bounded))
    if error is not None:
        found.append(_beside(spec, "standard_error", "_standard_error", f"Standard error of {spec.name}{error}"))
    if null:
        found.append(_beside(spec, "null", "_null_95", f"95% point of the null distribution of {spec.name}"))
    return tuple(found)


def _beside(
    spec: MetricSpec, word: str, suffix: str, help: str, seeds: tuple[LabelValues, ...] | None = None
) -> MetricSpec:
    """A gauge named as `spec`, with the word before the unit."""
    name = re.sub(r"(_nats|_ratio)?$", rf"_{word}\1", spec.name, count=1)
    return gauge(name, spec.key + suffix, help, spec.seeds if seeds is None else seeds)
