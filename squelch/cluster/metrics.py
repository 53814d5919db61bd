"""The metrics of a run: the tables of all components, and that of the training loop, the ledger and the fleet.

To add a metric, add it to the table of the component that measures it (here, or in the component's `metrics`
module), and a panel to `deploy.boards`. Importing this module loads none of Ray, torch, vLLM and numpy.
"""

from __future__ import annotations

from types import ModuleType

import squelch.actors.endpoint.metrics
import squelch.actors.gpus.metrics
import squelch.actors.play.metrics
import squelch.actors.rollout.metrics
import squelch.kit.diagnosis.metrics
import squelch.kit.filter.metrics
import squelch.kit.metrics.training
import squelch.kit.scoring.metrics
import squelch.learner.decomposition.metrics
import squelch.learner.metrics
from squelch.actors.play.metrics import FAILURES
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.specification import Section, Table, counter, gauge, product

WAITED_FOR = {
    "rollout": "environment",
    "filter": "filter",
    "train": "learner",
    "publish": "rollout",
    "archive": "archive",
}
"""The actor, or disk, for which the coordinator waits in each part of a step."""
LEDGER_STATES = (
    "issued",
    "in_flight",
    "buffered",
    "kept_waiting",
    "training",
    "trained",
    "dropped",
    "spared",
    "failed",
    "cancelled",
)
"""The counts of `cluster.control.ledger`, in the order of its equation."""
OPEN_STATES = LEDGER_STATES[1:5]
"""The states of tickets that have not ended."""
MEMBER_KINDS = ("rollout", "environment")
DROP_REASONS = ("zero", "below_threshold", "refused", "no_signal")

