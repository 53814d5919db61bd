"""The dashboards that ship with Squelch. Pure; `python -m squelch.deploy.dashboards` makes their files.

    text, trees    Grafana's JSON, as a push and an export need it
    shipped        rows, panels with their places and queries, and marks: what is drawn and what is evaluated

Only what Squelch draws itself is read from the JSON. A panel of any type is read; a type without a drawing is refused
where it is drawn (`cluster.plots.panels`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Tree = Mapping[str, Any]
"""A dashboard as Grafana's JSON."""
NAMES = ("training", "signal", "reasoning", "system")
COLUMNS = 24
"""Width of Grafana's grid."""
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Chosen:
    """The values of Grafana's variables. `instance`: regular expression of the addresses of the runs that are shown;
    `rate_window`: what rates are taken over, as PromQL writes a duration."""

    instance: str = ".*"
    rate_window: str = "5m"

    def fill(self, expr: str) -> str:
        """The expression for Prometheus: Grafana's variables replaced."""
        return expr.replace("$instance", self.instance).replace("$__rate_interval", self.rate_window)


EVERYTHING = Chosen()


@dataclass(frozen=True)
class Target:
    """One query of a panel: its expression, and the name of its series, with `{{label}}` for a label's value."""

    expr: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """The name of the series with these labels."""
        return _PLACEHOLDER.sub(lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True)
class State:
    """How a state timeline shows a value: its name, which may be blank, and Grafana's name of its colour."""

    text: str
    colour: str


@dataclass(frozen=True)
class Panel:
    """One panel. `x`, `y`, `width`, `height`: its place in the grid; `low`, `high`: limits of its axis; `states`: of a
    state timeline, by value."""

    title: str
    help: str
    kind: str
    x: int
    y: int
    width: int
    height: int
    unit: str
    low: float | None
    high: float | None
    stacked: bool
    targets: tuple[Target, ...]
    states: Mapping[int, State]


@dataclass(frozen=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]

    @property
    def height(self) -> int:
        """Cells of the grid from its first panel's upper edge to its last one's lower edge."""
        return max(p.y + p.height for p in self.panels) - min(p.y for p in self.panels)


@dataclass(frozen=True)
class Mark:
    """Marks on the time axis of every panel, wherever `expr` has a value above 0 (Grafana's annotations)."""

    name: str
    expr: str
    colour: str


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    question: str
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]

    @property
    def panels(self) -> list[Panel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


def text(name: str) -> str:
    """The text of a dashboard's file."""
    return (files("squelch.deploy") / "grafana" / f"{name}.json").read_text(encoding="utf-8")


def rules() -> str:
    """The text of the alert rules' file."""
    return (files("squelch.deploy") / "alerts.yml").read_text(encoding="utf-8")


def trees() -> dict[str, Tree]:
    """The dashboards by name, as the files hold them."""
    return {name: json.loads(text(name)) for name in NAMES}


def shipped() -> dict[str, Board]:
    """The dashboards by name, as they are drawn and evaluated."""
    return {name: read_board(tree) for name, tree in trees().items()}


def expressions(board: Board, chosen: Chosen = EVERYTHING) -> Iterator[str]:
    """Every expression of a dashboard, with Grafana's variables filled in."""
    for panel in board.panels:
        for target in panel.targets:
            yield chosen.fill(target.expr)
    for mark in board.marks:
        yield chosen.fill(mark.expr)


def read_board(tree: Tree) -> Board:
    """The dashboard in Grafana's JSON, schema version 1."""
    rows: list[tuple[str, list[Panel]]] = []
    for item in tree["panels"]:
        if item["type"] == "row":
            rows.append((item["title"], []))
        else:
            rows = rows or [("", [])]
            rows[-1][1].append(_panel(item))
    found = tuple(Row(title, tuple(panels)) for title, panels in rows)
    listed = [item for item in tree["annotations"]["list"] if "expr" in item]
    marks = tuple(Mark(item["name"], item["expr"], item["iconColor"]) for item in listed)
    return Board(tree["uid"], tree["title"].removeprefix("Squelch: "), tree["description"], found, marks)


def _panel(item: Mapping[str, Any]) -> Panel:
    place, field = item["gridPos"], item["fieldConfig"]["defaults"]
    stacking = field.get("custom", {}).get("stacking", {}).get("mode", "none")
    return Panel(
        item["title"],
        item.get("description", ""),
        item["type"],
        int(place["x"]),
        int(place["y"]),
        int(place["w"]),
        int(place["h"]),
        field.get("unit", "short"),
        field.get("min"),
        field.get("max"),
        stacking == "normal",
        tuple(Target(target["expr"], target["legendFormat"]) for target in item["targets"]),
        _states(field),
    )


def _states(field: Mapping[str, Any]) -> dict[int, State]:
    options = [mapping["options"] for mapping in field.get("mappings", ()) if mapping["type"] == "value"]
    return {
        int(value): State(shown["text"].strip(), shown["color"])
        for mapped in options
        for value, shown in mapped.items()
    }
