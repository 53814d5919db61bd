"""Metrics of the rollout workers: durations of weight updates and results of their checks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.kit.metrics.declared import declared

if TYPE_CHECKING:
    from squelch.actors.messages import UpdateReport

METRICS = declared(__file__)


def update_metrics(reports: Sequence[UpdateReport]) -> dict[str, float]:
    """Flat keys of each worker's weight update: seconds of its parts, parity (nats) and version."""
    flat: dict[str, float] = {}
    for report in reports:
        key = f"weights/{report.worker}"
        flat |= {
            f"{key}/seconds_fetched": report.seconds_fetched,
            f"{key}/seconds_copied": report.seconds_copied,
            f"{key}/seconds_paused": report.seconds_paused,
            f"{key}/seconds_loaded": report.seconds_loaded,
            f"{key}/seconds_probe": report.seconds_probe,
            f"{key}/parity": report.parity,
            f"{key}/parity_max": report.parity_max,
            f"{key}/version": float(report.version),
        }
    return flat