METRICS: Table = {
    Section.PROGRESS: (
        gauge("squelch_policy_version", "policy_version", "Policy version published last"),
        counter(
            "squelch_tokens_total",
            "tokens/{kind}",
            "Tokens of training trajectories: sampled, in total (fed ones included), learned from",
            product(("sampled", "total", "trained")),
        ),
        gauge("squelch_tokens_per_second", "tokens/per_second", "Sampled tokens per wall second of the last step"),
    ),
    Section.LEARNING: (
        gauge(
            "squelch_validation_success_ratio", "validation/success", "Success on the fixed validation tasks, 0 to 1"
        ),
        gauge("squelch_validation_success_low_ratio", "validation/success_low", "Lower end of its 95% interval"),
        gauge("squelch_validation_success_high_ratio", "validation/success_high", "Upper end of its 95% interval"),
        gauge(
            "squelch_environment_validation_success_ratio",
            "environment/validation/{environment}",
            "Success on the fixed validation tasks of each of several environments",
        ),
        gauge("squelch_validation_best_ratio", "validation/best", "Best validation success so far"),
        gauge(
            "squelch_validation_gain_ratio",
            {"gain": ("mean",), "gain_low": ("low",), "gain_high": ("high",)},
            "Gain in validation success over the first validation, on the same tasks, with its 95% interval",
            labels=("bound",),
        ),
        gauge(
            "squelch_validation_failed_tasks",
            "validation/failed",
            "Tasks of the last validation whose trajectory failed (a time-out, an error); they count as no success",
        ),
        gauge("squelch_validation_step", "validation/step", "Training step that validation measured last"),
        gauge(
            "squelch_gaming_suspected",
            "gaming/raised",
            "1 while kept variance rises and validation success is flat over three validations, else 0",
        ),
        gauge(
            "squelch_kept_variance_rise_ratio",
            "gaming/variance_rise",
            "Fitted rise of the kept variance over the last three validations, as a share of its start",
        ),
        gauge(
            "squelch_validations_gain_ratio",
            "gaming/success_gain",
            "Gain of validation success over the last three validations, paired by task",
        ),
        gauge(
            "squelch_validations_gain_interval_ratio",
            "gaming/success_gain_{bound}",
            "Its 95% interval",
            product(("low", "high")),
        ),
        gauge(
            "squelch_collapsed",
            "collapsed",
            "1 while validation success is below validation.collapse_threshold and was above it before, else 0",
        ),
    ),
    Section.FILTER: (
        gauge(
            "squelch_reward_spread_ratio",
            "reward_spread_ratio",
            "Spread of rewards, as the rule for early stop measures it, divided by its mean over the first 10 steps; "
            "NaN in these",
        ),
        gauge(
            "squelch_low_spread_streak",
            "low_spread_streak",
            "Steps in a row whose spread of rewards is below 10% of that mean",
        ),
    ),
    Section.TIME: (
        counter(
            "squelch_wait_seconds_total",
            "wait/{waiter}/{waited_for}",
            "Seconds that one actor waited for another",
            tuple(("coordinator", actor) for actor in (*WAITED_FOR.values(), "scorer")),
            open=True,
        ),
    ),
    Section.HEALTH: (
        gauge("squelch_staleness_max_versions", "staleness_max", "Largest staleness among the step's groups, versions"),
        gauge("squelch_staleness_mean_versions", "staleness_mean", "Mean staleness of the step's groups, versions"),
        gauge("squelch_staleness_limit_versions", "", "The setting loop.max_staleness, versions"),
        gauge("squelch_weight_parity_limit_nats", "", "Bound on the parity that a rollout worker accepts, nats"),
        gauge(
            "squelch_tickets",
            "ledger/{state}",
            "Tickets by state: issued is the sum of the others",
            product(LEDGER_STATES),
        ),
        gauge(
            "squelch_oldest_ticket_timestamp_seconds",
            "",
            "Unix time since which the oldest ticket of an open state has been in it; NaN if the state has no ticket",
            product(OPEN_STATES),
            labels=("state",),
        ),
        gauge(
            "squelch_ended_tickets",
            "ledger/{state}/{reason}",
            "Tickets that did not end as trained, by state and reason; spared: dropped by the filter, and learned from "
            "but for one term of the loss (filter.target)",
            (*product(("dropped", "spared"), DROP_REASONS), *product(("failed",), (*FAILURES, "refused_by_learner"))),
            open=True,
        ),
        gauge(
            "squelch_actor_up",
            "up/{actor}",
            "1 while an actor answers its health check, 0 once it is lost; one that is starting has no series",
        ),
        gauge(
            "squelch_actor_state",
            "",
            "1 for the present state of a rollout worker or environment actor, else 0",
            labels=("actor", "state"),
        ),
        counter("squelch_actor_restarts_total", "restarts/{actor}", "Restarts of an actor"),
        gauge(
            "squelch_without_progress_seconds",
            "",
            "Seconds with a processor since a busy actor last showed progress; cluster.hung_after_s ends it",
            labels=("actor",),
        ),
        gauge(
            "squelch_wanted_members",
            "wanted/{kind}",
            "Rollout workers and environment actors that the run should have",
            product(MEMBER_KINDS),
        ),
        counter(
            "squelch_scalings_total",
            "scalings/{kind}/{direction}/{by}",
            "Changes of those numbers, by who made them: a command, rollout.count=auto, the announced loss of a node, "
            "or a member that could not be started",
            product(MEMBER_KINDS, ("up", "down"), ("command", "auto", "preemption", "failure")),
        ),
        gauge(
            "squelch_learner_wait_ratio",
            "scaling/wait_share",
            "Share of the last step's time in which the learner waited for groups",
        ),
        gauge(
            "squelch_queue_age_seconds",
            "scaling/queue_age",
            "Seconds that the last step's groups, all of them, waited for the learner",
        ),
        counter(
            "squelch_recovered_steps_total",
            "recovery/steps",
            "Training steps that were replayed because learner ranks were lost",
        ),
        gauge("squelch_store_lag_seconds", "", "Age of the newest state that is whole in the store"),
        counter("squelch_store_failures_total", "", "Uploads to the store that failed"),
        gauge("squelch_disk_free_bytes", "", "Free bytes of the disk that holds the run's folder"),
        gauge("squelch_disk_size_bytes", "", "Size of that disk"),
    ),
}
"""Metrics of the training loop, the ledger and the fleet."""

COMPONENTS: tuple[ModuleType, ...] = (
    squelch.kit.metrics.training,
    squelch.actors.play.metrics,
    squelch.actors.endpoint.metrics,
    squelch.kit.filter.metrics,
    squelch.kit.diagnosis.metrics,
    squelch.kit.scoring.metrics,
    squelch.learner.metrics,
    squelch.learner.decomposition.metrics,
    squelch.actors.rollout.metrics,
    squelch.actors.gpus.metrics,
)
"""Modules with a table `METRICS`: that of any trainer, then in the order of a training step."""

REGISTRY = Registry(COMPONENTS[0].METRICS, METRICS, *(component.METRICS for component in COMPONENTS[1:]))
