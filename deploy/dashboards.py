"""Generates the Grafana dashboard, the alert rules, and the docs' tables of metrics, statistics and rules.

    python -m deploy.dashboards --write    writes deploy/dashboards/squelch.json, deploy/alerts.yml, docs/metrics.md and
                                           the tables of docs/filter.md
    python -m deploy.dashboards --check    exits with 1 and names the files that differ from the code

The sources are `cluster.metrics` (the registry), `deploy.panels` and `deploy.alert_rules`, so that renaming a metric
cannot leave an empty panel. The dashboard uses Grafana's classic JSON model, and can be imported or provisioned.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.metrics.specification import MetricSpec
from cluster.metrics import REGISTRY
from deploy.alert_rules import rules_text
from deploy.filter_tables import with_tables
from deploy.generated import ROOT, command
from deploy.panel import Panel, Query, Row
from deploy.panels import ROWS

FILTER_PAGE = Path("docs/filter.md")
"""A page in which only the tables of statistics and rules are generated."""
SCHEMA_VERSION = 42
"""Last version of Grafana's classic dashboard model; older versions of Grafana read it too."""
COLUMNS = 24
PANEL_HEIGHT, STAT_HEIGHT = 8, 4
PANELS_A_ROW, STATS_A_ROW = 3, 6
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    return {
        "uid": "squelch",
        "title": "Squelch",
        "description": "Is it learning, and does its reasoning still depend on the input?",
        "tags": ["squelch"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource_variable(), _instance_variable()]},
        "panels": _panels(ROWS),
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _instance_variable() -> dict[str, Any]:
    query = "label_values(squelch_step, instance)"
    return {
        "name": "instance",
        "label": "Run",
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "instances"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(_row(row, len(panels) + 1, top))
        top += 1
        for index, panel in enumerate(row.panels):
            panels.append(_panel(panel, len(panels) + 1, *_place(panel, index, top)))
        top += _row_height(row)
    return panels


def _shape(panel: Panel) -> tuple[int, int]:
    """(number of panels per row, height) for a panel's kind."""
    return (STATS_A_ROW, STAT_HEIGHT) if panel.kind == "stat" else (PANELS_A_ROW, PANEL_HEIGHT)


def _place(panel: Panel, index: int, top: int) -> tuple[int, int]:
    beside, height = _shape(panel)
    return index % beside * (COLUMNS // beside), top + index // beside * height


def _row_height(row: Row) -> int:
    beside, height = _shape(row.panels[0])
    return -(-len(row.panels) // beside) * height


def _row(row: Row, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    beside, height = _shape(panel)
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": DATASOURCE,
        "gridPos": {"x": left, "y": top, "w": COLUMNS // beside, "h": height},
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(query, index) for index, query in enumerate(panel.queries)],
    }


def _field(panel: Panel) -> dict[str, Any]:
    limits = {"min": panel.low, "max": panel.high}
    style = {
        "drawStyle": "line",
        "lineWidth": 2,
        "spanNulls": True,
        "fillOpacity": 40 if panel.stack else 0,
        "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
    }
    known = {name: value for name, value in limits.items() if value is not None}
    return {"unit": panel.unit, **known} | ({} if panel.kind == "stat" else {"custom": style})


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"colorMode": "none", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _target(query: Query, index: int) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": True,
    }


def metrics_page() -> str:
    """The text of `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated by `python -m deploy.dashboards --write` from the metric tables that the components declare; do",
        "not edit. `cluster/metrics.py` lists them: each is the module `metrics` of its component.",
        "",
        "A training step writes one line of flat keys to `runs/<name>/metrics.jsonl`; the same figures are served to",
        "Prometheus at `/metrics` under the names on the left. In addition to its keys a line holds `step` and `time`",
        "(unix seconds). A figure without a value is null there and NaN in Prometheus. Line 0 is the validation before",
        "the first step. Counters are the sums of the steps' values.",
    ]
    for title, specs in REGISTRY.sections.items():
        lines += ["", f"## {title}", "", "| metric | kind | labels | key in `metrics.jsonl` | meaning |"]
        lines += ["|---|---|---|---|---|", *(_metric_row(spec) for spec in specs)]
    return "\n".join(lines) + "\n"


def _metric_row(spec: MetricSpec) -> str:
    keys = [spec.key] if spec.key else list(spec.keys)
    cells = [
        f"`{spec.name}`",
        spec.kind,
        _labels(spec),
        ", ".join(f"`{key}`" for key in keys),
        re.sub(r"([|<>])", r"\\\1", spec.help),
    ]
    return "| " + " | ".join(cells) + " |"


def _labels(spec: MetricSpec) -> str:
    """The labels with their known values, e.g. `` `state` (issued, trained) ``."""
    return ", ".join(f"`{label}`{_values(spec, index)}" for index, label in enumerate(spec.labels))


def _values(spec: MetricSpec, index: int) -> str:
    known = list(dict.fromkeys(seed[index] for seed in spec.seeds))
    if not known:
        return ""
    return f" ({', '.join(known)}{', …' if spec.open else ''})"


def artefacts() -> dict[Path, str]:
    """The text of each generated file, by its path in the repository."""
    return {
        Path("deploy/dashboards/squelch.json"): json.dumps(dashboard(), indent=2) + "\n",
        Path("deploy/alerts.yml"): rules_text(),
        Path("docs/metrics.md"): metrics_page(),
        FILTER_PAGE: with_tables((ROOT / FILTER_PAGE).read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    sys.exit(command("deploy.dashboards", artefacts))
