"""Marks on the time axis of every board, out of the metrics that a run exports. Pure: imports only the registry."""

from __future__ import annotations

from squelch.deploy.boards.panel import Annotation, series

WINDOW = "$__rate_interval"
"""Range in which an event is searched: a few scrapes, so that a mark is little longer than its event."""


def _ran(part: str) -> str:
    """Whether the run spent time on a part: its counter of seconds has grown."""
    return f"increase({series('squelch_part_seconds_total', part=part)}[{WINDOW}]) > 0"


ANNOTATIONS = (
    Annotation("Checkpoints", _ran("checkpoint"), "checkpoint", "green"),
    Annotation("Validations", _ran("validation"), "validation", "blue"),
    Annotation("Alarms", f"{series('squelch_dependence_alarm')} > 0", "input dependence is falling", "red"),
    Annotation(
        "Faults", f"increase({series('squelch_actor_restarts_total')}[{WINDOW}]) > 0", "restart of {{actor}}", "orange"
    ),
    Annotation(
        "Scaling",
        f"increase({series('squelch_scalings_total')}[{WINDOW}]) > 0",
        "{{kind}} members {{direction}}, by {{by}}",
        "purple",
    ),
)
