"""What a metric of the registry is: name, kind, help, labels, and the flat keys that feed it. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
LabelValues = tuple[str, ...]


@dataclass(frozen=True)
class MetricSpec:
    """One metric: a name, its labels, and the flat key that feeds it."""

    name: str
    kind: Kind
    help: str
    key: str = ""
    """Flat key, `{label}` standing for a label's value; empty: set by name, not by the step's dict."""
    labels: tuple[str, ...] = ()
    seeds: tuple[LabelValues, ...] = ()
    """Label values present from the start, one tuple a series."""
    open: bool = False
    """Whether label values other than the seeds are accepted (workers, reasons)."""
    keys: Mapping[str, LabelValues] = field(default_factory=dict)
    """Flat keys that follow no pattern, with the label values that they stand for."""
    unit: str = ""
    buckets: tuple[float, ...] = ()

    def flat_keys(self) -> dict[str, LabelValues]:
        """Every flat key known in advance that feeds this metric, with its label values."""
        if not self.key:
            return dict(self.keys)
        seeds = self.seeds if self.labels else ((),)
        seeded = {self.key.format(**dict(zip(self.labels, values, strict=True))): values for values in seeds}
        return seeded | dict(self.keys)

    def pattern(self) -> re.Pattern[str] | None:
        """What an open metric's flat keys look like; None for a closed one."""
        if not (self.open and self.key):
            return None
        parts = re.split(r"\{(\w+)\}", self.key)
        text = "".join(re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+)" for i, p in enumerate(parts))
        return re.compile(text)


def gauge(name: str, key: str, help: str, *, unit: str = "") -> MetricSpec:
    """One series, set by a flat key."""
    return MetricSpec(name, "gauge", help, key, unit=unit)


def counter(name: str, key: str, help: str, *, unit: str = "") -> MetricSpec:
    """One series, added to by a flat key."""
    return MetricSpec(name, "counter", help, key, unit=unit)


def product(*values: Iterable[str]) -> tuple[LabelValues, ...]:
    """Every combination of label values."""
    return tuple(itertools.product(*values))
