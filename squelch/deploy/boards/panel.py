"""Boards, rows, panels and their queries, whose names and labels are checked against the metric registry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from squelch.cluster.metrics import REGISTRY

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline", "xychart"]
"""Grafana's names of the panel types that `deploy.boards.build` knows."""
INSTANCE = 'instance=~"$instance"'
SCRAPE_LABELS = ("instance", "job", "le")
"""Labels that Prometheus adds, and the label of a histogram's buckets."""
NO_STEP = "no step ended recently"
NO_KINDS = "the environment declares no kinds of tasks"
_WHOLE = 'part=~"step|validation|probe"'
"""The parts that make up the whole time of a run."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression of a panel. It must have a value after a few steps of any healthy run, except in the case
    that `empty_when` names."""

    expr: str
    legend: str
    empty_when: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `unit`: Grafana's name of the unit; `stack`: whether series are stacked; `low`, `high`: limits of the
    axis. A heat map has one query, whose series are the cumulative counts of a histogram by `le`. An XY chart draws
    the values of each further query over those of the first, at equal times; their legends name axis and points. A
    state timeline has one line for each series: with `states`, the value i + 1 stands for `states[i]`; without, 1 is
    shown by a colour. 0 is shown as nothing."""

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    stack: bool = False
    low: float | None = None
    high: float | None = None
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A titled row of panels, and the page of `docs/` that explains them."""

    title: str
    page: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """One dashboard. `uid`: its identity in Grafana, which links and updates rely on."""

    uid: str
    title: str
    question: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Annotation:
    """Marks on the time axis of every board, wherever `expr` has a value above 0. `legend`: the mark's text."""

    name: str
    expr: str
    legend: str
    color: str


def row(title: str, page: str, *panels: Panel) -> Row:
    """A titled row of panels, and the page that explains them."""
    return Row(title, page, panels)


def panel(title: str, help: str, *queries: Query, **options: Any) -> Panel:
    """A panel of these queries; `options` as of `Panel`."""
    return Panel(title, help, queries, **options)


stat = partial(panel, kind="stat")
"""A panel that shows the last value in large type."""
amount = partial(panel, low=0)
share = partial(panel, unit="percentunit", low=0, high=1)
seconds = partial(panel, unit="s", low=0)
size = partial(panel, unit="bytes", low=0)
nats = partial(panel, unit="suffix: nats")


def series(name: str, **labels: str) -> str:
    """A selector of one metric of the registry for the dashboard's runs, e.g. `squelch_step{instance=~"$instance"}`."""
    return selector(name, INSTANCE, **labels)


def selector(name: str, *matchers: str, **labels: str) -> str:
    """The PromQL selector `name{matchers, labels}`. ValueError if the registry lacks the name or a label, or the value
    of a label whose values are fixed."""
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
    """The metric to which a histogram's series belongs; other names are returned unchanged."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def panel_query(name: str, legend: str, empty_when: str = "", **labels: str) -> Query:
    """A query for the metric's value."""
    return Query(series(name, **labels), legend, empty_when)


def one_of(name: str, label: str, values: Sequence[str]) -> str:
    """The query of a metric that has one series for each of `values`, of which one is 1: i + 1 if that is the series of
    `values[i]`; 0 if none is 1."""
    return f" + ignoring ({label}) ".join(
        f"{i} * {series(name, **{label: value})}" for i, value in enumerate(values, 1)
    )


def mean_of(name: str) -> str:
    """The mean of all values that a histogram has counted."""
    return f"{series(f'{name}_sum')} / {series(f'{name}_count')}"


def per_second(name: str, legend: str, empty_when: str = "", most: int | None = None, **labels: str) -> Query:
    """A query for a counter's growth per second of the run's time, where the counter grows when a step ends. `rate`
    divides by its window, which is shorter than a long step: it shows 0 between two ends and several times the truth
    at each. Both sides of this quotient grow at the same scrapes, so that the length of a step does not matter. `most`
    is the largest quotient that is shown, where part of the counter's growth was spent before the window."""
    grown = f"increase({series(name, **labels)}[$__rate_interval])"
    passed = f"increase({selector('squelch_part_seconds_total', INSTANCE, _WHOLE)}[$__rate_interval])"
    expr = f"{grown} / on (instance, job) group_left () (sum by (instance, job) ({passed}) > 0)"
    expr = expr if most is None else f"clamp_max({expr}, {most})"
    return Query(expr, legend, f"{empty_when}, or {NO_STEP}" if empty_when else NO_STEP)
