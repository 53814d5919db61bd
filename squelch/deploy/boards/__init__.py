"""Grafana's dashboards as data: one YAML file for each, and what all of them have. Pure: imports only the registry.

    training.yaml     is it learning
    signal.yaml       do rewards differ, and is it learned from
    reasoning.yaml    does reasoning depend on its input
    system.yaml       who waits for whom, and is everybody well
    annotations.yaml  marks of checkpoints, validations, alarms and faults, on every board
    panel             the types, what a file may say, and queries that are checked against the metric registry
    build             Grafana's JSON of them

In a healthy run every query has a value, except in the case that its `empty_when` names; tests check this with a real
Prometheus.
"""

from pathlib import Path

from squelch.deploy.boards.panel import read_annotations, read_board

_FOLDER = Path(__file__).parent
BOARDS = tuple(read_board(_FOLDER / f"{name}.yaml") for name in ("training", "signal", "reasoning", "system"))
ANNOTATIONS = read_annotations(_FOLDER / "annotations.yaml")
