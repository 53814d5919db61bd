"""The one registry of metrics: names, help, labels, and the flat keys that a training step reports.

A training step reports one flat dict, e.g. `{"success": 0.41, "first_turn/retrieval_accuracy": 0.38}`. It is written to
`metrics.jsonl` as it is, and `actors.metrics.series` turns it into Prometheus series through `SPECS`, so the file, the
endpoint, the dashboards, the alert rules and `docs/metrics.md` cannot name different things.

Invariants:

- A metric's `key` is the flat key that feeds it, with `{label}` where a label's value stands; `keys` lists flat keys
  that do not follow a pattern. One key may feed several metrics (a gauge of the last step, a counter over the run).
- Gauges hold the last step's figure; counters add what the step reports; histograms observe it.
- Seeded series exist from the start.
- An unknown key, name or label is a ValueError that names the nearest valid one.
- Nothing here waits, and nothing imports Ray, vLLM, torch or prometheus_client.

Names follow Prometheus' conventions: seconds and bytes as base units, `_total` for counters, `_ratio` for shares.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.failures import FailureCause
from actors.metrics.reasoning import REASONING
from actors.metrics.specification import MetricSpec
from actors.metrics.specification import counter as _counter
from actors.metrics.specification import gauge as _gauge
from actors.metrics.specification import product as _product

STEP_BUCKETS = (0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""Seconds; 3.5 is the stated bound of the demo's step."""


LEDGER_STATES = (
    "issued",
    "in_flight",
    "buffered",
    "kept_waiting",
    "training",
    "trained",
    "dropped",
    "failed",
    "cancelled",
)
PARTS = (
    "step",
    "rollout",
    "filter",
    "train",
    "publish",
    "score",
    "validation",
    "archive",
    "checkpoint",
    "orchestration",
)
LEARNER_PARTS = ("fetch", "prepare", "forward_backward", "optimizer", "recompute", "reference", "critic")
FAILURES = tuple(cause.value for cause in FailureCause if cause is not FailureCause.OTHER)
DROP_REASONS = ("zero", "below_threshold", "refused", "no_signal")
WAITS = (
    ("coordinator", "environment"),
    ("coordinator", "filter"),
    ("coordinator", "learner"),
    ("coordinator", "rollout"),
    ("coordinator", "scorer"),
    ("environment", "rollout"),
    ("learner", "environment"),
    ("rollout", "learner"),
)


def _learner(name: str, key: str, help: str, *, unit: str = "") -> MetricSpec:
    return _gauge(f"squelch_learner_{name}", f"learner/{key}", help, unit=unit)


PROGRESS = (
    _gauge("squelch_step", "step", "Training step that finished last"),
    _gauge("squelch_planned_steps", "total_steps", "Training steps that the run is to make"),
    _gauge("squelch_last_step_timestamp_seconds", "time", "When the last training step finished, unix", unit="seconds"),
    _gauge("squelch_policy_version", "policy_version", "Policy version published last"),
    _counter("squelch_optimizer_steps_total", "optimizer_steps", "Optimizer steps taken"),
    MetricSpec(
        "squelch_trajectories_total",
        "counter",
        "Training trajectories that ended, by outcome",
        labels=("outcome",),
        seeds=_product(("finished", "failed")),
        keys={"trajectories": ("finished",), "trajectories_failed": ("failed",)},
    ),
    MetricSpec(
        "squelch_tokens_total",
        "counter",
        "Tokens of training trajectories: sampled, in total (fed ones included), learned from",
        "tokens/{kind}",
        ("kind",),
        _product(("sampled", "total", "trained")),
    ),
    _gauge("squelch_tokens_per_second", "tokens/per_second", "Tokens sampled in the last step by its wall seconds"),
)

