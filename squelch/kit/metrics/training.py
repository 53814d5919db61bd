"""Metrics of any trainer's run: its steps, their time, and the policy's updates. Pure.

A run of Squelch has many more (`cluster.metrics`); that of another trainer has these and those of the diagnosis.
"""

from __future__ import annotations

from squelch.kit.metrics.specification import MetricSpec, Section, Table, counter, gauge, product

STEP_BUCKETS = (0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0)
"""Seconds; 3.5 is the documented bound on a step of the demo."""

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


def learner(name: str, key: str, help: str) -> MetricSpec:
    """A gauge of the policy's update."""
    return gauge(f"squelch_learner_{name}", f"learner/{key}", help)


METRICS: Table = {
    Section.PROGRESS: (
        gauge("squelch_step", "step", "Training step that finished last"),
        gauge("squelch_planned_steps", "total_steps", "Planned training steps"),
        gauge("squelch_last_step_timestamp_seconds", "time", "Unix time at which the last training step finished"),
        counter("squelch_optimizer_steps_total", "optimizer_steps", "Optimizer steps taken"),
    ),
    Section.TIME: (
        MetricSpec(
            "squelch_step_duration_seconds",
            "histogram",
            "Wall seconds of a training step",
            "seconds/step",
            buckets=STEP_BUCKETS,
        ),
        gauge(
            "squelch_step_part_seconds",
            "seconds/{part}",
            "Wall seconds of each part of a step when it last happened; parts may overlap",
            product(PARTS),
            open=True,
        ),
        counter(
            "squelch_part_seconds_total",
            "seconds/{part}",
            "Wall seconds by part; parts may overlap",
            product(PARTS),
            open=True,
        ),
    ),
    Section.LEARNER: (
        learner("loss", "loss", "Loss of the last step, including the loss scale"),
        learner("policy_loss", "policy_loss", "Policy term of the loss, without the loss scale"),
        learner("entropy_nats", "entropy", "Entropy of the policy, nats per token"),
        learner("kl_nats", "kl", "KL to the reference policy, nats per token; NaN when it is off"),
        learner("clip_low_ratio", "clip_fraction_low", "Share of tokens clipped from below"),
        learner("clip_high_ratio", "clip_fraction_high", "Share of tokens clipped from above"),
        learner("grad_norm", "grad_norm", "Norm of the gradient before clipping"),
        learner("learning_rate", "learning_rate", "Learning rate"),
    ),
    Section.HEALTH: (
        gauge("squelch_build_info", "", "Always 1; the labels say what runs", labels=("version", "python")),
        gauge(
            "squelch_run_info",
            "",
            "Always 1; the labels say which run this is",
            labels=("run", "environment", "filter"),
        ),
    ),
}
