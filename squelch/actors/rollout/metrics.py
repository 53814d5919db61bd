"""Metrics of the rollout workers: durations of weight updates and results of their checks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.kit.metrics.specification import Section, Table, gauge

if TYPE_CHECKING:
    from squelch.actors.messages import UpdateReport

METRICS: Table = {
    Section.HEALTH: (
        gauge(
            "squelch_weight_update_seconds",
            "weights/{worker}/seconds_{part}",
            "Seconds of the last weight update: chunks fetched, copied for the engine, generation paused, weights "
            "loaded, probe answered",
        ),
        gauge(
            "squelch_weight_parity_nats",
            "weights/{worker}/parity",
            "Mean |log p(worker) - log p(learner)| on the probe after the last update",
        ),
        gauge("squelch_weight_parity_max_nats", "weights/{worker}/parity_max", "Largest difference on that probe"),
        gauge(
            "squelch_worker_policy_version",
            "weights/{worker}/version",
            "Policy version that a rollout worker samples from",
        ),
    ),
}


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
