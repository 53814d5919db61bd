"""What a dashboard panel is made of: queries whose names and labels are checked against the metric registry. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.metrics import REGISTRY

INSTANCE = 'instance=~"$instance"'
SCRAPE_LABELS = ("instance", "job", "le")
"""Labels that Prometheus adds, or a histogram's buckets carry."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression of a panel. A run of a few steps must give it a value, unless `empty_when` says in which
    healthy run it has none."""

    expr: str
    legend: str
    empty_when: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel; `unit` is Grafana's name of the unit, `stack` draws the series on top of each other."""

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    stack: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def series(name: str, **labels: str) -> str:
    """A selector of one metric of the registry for the dashboard's runs, e.g. `squelch_step{instance=~"$instance"}`."""
    return selector(name, INSTANCE, **labels)


def selector(name: str, *matchers: str, **labels: str) -> str:
    """`name{matchers, labels}`; a name, label or closed label value that the registry lacks is a ValueError."""
    spec = REGISTRY.spec(_family(name))
    for label, value in labels.items():
        at = spec.labels.index(label) if label in spec.labels else -1
        if at < 0 and label not in SCRAPE_LABELS:
            raise ValueError(f"{name} has no label `{label}`; it has {spec.labels}")
        if at >= 0 and not spec.open and all(seed[at] != value for seed in spec.seeds):
            raise ValueError(f"{name} has no series with {label}={value!r}")
    inside = ",".join([*matchers, *(f'{label}="{value}"' for label, value in labels.items())])
    return f"{name}{{{inside}}}" if inside else name


def _family(name: str) -> str:
    """The metric that a histogram's series belongs to."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def panel_query(name: str, legend: str, empty_when: str = "", **labels: str) -> Query:
    """The metric as it is."""
    return Query(series(name, **labels), legend, empty_when)


def rate_query(name: str, legend: str, **labels: str) -> Query:
    """A counter by second."""
    return Query(f"rate({series(name, **labels)}[$__rate_interval])", legend)