LEARNING = (
    _gauge("squelch_validation_success_ratio", "validation/success", "Success on the fixed validation tasks, 0 to 1"),
    _gauge("squelch_validation_success_low_ratio", "validation/success_low", "Lower end of its 95% interval"),
    _gauge("squelch_validation_success_high_ratio", "validation/success_high", "Upper end of its 95% interval"),
    _gauge("squelch_validation_best_ratio", "validation/best", "Best validation success so far"),
    MetricSpec(
        "squelch_validation_gain_ratio",
        "gauge",
        "Gain in validation success over the first validation, on the same tasks, with its 95% interval",
        labels=("bound",),
        seeds=_product(("mean", "low", "high")),
        keys={"gain": ("mean",), "gain_low": ("low",), "gain_high": ("high",)},
    ),
    _gauge("squelch_validation_step", "validation/step", "Training step that validation measured last"),
    _gauge("squelch_collapsed", "collapsed", "1 when validation success fell below 1%, else 0"),
    _gauge("squelch_success_ratio", "success", "Success of the step's training trajectories, before the filter"),
    MetricSpec(
        "squelch_reward_mean",
        "gauge",
        "Mean episode return, format penalty left out, of all, kept and dropped groups",
        labels=("groups",),
        seeds=_product(("all", "kept", "dropped")),
        keys={"reward_mean": ("all",), "reward_mean_kept": ("kept",), "reward_mean_dropped": ("dropped",)},
    ),
    MetricSpec(
        "squelch_tasks_ratio",
        "gauge",
        "Share of the step's tasks whose group fails throughout, is mixed, or succeeds throughout",
        "tasks_{band}",
        ("band",),
        _product(("all_fail", "mixed", "all_succeed")),
    ),
    _gauge("squelch_format_valid_ratio", "format_validity", "Share of turns that are well formed"),
    _gauge("squelch_reasoning_length_tokens", "reasoning_length", "Mean reasoning tokens a turn", unit="tokens"),
    _gauge("squelch_format_penalty_mean", "format_penalty_mean", "Mean format penalty a trajectory, 0 or negative"),
    _gauge("squelch_rollout_entropy_nats", "rollout_entropy", "Mean surprisal of sampled tokens", unit="nats"),
    _gauge("squelch_turns_mean", "turns_per_trajectory", "Mean turns a trajectory"),
    _gauge("squelch_truncated_ratio", "truncated_share", "Share of trajectories that ended at the turn limit"),
)

FILTER = (
    _gauge("squelch_reward_variance_mean", "reward_variance_mean", "Mean over groups of the reward variance (ddof 1)"),
    _gauge(
        "squelch_kept_mass_ratio", "kept_mass", "Share of the window's reward variance in kept groups; NaN if it is 0"
    ),
    _gauge("squelch_kept_groups_ratio", "kept_fraction", "Share of the window's groups that was kept"),
    _gauge("squelch_window_groups", "num_groups", "Groups that the filter ranked in the step"),
    MetricSpec(
        "squelch_step_groups",
        "gauge",
        "Groups of the last step by decision of the filter",
        labels=("decision",),
        seeds=_product(("kept", "dropped", "refused")),
        keys={"kept_groups": ("kept",), "dropped_groups": ("dropped",), "refused_groups": ("refused",)},
    ),
    MetricSpec(
        "squelch_groups_total",
        "counter",
        "Groups by decision of the filter",
        labels=("decision",),
        seeds=_product(("kept", "dropped", "refused")),
        keys={"kept_groups": ("kept",), "dropped_groups": ("dropped",), "refused_groups": ("refused",)},
    ),
    _gauge("squelch_zero_variance_groups", "zero_variance_groups", "Groups of the last step without reward variance"),
    _gauge("squelch_loss_scale", "loss_scale", "Factor on the loss under filtering"),
    _gauge("squelch_refill_rounds", "refill_rounds", "Rounds that asked for further groups in the last step"),
    _gauge("squelch_no_signal_streak", "no_signal_streak", "Steps in a row in which the filter selected nothing"),
)

