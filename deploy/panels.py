"""The dashboard's rows of panels, as data. Names and labels are checked against the metric registry on import.

In a healthy run every query has a value, except in the case that its `empty_when` names; a test checks this with a real
Prometheus. Pure: imports only the registry.
"""

from __future__ import annotations

from deploy.panel import INSTANCE, Panel, Query, Row, selector, series
from deploy.panel import panel_query as _q
from deploy.panel import rate_query as _rate
from deploy.reasoning_panels import REASONING

__all__ = ["ROWS", "selector"]

NO_CRITIC = "the algorithm has no critic"
NO_GRADIENTS = "gradients.every is 0"


def _stat(title: str, help: str, *queries: Query, unit: str = "short") -> Panel:
    return Panel(title, help, queries, unit=unit, kind="stat")


_STEP, _PLANNED = series("squelch_step"), series("squelch_planned_steps")
_MEAN_STEP = f"{series('squelch_step_duration_seconds_sum')} / {series('squelch_step_duration_seconds_count')}"
_P90 = f"sum by (le) (rate({series('squelch_step_duration_seconds_bucket')}[$__rate_interval]))"

NOW = Row(
    "Now",
    (
        _stat(
            "Progress",
            "Completed steps divided by planned steps.",
            Query(f"{_STEP} / {_PLANNED}", "done"),
            unit="percentunit",
        ),
        _stat(
            "Validation success",
            "Success on the fixed validation tasks.",
            _q("squelch_validation_success_ratio", "success"),
            unit="percentunit",
        ),
        _stat(
            "Kept mass",
            "Share of the window's reward variance that the filter kept.",
            _q("squelch_kept_mass_ratio", "kept"),
            unit="percentunit",
        ),
        _stat(
            "Retrieval over chance",
            "First-turn retrieval accuracy in multiples of chance; 1 means that reasoning ignores its input.",
            Query(
                f"{series('squelch_retrieval_accuracy_ratio', scope='first_turn')} / "
                f"{series('squelch_retrieval_chance_ratio', scope='first_turn')}",
                "x chance",
            ),
        ),
        _stat("Step", "Mean wall seconds of a training step.", Query(_MEAN_STEP, "mean"), unit="s"),
        _stat(
            "Time left",
            "Remaining steps times the mean step.",
            Query(f"({_PLANNED} - {_STEP}) * {_MEAN_STEP}", "left"),
            unit="s",
        ),
    ),
)

