"""Grafana's dashboards as data: one module for each, and what all of them have. Pure: imports only the registry.

    training     is it learning
    signal       do rewards differ, and is it learned from
    reasoning    does reasoning depend on its input
    system       who waits for whom, and is everybody well
    annotations  marks of checkpoints, validations, alarms and faults, on every board
    panel        the types, and queries that are checked against the metric registry
    build        Grafana's JSON of them

In a healthy run every query has a value, except in the case that its `empty_when` names; tests check this with a real
Prometheus.
"""

from squelch.deploy.boards import reasoning, signal, system, training

BOARDS = (training.BOARD, signal.BOARD, reasoning.BOARD, system.BOARD)
