"""The dashboards and alert rules that ship with Squelch, as their files hold them. Pure; `python -m
squelch.deploy.dashboards` makes the dashboards' files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

Tree = Mapping[str, Any]
"""A dashboard as Grafana's JSON."""
NAMES = ("training", "signal", "reasoning", "system")


def text(name: str) -> str:
    """The text of a dashboard's file."""
    return (files("squelch.deploy") / "grafana" / f"{name}.json").read_text(encoding="utf-8")


def rules() -> str:
    """The text of the alert rules' file."""
    return (files("squelch.deploy") / "alerts.yml").read_text(encoding="utf-8")


def trees() -> dict[str, Tree]:
    """The dashboards by name, as the files hold them."""
    return {name: json.loads(text(name)) for name in NAMES}