LEARNING = Row(
    "Is it learning",
    (
        Panel(
            "Success",
            "Validation success with its 95% interval, and success of the training trajectories.",
            (
                _q("squelch_validation_success_ratio", "validation"),
                _q("squelch_validation_success_low_ratio", "validation, low"),
                _q("squelch_validation_success_high_ratio", "validation, high"),
                _q("squelch_success_ratio", "training"),
            ),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Gain over the first validation",
            "Gain on the same tasks, with its 95% interval. If the interval is above 0, the gain is more than noise.",
            (_q("squelch_validation_gain_ratio", "{{bound}}"),),
            unit="percentunit",
        ),
        Panel(
            "Mean reward",
            "Mean episode return without format penalty, of all, kept and dropped groups.",
            (_q("squelch_reward_mean", "{{groups}}"),),
        ),
        Panel(
            "Tasks by reward band",
            "Shares of groups in which no, some or all trajectories succeed. Only mixed groups give a policy gradient.",
            (_q("squelch_tasks_ratio", "{{band}}"),),
            unit="percentunit",
            stack=True,
            low=0,
            high=1,
        ),
        Panel(
            "Form",
            "Share of well-formed turns, and of episodes that reached the turn limit.",
            (_q("squelch_format_valid_ratio", "format valid"), _q("squelch_truncated_ratio", "out of turns")),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Length",
            "Mean reasoning tokens per turn, and turns per trajectory.",
            (_q("squelch_reasoning_length_tokens", "reasoning tokens"), _q("squelch_turns_mean", "turns")),
            low=0,
        ),
        Panel(
            "Loss and gradient",
            "Loss of the last step and the gradient's norm before clipping.",
            (
                _q("squelch_learner_loss", "loss"),
                _q("squelch_learner_policy_loss", "policy term"),
                _q("squelch_learner_grad_norm", "gradient norm"),
                _q("squelch_learner_critic_grad_norm", "critic's gradient norm", NO_CRITIC),
            ),
        ),
        Panel(
            "Ratio and clipping",
            "Probability ratio to the anchor, and share of tokens clipped from below and above.",
            (
                _q("squelch_learner_ratio_mean", "ratio, mean"),
                _q("squelch_learner_clip_low_ratio", "clipped low"),
                _q("squelch_learner_clip_high_ratio", "clipped high"),
            ),
        ),
        Panel(
            "Entropy, KL, mismatch",
            "Entropy of the policy; KL to the reference (if on); mismatch of learner and sampler at step start.",
            (
                _q("squelch_learner_entropy_nats", "entropy"),
                _q("squelch_rollout_entropy_nats", "surprisal of samples"),
                _q("squelch_learner_kl_nats", "KL", "KL is off"),
                _q("squelch_learner_mismatch_nats", "mismatch"),
            ),
            unit="suffix: nats",
        ),
        Panel(
            "Learner against rollout",
            "Effective sample size of the importance weights; shares of tokens whose ratio is outside 0.9 to 1.1, that "
            "the mismatch mask excludes, or whose advantage is 0.",
            (
                _q("squelch_learner_effective_sample_size_ratio", "effective sample size"),
                _q("squelch_learner_mismatch_outside_ratio", "outside 0.9 to 1.1"),
                _q("squelch_learner_masked_ratio", "left out"),
                _q("squelch_learner_zero_advantage_ratio", "advantage 0"),
            ),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Critic",
            "PPO only: share of the returns' variance that the critic explains, mean value, and loss.",
            (
                _q("squelch_learner_explained_variance", "explained variance", NO_CRITIC),
                _q("squelch_learner_value_mean", "value", NO_CRITIC),
                _q("squelch_learner_value_loss", "loss", NO_CRITIC),
            ),
        ),
    ),
)

FILTER = Row(
    "Filter",
    (
        Panel(
            "Reward variance",
            "Mean over the step's groups. If it falls, the gradient's signal falls too.",
            (_q("squelch_reward_variance_mean", "mean"),),
            low=0,
        ),
        Panel(
            "Kept",
            "Share of reward variance and of groups that the filter kept.",
            (_q("squelch_kept_mass_ratio", "variance"), _q("squelch_kept_groups_ratio", "groups")),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Groups by decision",
            "Groups of the last step by the filter's decision.",
            (_q("squelch_step_groups", "{{decision}}"),),
            stack=True,
            low=0,
        ),
        Panel(
            "Groups without variance",
            "Share of the window's groups whose task gradient is 0; they contribute only the regularisers' gradient.",
            (
                Query(
                    f"{series('squelch_zero_variance_groups')} / {series('squelch_window_groups')}",
                    "zero variance",
                ),
            ),
            unit="percentunit",
            low=0,
            high=1,
        ),
        Panel(
            "Steps without signal, refills",
            "Steps in a row in which the filter selected nothing; rounds that played further groups.",
            (_q("squelch_no_signal_streak", "no signal"), _q("squelch_refill_rounds", "refill rounds")),
            low=0,
        ),
        Panel(
            "Loss scale",
            "Factor on the loss of a filtered step.",
            (_q("squelch_loss_scale", "scale"),),
            low=0,
            high=1,
        ),
        Panel(
            "Gradient norms by bucket",
            "Mean norm of a prompt's gradient; Q1 has the lowest reward variance. Needs gradients.every.",
            (_q("squelch_gradient_norm", "Q{{bucket}} {{part}}", NO_GRADIENTS),),
            low=0,
        ),
        Panel(
            "Gradient ratios by bucket",
            "Regulariser over task gradient, signal over noise, and the tightness of Theorem H.2's bound.",
            (_q("squelch_gradient_ratio", "Q{{bucket}} {{ratio}}", NO_GRADIENTS),),
            low=0,
        ),
        Panel(
            "Reward variance by bucket",
            "Mean reward variance of each bucket, and the number of groups.",
            (
                _q("squelch_gradient_reward_variance", "Q{{bucket}}", NO_GRADIENTS),
                _q("squelch_gradient_groups", "groups", NO_GRADIENTS),
            ),
            low=0,
        ),
    ),
)

