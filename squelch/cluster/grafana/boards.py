"""The dashboards and alert rules that ship with Squelch, as their files hold them, or leading to another address of the
docs (`docs`, empty for none). Pure; `python -m squelch.deploy.dashboards` makes the dashboards' files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

Tree = Mapping[str, Any]
"""A dashboard as Grafana's JSON."""
NAMES = ("training", "signal", "reasoning", "system")


def text(name: str, docs: str = "") -> str:
    """The text of a dashboard's file."""
    shipped = (files("squelch.deploy") / "grafana" / f"{name}.json").read_text(encoding="utf-8")
    if not docs:
        return shipped
    tree = json.loads(shipped)
    (address,) = (variable for variable in tree["templating"]["list"] if variable["name"] == "docs")
    address["query"] = docs
    return json.dumps(tree, indent=2) + "\n"


def rules(docs: str = "") -> str:
    """The text of the alert rules' file, whose `runbook_url` are paths in the repository unless `docs` is given."""
    shipped = (files("squelch.deploy") / "alerts.yml").read_text(encoding="utf-8")
    if not docs:
        return shipped

    def absolute(found: re.Match[str]) -> str:
        return f"runbook_url: {json.dumps(docs + found[1])}"

    return re.sub(r"runbook_url: docs(/\S+)", absolute, shipped)


def trees(docs: str = "") -> dict[str, Tree]:
    """The dashboards by name."""
    return {name: json.loads(text(name, docs)) for name in NAMES}
