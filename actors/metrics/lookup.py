"""Finds metrics in the registry by name, label and flat key; what is unknown is a ValueError that names the nearest."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache

from actors.metrics.registry import SPECS
from actors.metrics.specification import LabelValues, MetricSpec


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """`, did you mean X?`, or nothing when no valid name is near."""
    found = difflib.get_close_matches(wrong, list(valid), n=1, cutoff=0.5)
    return f"; did you mean `{found[0]}`?" if found else ""


def spec_of(name: str) -> MetricSpec:
    """The specification of a metric name."""
    if name not in SPECS:
        raise ValueError(f"unknown metric `{name}`{nearest(name, SPECS)}")
    return SPECS[name]


def label_values(spec: MetricSpec, labels: Mapping[str, str]) -> LabelValues:
    """The values of `labels` in the specification's order; wrong names or values are refused."""
    for label in labels:
        if label not in spec.labels:
            raise ValueError(f"{spec.name} has no label `{label}`, only {spec.labels}{nearest(label, spec.labels)}")
    missing = [label for label in spec.labels if label not in labels]
    if missing:
        raise ValueError(f"{spec.name} needs the labels {spec.labels}; missing: {missing}")
    values = tuple(str(labels[label]) for label in spec.labels)
    if spec.labels and not spec.open and values not in spec.seeds:
        raise ValueError(f"{spec.name} has no series {values}{nearest('/'.join(values), map('/'.join, spec.seeds))}")
    return values


@cache
def known_keys() -> dict[str, tuple[tuple[MetricSpec, LabelValues], ...]]:
    """Every flat key known in advance, with the series that it feeds."""
    known: dict[str, tuple[tuple[MetricSpec, LabelValues], ...]] = {}
    for spec in SPECS.values():
        for key, values in spec.flat_keys().items():
            known[key] = (*known.get(key, ()), (spec, values))
    return known


@cache
def _patterns() -> tuple[tuple[MetricSpec, re.Pattern[str]], ...]:
    return tuple((spec, pattern) for spec in SPECS.values() if (pattern := spec.pattern()) is not None)


@cache
def series_of(key: str) -> tuple[tuple[MetricSpec, LabelValues], ...]:
    """The series that a flat key feeds: (specification, label values); a key that feeds none is a ValueError."""
    series = list(known_keys().get(key, ()))
    found = {spec.name for spec, _ in series}
    for spec, pattern in _patterns():
        match = pattern.fullmatch(key)
        if match and spec.name not in found:
            series.append((spec, tuple(match[label] for label in spec.labels)))
    if not series:
        raise ValueError(f"no metric is fed by the key `{key}`{nearest(key, known_keys())}")
    return tuple(series)
