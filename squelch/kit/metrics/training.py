"""Metrics of any trainer's run: its steps, their time, and the policy's updates. Pure.

A run of Squelch has many more (`cluster.metrics`); that of another trainer has these and those of the diagnosis.
"""

from __future__ import annotations

from squelch.kit.metrics.declared import declared

PARTS = (
    "step",
    "rollout",
    "filter",
    "train",
    "publish",
    "score",
    "validation",
    "probe",
    "probe_score",
    "archive",
    "checkpoint",
    "checkpoint_write",
    "recovery",
    "orchestration",
)
"""Parts of a step, as a run of Squelch has them; another trainer reports those of the diagnosis."""

METRICS = declared(__file__, PARTS=PARTS)
