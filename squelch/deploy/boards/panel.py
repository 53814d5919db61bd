"""Boards, rows, panels and their queries, read from YAML; names and labels are checked against the registry. Pure.

A board's file has its question and its rows. A row has a `title`, the `page` of the docs that explains it, and panels;
a panel has the fields of `Panel`, as far as its metrics do not say them:

- its unit and limits, or a `scale` that names them. Without any of these a time series has those of its first metric,
  by the end of that one's name
- its queries, PromQL by their legends. A single query may stand alone; its legend is its metric's labels, or the title.
  Beside a metric a time series shows its interval, null and standard error, if it has them and the panel does not name
  them; not if the metric is to stand `alone`
- `empty_when`, in which case a healthy run may have no value of a query: beside the query's `expr`, or once for a panel
  or a row

In PromQL the names of our metrics stand as they are: their selectors get the dashboard's runs. `per_second(SELECTOR)`
is a counter's growth per second of the run's time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from squelch.cluster.metrics import REGISTRY
from squelch.kit.metrics.declared import named_beside

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline", "xychart"]
"""Grafana's names of the panel types that `deploy.boards.build` knows."""
SCALES: Mapping[str, Mapping[str, Any]] = {
    "amount": {"low": 0},
    "share": {"unit": "percentunit", "low": 0, "high": 1},
    "seconds": {"unit": "s", "low": 0},
    "size": {"unit": "bytes", "low": 0},
    "nats": {"unit": "suffix: nats"},
    "number": {},
}
"""The unit and the limits of an axis, by the word that a panel names them with; its own fields count more."""
UNITS: Mapping[str, str] = {"ratio": "share", "seconds": "seconds", "bytes": "size", "nats": "nats"}
"""The scale by the end of a metric's name; `amount` for others."""
BESIDE: Mapping[str, str] = {"interval": "{{bound}}", "null": "null", "standard_error": "standard error"}
"""What an estimate may have beside it (`kit.metrics.declared`), with the end of its legend."""
INSTANCE = 'instance=~"$instance"'
SCRAPE_LABELS = ("instance", "job", "le")
"""Labels that Prometheus adds, and the label of a histogram's buckets."""
NO_STEP = "no step ended recently"
_SELECTOR = re.compile(r"\b(squelch_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
_PER_SECOND = re.compile(r"per_second\(([^()]+)\)")
_OVER_THE_RUNS_TIME = (
    r"increase(\1[$__rate_interval]) / on (instance, job) group_left () (sum by (instance, job) "
    r'(increase(squelch_part_seconds_total{part=~"step|validation|probe"}[$__rate_interval])) > 0)'
)
"""The growth of a counter that grows when a step ends, by the time that the run spent. `rate` divides by its window,
which is shorter than a long step: it shows 0 between two ends and several times the truth at each. Both sides of this
quotient grow at the same scrapes, so that the length of a step does not matter."""


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
    """One dashboard. `name`: of its file; its identity in Grafana, on which links and updates rely, ends with it."""

    name: str
    question: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Annotation:
    """Marks on the time axis of every board, wherever `expr` has a value above 0. `legend`: the mark's text."""

    name: str
    expr: str
    legend: str
    color: str


def read_board(path: Path) -> Board:
    """The board of a file. ValueError if a query names no metric, label or value of the registry; TypeError for a field
    that no panel has."""
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Board(path.stem, written["question"], tuple(map(_row, written["rows"])))


def read_annotations(path: Path) -> tuple[Annotation, ...]:
    """The marks of all boards. Errors as of `read_board`."""
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(Annotation(**mark | {"expr": of_the_runs(mark["expr"])}) for mark in written)


def _row(written: Mapping[str, Any]) -> Row:
    empty_when = written.get("empty_when", "")
    return Row(written["title"], written["page"], tuple(_panel(panel, empty_when) for panel in written["panels"]))


def _panel(written: dict[str, Any], empty_when: str) -> Panel:
    queries, plain = written.pop("queries"), written.get("kind", "timeseries") == "timeseries"
    if isinstance(queries, str):
        labels = REGISTRY.spec(_first(queries)).labels
        queries = {", ".join(f"{{{{{label}}}}}" for label in labels) or written["title"]: queries}
    if plain and not written.keys() & {"scale", "unit", "low", "high"}:
        written["scale"] = UNITS.get(_first(*queries.values()).rpartition("_")[2], "amount")
    fields = {**SCALES[written.pop("scale", "number")], **written}
    empty_when = fields.pop("empty_when", empty_when)
    queries = _with_those_beside(queries) if plain and not fields.pop("alone", False) else queries
    found = tuple(_query(legend, query, empty_when) for legend, query in queries.items())
    return Panel(queries=found, states=tuple(fields.pop("states", ())), **fields)


Written = str | Mapping[str, str]
"""A query's expression, or a mapping with it and its `empty_when`."""


def _first(*queries: Written) -> str:
    """The first metric in some queries; empty text if they name none of ours."""
    found = _SELECTOR.search(" ".join(map(_expr, queries)))
    return found[1] if found else ""


def _expr(query: Written) -> str:
    return query if isinstance(query, str) else query["expr"]


def _with_those_beside(queries: Mapping[str, Written]) -> dict[str, Written]:
    """The queries by their legends, each metric with its interval, null and standard error."""
    found, named = dict[str, Written](), " ".join(map(_expr, queries.values()))
    for legend, query in queries.items():
        found[legend] = query
        if selector := _SELECTOR.fullmatch(_expr(query)):
            for word, end in BESIDE.items():
                name = named_beside(selector[1], word)
                if name in REGISTRY.specs and name not in named:
                    expr = selector[0].replace(selector[1], name)
                    found[f"{legend}, {end}"] = expr if isinstance(query, str) else {**query, "expr": expr}
    return found


def _query(legend: str, written: Written, empty_when: str) -> Query:
    if isinstance(written, Mapping):
        return _query(legend, written["expr"], written["empty_when"])
    if _PER_SECOND.search(written):
        empty_when = f"{empty_when}, or {NO_STEP}" if empty_when else NO_STEP
    return Query(of_the_runs(written), legend, empty_when)


def of_the_runs(expr: str) -> str:
    """The PromQL of a file as Grafana evaluates it, for the dashboard's runs."""
    return checked(_PER_SECOND.sub(_OVER_THE_RUNS_TIME, expr), INSTANCE)


def checked(expr: str, *matchers: str) -> str:
    """The PromQL with `matchers` first in each selector of our metrics. ValueError if the registry lacks the name or a
    label, or the value of a label whose values are fixed."""
    return _SELECTOR.sub(lambda found: _selector(found[1], found[2], matchers), expr)


def _selector(name: str, labels: str | None, matchers: tuple[str, ...]) -> str:
    spec = REGISTRY.spec(_family(name))
    for label, operator, value in _MATCHER.findall(labels or ""):
        at = spec.labels.index(label) if label in spec.labels else -1
        if at < 0 and label not in SCRAPE_LABELS:
            raise ValueError(f"{name} has no label `{label}`; it has {spec.labels}")
        if operator == "=" and at >= 0 and not spec.open and all(seed[at] != value for seed in spec.seeds):
            raise ValueError(f"{name} has no series with {label}={value!r}")
    inside = ",".join([*matchers, labels] if labels else matchers)
    return f"{name}{{{inside}}}" if inside else name


def _family(name: str) -> str:
    """The metric to which a histogram's series belongs; other names are returned unchanged."""
    for suffix in ("_bucket", "_count", "_sum"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