TIME = (
    MetricSpec(
        "squelch_step_duration_seconds",
        "histogram",
        "Wall seconds of a training step",
        "seconds/step",
        unit="seconds",
        buckets=STEP_BUCKETS,
    ),
    MetricSpec(
        "squelch_step_part_seconds",
        "gauge",
        "Wall seconds of each part of the last step; parts may overlap",
        "seconds/{part}",
        ("part",),
        _product(PARTS),
        open=True,
        unit="seconds",
    ),
    MetricSpec(
        "squelch_part_seconds_total",
        "counter",
        "Wall seconds by part; parts may overlap",
        "seconds/{part}",
        ("part",),
        _product(PARTS),
        open=True,
        unit="seconds",
    ),
    MetricSpec(
        "squelch_learner_part_seconds",
        "gauge",
        "Seconds of each part of the learner's last step",
        "learner_seconds/{part}",
        ("part",),
        _product(LEARNER_PARTS),
        open=True,
        unit="seconds",
    ),
    MetricSpec(
        "squelch_wait_seconds_total",
        "counter",
        "Seconds that one party stood idle waiting for another",
        "wait/{waiter}/{waited_for}",
        ("waiter", "waited_for"),
        WAITS,
        open=True,
        unit="seconds",
    ),
)

LEARNER = (
    _learner("loss", "loss", "Loss of the last step, scaled"),
    _learner("policy_loss", "policy_loss", "Its policy term"),
    _learner("entropy_nats", "entropy", "Entropy of the policy, nats a token", unit="nats"),
    _learner("kl_nats", "kl", "KL to the reference policy, nats a token; NaN when it is off", unit="nats"),
    _learner("ratio_mean", "ratio_mean", "Mean probability ratio to the anchor"),
    _learner("ratio_max", "ratio_max", "Largest probability ratio to the anchor"),
    _learner("clip_low_ratio", "clip_fraction_low", "Share of tokens clipped from below"),
    _learner("clip_high_ratio", "clip_fraction_high", "Share of tokens clipped from above"),
    _learner("grad_norm", "grad_norm", "Norm of the gradient before clipping"),
    _learner("learning_rate", "learning_rate", "Learning rate"),
    _learner("mismatch_nats", "mismatch_abs", "Mean |log p(learner) - log p(rollout)| at step start", unit="nats"),
    _learner("mismatch_k3_nats", "mismatch_k3", "The same as KL, k3 estimator", unit="nats"),
    _learner(
        "mismatch_outside_ratio",
        "mismatch_outside",
        "Share of tokens whose probability ratio of learner to rollout is outside 0.9 to 1.1",
    ),
    _learner(
        "effective_sample_size_ratio",
        "effective_sample_size",
        "Effective sample size of the learner-to-rollout weights, as a share of the tokens",
    ),
    _learner("masked_ratio", "masked_share", "Share of tokens in sequences left out for their mismatch"),
    _learner("advantage_std", "advantage_std", "Standard deviation of the advantages"),
    _learner("zero_advantage_ratio", "zero_advantage_share", "Share of tokens learned from with advantage 0"),
    _learner("value_loss", "value_loss", "Loss of the critic; NaN without one"),
    _learner("value_mean", "value_mean", "Mean value that the critic gave at step start; NaN without one"),
    _learner(
        "explained_variance",
        "explained_variance",
        "Share of the returns' variance that the critic's values explain; NaN without one",
    ),
    _learner("critic_grad_norm", "critic_grad_norm", "Norm of the critic's gradient before clipping; NaN without one"),
)

BUCKETS = ("1", "2", "3", "4", "5", "6")

GRADIENTS = (
    MetricSpec(
        "squelch_gradient_norm",
        "gauge",
        "Mean norm of a prompt's gradient in a bucket of reward variance, 1 the lowest (Figure 3); mean_: norm of the "
        "bucket's mean gradient; _std: advantages divided by the group's std",
        "gradients/q{bucket}/{part}",
        ("bucket", "part"),
        _product(
            BUCKETS,
            ("task", "task_std", "kl", "entropy", "regulariser", "mean_task", "mean_task_std", "mean_regulariser"),
        ),
    ),
    MetricSpec(
        "squelch_gradient_ratio",
        "gauge",
        "By bucket of reward variance: regulariser's share of the gradient's norm (dominance, appendix K), signal over "
        "noise and regulariser (snr, section 3.2), share of Theorem H.2's bound that is reached (tightness)",
        "gradients/q{bucket}/{ratio}",
        ("bucket", "ratio"),
        _product(BUCKETS, ("dominance", "dominance_std", "snr", "tightness")),
    ),
    MetricSpec(
        "squelch_gradient_reward_variance",
        "gauge",
        "Mean reward variance of a bucket",
        "gradients/q{bucket}/reward_variance",
        ("bucket",),
        _product(BUCKETS),
    ),
    _gauge("squelch_gradient_groups", "gradients/groups", "Groups of the last gradient decomposition"),
)