TIME = Row(
    "Where time goes",
    (
        Panel(
            "Seconds by part",
            "Seconds of the last step by part; parts may overlap if staleness is allowed.",
            (_q("squelch_step_part_seconds", "{{part}}"),),
            unit="s",
            low=0,
        ),
        Panel(
            "Share of wall time",
            "Seconds of each part per second of wall time.",
            (_rate("squelch_part_seconds_total", "{{part}}"),),
            unit="percentunit",
            low=0,
        ),
        Panel(
            "Waiting times",
            "Seconds per second that one party waited for another.",
            (_rate("squelch_wait_seconds_total", "{{waiter}} for {{waited_for}}"),),
            unit="percentunit",
            low=0,
        ),
        Panel(
            "Step duration",
            "Seconds of the last step, mean, and 90th percentile.",
            (
                _q("squelch_step_part_seconds", "last", part="step"),
                Query(_MEAN_STEP, "mean"),
                Query(f"histogram_quantile(0.9, {_P90})", "90%", "no step ended recently"),
            ),
            unit="s",
            low=0,
        ),
        Panel(
            "Tokens",
            "Tokens per second: sampled in the last step, and by kind over time.",
            (_q("squelch_tokens_per_second", "sampled, last step"), _rate("squelch_tokens_total", "{{kind}}")),
            low=0,
        ),
        Panel(
            "Learner's step",
            "Seconds of the learner's last step by part.",
            (_q("squelch_learner_part_seconds", "{{part}}"),),
            unit="s",
            stack=True,
            low=0,
        ),
    ),
)

HEALTH = Row(
    "Health",
    (
        Panel(
            "Tickets by state",
            "Number of issued tickets, which equals the sum of the other states. Open states are 0 at the end.",
            (_q("squelch_tickets", "{{state}}"),),
            low=0,
        ),
        Panel(
            "Tickets that ended untrained",
            "Dropped and failed tickets by reason.",
            (_q("squelch_ended_tickets", "{{state}}: {{reason}}", "every group was kept"),),
            low=0,
        ),
        Panel(
            "Failed trajectories",
            "Number of failed trajectories by reason.",
            (_q("squelch_trajectory_failures_total", "{{reason}}"),),
            low=0,
        ),
        Panel(
            "Staleness",
            "Learner's version minus the oldest version that sampled a token, largest and mean over the step's groups.",
            (_q("squelch_staleness_max_versions", "largest"), _q("squelch_staleness_mean_versions", "mean")),
            low=0,
        ),
        Panel(
            "Policy versions",
            "The published version, and the version from which each rollout worker samples.",
            (_q("squelch_policy_version", "published"), _q("squelch_worker_policy_version", "{{worker}}")),
        ),
        Panel(
            "Weight update",
            "Seconds of the last update: gathering and sending by the learner, then loading by rollout worker.",
            (
                _q("squelch_publish_seconds", "learner {{part}}"),
                _q("squelch_weight_update_seconds", "{{worker}} {{part}}"),
            ),
            unit="s",
            low=0,
        ),
        Panel(
            "Weight parity",
            "Difference of log-probabilities between rollout worker and learner on the parity probe after an update.",
            (
                _q("squelch_weight_parity_nats", "{{worker}}, mean"),
                _q("squelch_weight_parity_max_nats", "{{worker}}, largest"),
            ),
            unit="suffix: nats",
            low=0,
        ),
        Panel(
            "Actors up",
            "1 while an actor answers its health check, and while its weights equal the published weights.",
            (
                _q("squelch_actor_up", "{{actor}}"),
                _q("squelch_weight_checksum_ok", "checksum, {{worker}}"),
            ),
            low=0,
            high=1,
        ),
        Panel(
            "Restarts",
            "Restarts of an actor.",
            (_q("squelch_actor_restarts_total", "{{actor}}", "nothing died"),),
            low=0,
        ),
        Panel(
            "Memory of the coordinator's process",
            "Resident memory in bytes.",
            (Query(f"process_resident_memory_bytes{{{INSTANCE}}}", "resident"),),
            unit="bytes",
            low=0,
        ),
    ),
)

ROWS = (NOW, LEARNING, REASONING, FILTER, TIME, HEALTH)
