"""What a dashboard shows, read from Grafana's JSON as `deploy/grafana/` has it: rows, panels, places, queries. Pure.

Only what `cluster.figures.panels` draws is read. A panel of any type is read; a type without a drawing is refused where
it is drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.grafana import boards as grafana

COLUMNS = 24
"""Width of Grafana's grid."""
WINDOW = "2m"
"""What `$__rate_interval` stands for: it must hold a few scrapes."""
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Target:
    """One query of a panel: its expression, and the name of its series, with `{{label}}` for a label's value."""

    expr: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """The name of the series with these labels."""
        return _PLACEHOLDER.sub(lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True)
class Panel:
    """One panel. `x`, `y`, `width`, `height`: its place in the grid; `low`, `high`: limits of its axis."""

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


@dataclass(frozen=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    question: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


def shipped() -> dict[str, Board]:
    """The dashboards that ship with Squelch, by name (`reasoning`, ...)."""
    return {name: read_board(grafana.text(name)) for name in grafana.NAMES}


def read_board(text: str) -> Board:
    """The dashboard in Grafana's JSON, schema version 1."""
    tree = json.loads(text)
    rows: list[tuple[str, list[Panel]]] = []
    for item in tree["panels"]:
        if item["type"] == "row":
            rows.append((item["title"], []))
        else:
            rows = rows or [("", [])]
            rows[-1][1].append(_panel(item))
    found = tuple(Row(title, tuple(panels)) for title, panels in rows)
    return Board(tree["uid"], tree["title"].removeprefix("Squelch: "), tree["description"], found)


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
    )


def concrete(expr: str, instance: str = ".*") -> str:
    """The expression for Prometheus: Grafana's variables replaced, for the runs whose `instance` matches."""
    return grafana.filled_in(expr, {**grafana.VARIABLES, "$instance": instance, "$__rate_interval": WINDOW})
