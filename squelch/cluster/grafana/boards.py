"""The dashboards and alert rules that ship with Squelch, as their files hold them, or leading to another address of the
docs: `docs`, empty for none; with `/*.html` at its end it is that of the site that is built of them.
Pure; `python -m squelch.deploy.dashboards` makes the dashboards' files."""

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
    address, suffix = _served(docs)
    tree = json.loads(re.sub(r"(\$\{docs\}/[\w/-]+)\.md", rf"\1{suffix}", shipped))
    (variable,) = (one for one in tree["templating"]["list"] if one["name"] == "docs")
    variable["query"] = address
    return json.dumps(tree, indent=2) + "\n"


def rules(docs: str = "") -> str:
    """The text of the alert rules' file, whose `runbook_url` are paths in the repository unless `docs` is given."""
    shipped = (files("squelch.deploy") / "alerts.yml").read_text(encoding="utf-8")
    if not docs:
        return shipped
    address, suffix = _served(docs)

    def absolute(found: re.Match[str]) -> str:
        return f"runbook_url: {json.dumps(address + found[1] + suffix + found[2])}"

    return re.sub(r"runbook_url: docs(/[\w/-]+)\.md(\S*)", absolute, shipped)


def _served(docs: str) -> tuple[str, str]:
    """The address below which the pages are, and how theirs end."""
    address, _, suffix = docs.partition("/*")
    return address, suffix or ".md"


def trees(docs: str = "") -> dict[str, Tree]:
    """The dashboards by name."""
    return {name: json.loads(text(name, docs)) for name in NAMES}
