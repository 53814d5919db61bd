"""Scraping, alert rules and dashboards as objects of Kubernetes: for the Prometheus operator, and for the sidecar with
which Grafana's chart finds dashboards. Pure.

    PodMonitor       a run's metrics on the head, with their token, and Ray's on every pod of `deploy/kubernetes`
    PrometheusRule   the alert rules
    ConfigMap        one for each dashboard
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from squelch.cluster.grafana import boards
from squelch.cluster.grafana.push import SCRAPE_INTERVAL

NAME = "squelch"
TOKEN = {"name": "squelch-metrics-token", "key": "token"}
"""The secret, in the namespace of the objects, that holds SQUELCH_METRICS_TOKEN."""
SIDECAR = {"grafana_dashboard": "1"}
"""The label of ConfigMaps that the sidecar reads, by default."""


class _Text(str):
    """Text that is written line by line, so that people can read and compare it."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def text(docs: str, labels: Mapping[str, str]) -> str:
    """All objects as YAML. `docs`: the address of the docs, or empty; `labels`: further labels of each object, by which
    an operator selects what it reads."""
    return yaml.dump_all(objects(docs, labels), Dumper=_Dumper, sort_keys=False, width=120)


def objects(docs: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """As `text`. They name no namespace: `kubectl --namespace` does."""
    rules = yaml.safe_load(boards.rules(docs))
    return [
        _object("monitoring.coreos.com/v1", "PodMonitor", NAME, labels, spec=_scraping()),
        _object("monitoring.coreos.com/v1", "PrometheusRule", NAME, labels, spec=rules),
        *(_dashboard(name, docs, labels) for name in boards.NAMES),
    ]


def _scraping() -> dict[str, Any]:
    own = {"port": "run-metrics", "interval": SCRAPE_INTERVAL, "authorization": {"credentials": TOKEN}}
    return {
        "selector": {"matchExpressions": [{"key": "ray.io/cluster", "operator": "Exists"}]},
        "podMetricsEndpoints": [own, {"port": "metrics", "interval": SCRAPE_INTERVAL}],
    }


def _dashboard(name: str, docs: str, labels: Mapping[str, str]) -> dict[str, Any]:
    data = {f"squelch-{name}.json": _Text(boards.text(name, docs))}
    return _object("v1", "ConfigMap", f"{NAME}-dashboard-{name}", {**SIDECAR, **labels}, data=data)


def _object(version: str, kind: str, name: str, labels: Mapping[str, str], **content: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": NAME, **labels}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}