HEALTH = (
    _gauge("squelch_staleness_max_versions", "staleness_max", "Largest staleness among the step's groups, versions"),
    _gauge("squelch_staleness_mean_versions", "staleness_mean", "Mean staleness of the step's groups, versions"),
    MetricSpec(
        "squelch_tickets",
        "gauge",
        "Tickets by state: issued is the sum of the others",
        "ledger/{state}",
        ("state",),
        _product(LEDGER_STATES),
    ),
    MetricSpec(
        "squelch_ended_tickets",
        "gauge",
        "Tickets that ended untrained, by state and reason",
        "ledger/{state}/{reason}",
        ("state", "reason"),
        (*_product(("dropped",), DROP_REASONS), *_product(("failed",), (*FAILURES, "refused_by_learner"))),
        open=True,
    ),
    MetricSpec(
        "squelch_trajectory_failures_total",
        "counter",
        "Trajectories that failed, by reason",
        "failures/{reason}",
        ("reason",),
        _product(FAILURES),
        open=True,
    ),
    MetricSpec(
        "squelch_weight_update_seconds",
        "gauge",
        "Seconds of the last weight update: chunks fetched, generation paused, weights loaded, probe answered",
        "weights/{worker}/seconds_{part}",
        ("worker", "part"),
        open=True,
        unit="seconds",
    ),
    MetricSpec(
        "squelch_weight_parity_nats",
        "gauge",
        "Mean |log p(worker) - log p(learner)| on the probe after the last update",
        "weights/{worker}/parity",
        ("worker",),
        open=True,
        unit="nats",
    ),
    MetricSpec(
        "squelch_weight_parity_max_nats",
        "gauge",
        "Largest difference on that probe",
        "weights/{worker}/parity_max",
        ("worker",),
        open=True,
        unit="nats",
    ),
    MetricSpec(
        "squelch_weight_checksum_ok",
        "gauge",
        "1 when the checksum of the last update agreed, else 0",
        "weights/{worker}/checksum_ok",
        ("worker",),
        open=True,
    ),
    MetricSpec(
        "squelch_worker_policy_version",
        "gauge",
        "Policy version that a rollout worker samples from",
        "weights/{worker}/version",
        ("worker",),
        open=True,
    ),
    MetricSpec(
        "squelch_publish_seconds",
        "gauge",
        "Seconds of the learner at the last publication: weights gathered from the shards, sent to the object store",
        "publish/seconds_{part}",
        ("part",),
        _product(("gathered", "sent")),
        unit="seconds",
    ),
    _gauge("squelch_weight_bundle_bytes", "weights/bytes", "Bytes of one version of the weights", unit="bytes"),
    MetricSpec(
        "squelch_actor_up",
        "gauge",
        "1 while an actor answers its health check, else 0",
        "up/{actor}",
        ("actor",),
        open=True,
    ),
    MetricSpec(
        "squelch_actor_restarts_total",
        "counter",
        "Times that an actor was started again",
        "restarts/{actor}",
        ("actor",),
        open=True,
    ),
    MetricSpec(
        "squelch_build_info", "gauge", "Always 1; the labels say what runs", labels=("version", "python"), open=True
    ),
    MetricSpec(
        "squelch_run_info",
        "gauge",
        "Always 1; the labels say which run this is",
        labels=("run", "environment", "filter"),
        open=True,
    ),
)

SECTIONS: Mapping[str, tuple[MetricSpec, ...]] = {
    "Progress": PROGRESS,
    "Is it learning": LEARNING,
    "Filter": FILTER,
    "Does reasoning depend on the input": REASONING,
    "Where time goes": TIME,
    "Learner": LEARNER,
    "Gradients": GRADIENTS,
    "Health": HEALTH,
}
SPECS: Mapping[str, MetricSpec] = {spec.name: spec for section in SECTIONS.values() for spec in section}
