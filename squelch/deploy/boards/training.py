"""The board of training: does success rise, and what does the optimiser do. Pure: imports only the registry."""

from __future__ import annotations

from squelch.deploy.boards.panel import Board, Query, amount, mean_of, nats, panel, row, series, share, stat
from squelch.deploy.boards.panel import panel_query as _q
from squelch.deploy.boards.panel import per_second as _per_second

NO_CRITIC = "the algorithm has no critic"
NO_DROPPED = "the filter dropped no group"
ONE = "the run has one environment"
_STEP, _PLANNED = series("squelch_step"), series("squelch_planned_steps")
_MEAN_STEP = mean_of("squelch_step_duration_seconds")

NOW = row(
    "Now",
    "reference/metrics.md",
    stat(
        "Progress",
        "Completed steps divided by planned steps.",
        Query(f"{_STEP} / {_PLANNED}", "done"),
        unit="percentunit",
    ),
    stat(
        "Validation success",
        "Success on the fixed validation tasks.",
        _q("squelch_validation_success_ratio", "success"),
        unit="percentunit",
    ),
    stat(
        "Kept mass",
        "Share of the window's reward variance that the filter kept.",
        _q("squelch_kept_mass_ratio", "kept"),
        unit="percentunit",
    ),
    stat(
        "Retrieval over chance",
        "First-turn retrieval accuracy in multiples of chance; 1 means that reasoning ignores its input.",
        Query(
            f"{series('squelch_retrieval_accuracy_ratio', scope='first_turn')} / "
            f"{series('squelch_retrieval_chance_ratio', scope='first_turn')}",
            "x chance",
        ),
    ),
    stat("Step", "Mean wall seconds of a training step.", Query(_MEAN_STEP, "mean"), unit="s"),
    stat(
        "Time left",
        "Remaining steps times the mean step.",
        Query(f"({_PLANNED} - {_STEP}) * {_MEAN_STEP}", "left"),
        unit="s",
    ),
)

LEARNING = row(
    "Is it learning",
    "reference/metrics.md",
    share(
        "Success",
        "Validation success with its 95% interval, and success of the training trajectories.",
        _q("squelch_validation_success_ratio", "validation"),
        _q("squelch_validation_success_low_ratio", "validation, low"),
        _q("squelch_validation_success_high_ratio", "validation, high"),
        _q("squelch_success_ratio", "training"),
    ),
    panel(
        "Gain over the first validation",
        "Gain on the same tasks, with its 95% interval. If the interval is above 0, the gain is more than noise.",
        _q("squelch_validation_gain_ratio", "{{bound}}"),
        unit="percentunit",
    ),
    panel(
        "Mean reward",
        "Mean episode return without format penalty, of all, kept and dropped groups.",
        _q("squelch_reward_mean", "{{groups}}"),
    ),
    share(
        "Form",
        "Share of well-formed turns, and of episodes that reached the turn limit.",
        _q("squelch_format_valid_ratio", "format valid"),
        _q("squelch_truncated_ratio", "out of turns"),
    ),
    amount(
        "Length",
        "Mean reasoning tokens per turn (all tokens where it was never closed), and turns per trajectory.",
        _q("squelch_reasoning_length_tokens", "reasoning tokens"),
        _q("squelch_turns_mean", "turns"),
    ),
    amount(
        "Actions",
        "Mean actions that the environment executed, per trajectory and per turn. They fall where a penalty of an "
        "action outweighs what further actions earn.",
        _q("squelch_actions_mean", "a trajectory"),
        _q("squelch_turn_actions_mean", "a turn"),
    ),
    share(
        "Turns cut at the token limit",
        "Share of turns that reached sampling.max_tokens_per_turn: in their reasoning, where it hides how long the "
        "reasoning would have been, or in the answer after it.",
        _q("squelch_turns_cut_ratio", "in the {{where}}"),
    ),
    amount(
        "Tokens",
        "Tokens per second: sampled in the last step, and by kind over the steps that ended last.",
        _q("squelch_tokens_per_second", "sampled, last step"),
        _per_second("squelch_tokens_total", "{{kind}}"),
    ),
)

AGENTS = (
    amount(
        "Calls of agents",
        "Calls of agents by outcome over the steps that ended last. Refused ones say so to the agent, with the reason.",
        _per_second("squelch_agent_calls_total", "{{outcome}}", "no agent plays"),
    ),
    amount(
        "Fields of agents' calls",
        "Calls with a field that is taken otherwise than asked (the run's sampling counts), or that is not known.",
        _per_second("squelch_agent_fields_total", "{{field}} ({{treatment}})", "no agent plays"),
    ),
)

