"""The dashboards that ship with Squelch, as Grafana's JSON, and the expressions in them. Pure.

`python -m deploy.dashboards --write` makes the files from `deploy.boards`; this package reads only the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Board = Mapping[str, Any]
NAMES = ("training", "signal", "reasoning", "system")
RATE_WINDOW = "5m"
VARIABLES = {"$instance": ".*", "$run": ".*", "$environment": ".*", "$__rate_interval": RATE_WINDOW}
"""Grafana's variables in our expressions, as Grafana would fill them in for all runs."""


@dataclass(frozen=True)
class Expression:
    """One PromQL expression. `place`: the panel or annotation that it fills."""

    place: str
    expr: str


def shipped() -> dict[str, Board]:
    """The dashboards by name, as the files hold them."""
    return {name: json.loads(text(name)) for name in NAMES}


def text(name: str) -> str:
    """The text of a dashboard's file."""
    return (files("deploy") / "grafana" / f"{name}.json").read_text(encoding="utf-8")


def rules() -> str:
    """The text of the alert rules' file."""
    return (files("deploy") / "alerts.yml").read_text(encoding="utf-8")


def expressions(board: Board) -> Iterator[Expression]:
    """Every expression of a dashboard, with Grafana's variables filled in."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield Expression(panel["title"], filled_in(target["expr"]))
    for annotation in board["annotations"]["list"]:
        if "expr" in annotation:
            yield Expression(f"annotation {annotation['name']}", filled_in(annotation["expr"]))


def filled_in(expr: str, chosen: Mapping[str, str] = VARIABLES) -> str:
    """The expression for Prometheus: Grafana's variables replaced by those `chosen`."""
    for variable, value in chosen.items():
        expr = expr.replace(variable, value)
    return expr
