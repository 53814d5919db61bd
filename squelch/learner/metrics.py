"""Metrics of the learner: metrics of a training step, and seconds and size of the weight sync. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squelch.kit.metrics.declared import declared

if TYPE_CHECKING:
    from squelch.actors.messages import WeightBundle

PARTS = ("fetch", "prepare", "forward_backward", "optimizer", "recompute", "reference", "critic")
METRICS = declared(__file__, PARTS=PARTS)


def publication_metrics(bundle: WeightBundle) -> dict[str, float]:
    """Size of a published version, and the seconds that its weight sync took in the learner."""
    return {
        "weights/bytes": float(bundle.num_bytes),
        "publish/seconds_gathered": bundle.seconds_gathered,
        "publish/seconds_sent": bundle.seconds_sent,
    }