ENVIRONMENTS = row(
    "By environment",
    "guide/bring-your-own.md",
    share(
        "Success by environment",
        "Success of each environment's fixed validation tasks, and of its training trajectories.",
        _q("squelch_environment_validation_success_ratio", "{{environment}}, validation", ONE),
        _q("squelch_environment_success_ratio", "{{environment}}, training", ONE),
    ),
    panel(
        "Reward by environment",
        "Mean episode return without format penalty.",
        _q("squelch_environment_reward_mean", "{{environment}}", ONE),
    ),
    amount(
        "Reward variance by environment",
        "Mean reward variance of the groups. Where one is far larger, filter.scope=environment ranks within each.",
        _q("squelch_environment_reward_variance_mean", "{{environment}}", ONE),
    ),
    share(
        "Kept share by environment",
        "Share of each environment's groups in the step that was kept.",
        _q("squelch_environment_kept_groups_ratio", "{{environment}}", ONE),
    ),
    amount(
        "Groups by environment",
        "Groups of the step: their ratio is that of the weights, within one group over the whole run.",
        _q("squelch_environment_groups", "{{environment}}", ONE),
    ),
    amount(
        "Form and turns by environment",
        "Share of well-formed turns, and turns per trajectory.",
        _q("squelch_environment_format_valid_ratio", "{{environment}}, format valid", ONE),
        _q("squelch_environment_turns_mean", "{{environment}}, turns", ONE),
    ),
    *AGENTS,
)

OPTIMISER = row(
    "Optimiser",
    "guide/algorithms.md",
    panel(
        "Loss and gradient",
        "Loss of the last step and the gradient's norm before clipping.",
        _q("squelch_learner_loss", "loss"),
        _q("squelch_learner_policy_loss", "policy term"),
        _q("squelch_learner_grad_norm", "gradient norm"),
        _q("squelch_learner_critic_grad_norm", "critic's gradient norm", NO_CRITIC),
    ),
    panel(
        "Ratio and clipping",
        "Probability ratio to the anchor, and share of tokens clipped from below and above.",
        _q("squelch_learner_ratio_mean", "ratio, mean"),
        _q("squelch_learner_clip_low_ratio", "clipped low"),
        _q("squelch_learner_clip_high_ratio", "clipped high"),
    ),
    nats(
        "Entropy, KL, mismatch",
        "Entropy of the policy; KL to the reference (if on); mismatch of learner and sampler at step start.",
        _q("squelch_learner_entropy_nats", "entropy"),
        _q("squelch_rollout_entropy_nats", "surprisal of samples"),
        _q("squelch_learner_kl_nats", "KL", "KL is off"),
        _q("squelch_learner_mismatch_nats", "mismatch"),
        _q("squelch_learner_mismatch_on_policy_nats", "mismatch, on-policy tokens"),
    ),
    share(
        "Learner against rollout",
        "Effective sample size of the importance weights; shares of tokens whose ratio is outside 0.9 to 1.1, that "
        "the mismatch mask excludes, whose log-ratio is clamped at 20 nats, or whose advantage is 0.",
        _q("squelch_learner_effective_sample_size_ratio", "effective sample size"),
        _q("squelch_learner_mismatch_outside_ratio", "outside 0.9 to 1.1"),
        _q("squelch_learner_masked_ratio", "left out"),
        _q("squelch_learner_clamped_ratio", "clamped"),
        _q("squelch_learner_zero_advantage_ratio", "advantage 0"),
    ),
    panel(
        "Critic",
        "PPO only: share of the returns' variance that the critic explains, mean value, and loss.",
        _q("squelch_learner_explained_variance", "explained variance", NO_CRITIC),
        _q("squelch_learner_value_mean", "value", NO_CRITIC),
        _q("squelch_learner_value_loss", "loss", NO_CRITIC),
    ),
    panel(
        "Loss scale",
        "Factor on the loss of a filtered step, and the share of its dropped groups that have reward variance.",
        _q("squelch_loss_scale", "scale"),
        _q("squelch_dropped_with_variance_ratio", "dropped with variance", NO_DROPPED),
        low=0,
        high=1,
    ),
)

BOARD = Board("squelch-training", "Training", "Is it learning?", (NOW, LEARNING, ENVIRONMENTS, OPTIMISER))
