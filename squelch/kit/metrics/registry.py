"""Registry of all metrics of a run, composed of the tables that components declare (composed in `cluster.metrics`).

A training step reports one flat dict, e.g. `{"success": 0.41, "first_turn/retrieval_accuracy": 0.38}`. The dict is
written to `metrics.jsonl` unchanged, and `kit.metrics.series` maps it to Prometheus series through the registry.
Dashboards, alert rules and `docs/reference/metrics.md` use the same registry, so all of them agree on names.

Invariants:

- A metric is declared once. Its `key` is the flat key that feeds it, with `{label}` in place of a label's value;
  `keys` lists flat keys that do not follow a pattern. One key may feed several metrics (a gauge of the last step, a
  counter over the run).
- A gauge holds the last step's value; a counter adds each step's value; a histogram observes each step's value.
- Seeded series exist from the start.
- An unknown key, name or label raises a ValueError that names the nearest valid one.
- Memory does not grow with the keys of workers that come and go: at most `KEYS` keys that were looked up are kept.
- Nothing here waits, and nothing imports Ray, vLLM, torch or prometheus_client.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache

from squelch.kit.base.lookup import nearest
from squelch.kit.metrics.specification import LabelValues, MetricSpec, Section, Table

Series = tuple[MetricSpec, LabelValues]
KEYS = 16384


class Registry:
    """The metrics of `tables`, which are read when one is first needed."""

    def __init__(self, *tables: Table) -> None:
        self._tables = tables
        self._found = lru_cache(KEYS)(self._series_of)

    @cached_property
    def sections(self) -> dict[Section, tuple[MetricSpec, ...]]:
        """By section, in the order of the tables. Raises ValueError when a metric is declared twice."""
        tables = [table() for table in self._tables]
        found = {section: tuple(spec for table in tables for spec in table.get(section, ())) for section in Section}
        for name, times in Counter(spec.name for specs in found.values() for spec in specs).items():
            if times > 1:
                raise ValueError(f"metric {name} is declared twice")
        return found

    @cached_property
    def specs(self) -> dict[str, MetricSpec]:
        """By name."""
        return {spec.name: spec for specs in self.sections.values() for spec in specs}

    @cached_property
    def _section(self) -> dict[str, Section]:
        return {spec.name: section for section, specs in self.sections.items() for spec in specs}

    def spec(self, name: str) -> MetricSpec:
        """The specification of a metric. Raises ValueError for an unknown name."""
        if name not in self.specs:
            raise ValueError(f"unknown metric `{name}`{nearest(name, self.specs)}")
        return self.specs[name]

    def named(self, flat: Mapping[str, float | None]) -> dict[str, float]:
        """The metrics of a step that have a value, under `SECTION/KEY`; ValueError for an unknown key."""
        return {
            f"{self.section_of(key)}/{key}": float(value)
            for key, value in flat.items()
            if value is not None and math.isfinite(value)
        }

    def section_of(self, key: str) -> Section:
        """The section of the first metric that a flat key feeds. Raises ValueError if it feeds none."""
        return self._section[self.series_of(key)[0][0].name]

    @cached_property
    def known_keys(self) -> dict[str, tuple[Series, ...]]:
        """Every flat key known in advance, with the series that it feeds."""
        known: dict[str, tuple[Series, ...]] = {}
        for spec in self.specs.values():
            for key, values in spec.flat_keys().items():
                known[key] = (*known.get(key, ()), (spec, values))
        return known

    @cached_property
    def _patterns(self) -> dict[str, list[tuple[MetricSpec, re.Pattern[str]]]]:
        """The patterns of open metrics by the first part of their keys: a step of a large fleet has thousands of keys,
        and each is matched against few patterns. Those that begin with a label are under the empty text."""
        found: dict[str, list[tuple[MetricSpec, re.Pattern[str]]]] = {}
        for spec in self.specs.values():
            if (pattern := spec.pattern()) is not None:
                first = spec.key.split("/")[0]
                found.setdefault("" if "{" in first else first, []).append((spec, pattern))
        return found

    def series_of(self, key: str) -> tuple[Series, ...]:
        """The series that a flat key feeds: (specification, label values). Raises ValueError if it feeds none."""
        return self._found(key)

    def _series_of(self, key: str) -> tuple[Series, ...]:
        series = list(self.known_keys.get(key, ()))
        found = {spec.name for spec, _ in series}
        for spec, pattern in (*self._patterns.get(key.split("/")[0], ()), *self._patterns.get("", ())):
            match = pattern.fullmatch(key)
            if match and spec.name not in found:
                series.append((spec, tuple(match[label] for label in spec.labels)))
        if not series:
            raise ValueError(f"no metric is fed by the key `{key}`{nearest(key, self.known_keys)}")
        return tuple(series)
