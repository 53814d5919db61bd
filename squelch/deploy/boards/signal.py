"""The board of the signal: how much reward variance there is, what the filter keeps of it, and what the gradient shows.

Pure: imports only the registry.
"""

from __future__ import annotations

from squelch.deploy.boards.panel import NO_KINDS, Board, Query, amount, panel, per_second, row, seconds, series, share
from squelch.deploy.boards.panel import panel_query as _q

NOTHING_STARVED = f"{NO_KINDS}, or none is starved"
NO_GRADIENTS = "gradients.every is 0"
NO_REPLAYS = "filter.replays is unset, and filter.statistic is not policy_variance"
_BY_VARIANCE = series("squelch_reward_variance_groups")
_POLICY, _POLICY_ERROR = series("squelch_policy_variance_mean"), series("squelch_policy_variance_error")
_GAP, _GAP_ERROR = series("squelch_replay_gap_mean"), series("squelch_replay_gap_error")

VARIANCE = row(
    "Reward variance",
    "guide/filter.md",
    panel(
        "Groups by reward variance",
        "Groups of the last step by reward variance. If the lowest band fills, the filter has nothing to keep.",
        Query(f"sum by (le) (label_replace({_BY_VARIANCE}, 'le', '$1', 'up_to', '(.+)'))", "{{le}}"),
        kind="heatmap",
    ),
    amount(
        "Reward variance",
        "Mean over the step's groups. If it falls, the gradient's signal falls too.",
        _q("squelch_reward_variance_mean", "mean"),
    ),
    amount(
        "Spread of rewards against the start",
        "Spread of rewards divided by its mean over the first 10 steps; steps in a row below 10% of it, of which 5 "
        "raise an alert.",
        _q("squelch_reward_spread_ratio", "relative spread", "the run has at most 10 steps"),
        _q("squelch_low_spread_streak", "steps below 10%"),
    ),
    share(
        "Tasks by reward band",
        "Shares of groups in which no, some or all trajectories succeed. Only mixed groups give a policy gradient.",
        _q("squelch_tasks_ratio", "{{band}}"),
        stack=True,
    ),
)

NOISE = row(
    "Environment noise",
    "guide/filter.md",
    panel(
        "Policy variance and noise",
        "Reward variance, and its parts by replays: the policy's, unclipped, and the environment's noise. If noise "
        "is most of it, the plain filter selects noise.",
        _q("squelch_reward_variance_mean", "reward variance"),
        _q("squelch_policy_variance_mean", "policy", NO_REPLAYS),
        Query(f"{_POLICY} - 2 * {_POLICY_ERROR}", "policy, - 2 standard errors", NO_REPLAYS),
        Query(f"{_POLICY} + 2 * {_POLICY_ERROR}", "policy, + 2 standard errors", NO_REPLAYS),
        _q("squelch_noise_variance_mean", "noise", NO_REPLAYS),
    ),
    amount(
        "Groups with significant policy variance",
        "Groups of the last step whose policy variance is above 2 standard errors, and all groups that the filter "
        "ranked.",
        _q("squelch_policy_variance_told_groups", "significant", NO_REPLAYS),
        _q("squelch_window_groups", "all"),
    ),
    panel(
        "Replays minus originals",
        "Mean return of replays minus that of the original trajectories, with 2 standard errors. It is 0 in "
        "expectation if plans do not react to noise. If it differs from 0, the policy variance is biased.",
        _q("squelch_replay_gap_mean", "difference", NO_REPLAYS),
        Query(f"{_GAP} - 2 * {_GAP_ERROR}", "- 2 standard errors", NO_REPLAYS),
        Query(f"{_GAP} + 2 * {_GAP_ERROR}", "+ 2 standard errors", NO_REPLAYS),
    ),
    amount(
        "Seconds of replays",
        "Seconds that replays wait for their environment, summed over trajectories, and failed replays, both per "
        "second of the run's time.",
        per_second("squelch_replay_seconds_total", "seconds", NO_REPLAYS),
        per_second("squelch_replays_total", "failed replays", "no replay failed", outcome="failed"),
    ),
)

FEW_VALIDATIONS = "there are fewer than three validations, or validation.every is 0"
GAMING = panel(
    "Is the criterion gamed",
    "Rise of the kept variance over the last three validations, and the gain of validation success meanwhile with its "
    "95% interval. Variance that rises while success is flat raises the warning (1).",
    _q("squelch_kept_variance_rise_ratio", "rise of kept variance", FEW_VALIDATIONS),
    _q("squelch_validations_gain_ratio", "gain of success", FEW_VALIDATIONS),
    _q("squelch_validations_gain_interval_ratio", "gain, {{bound}}", FEW_VALIDATIONS),
    _q("squelch_gaming_suspected", "warning"),
)

FILTER = row(
    "What the filter keeps",
    "guide/filter.md",
    share(
        "Kept",
        "Share of reward variance and of groups that the filter kept.",
        _q("squelch_kept_mass_ratio", "variance"),
        _q("squelch_kept_groups_ratio", "groups"),
    ),
    amount(
        "Groups by decision",
        "Groups of the last step by the filter's decision.",
        _q("squelch_step_groups", "{{decision}}"),
        stack=True,
    ),
    share(
        "Groups without variance",
        "Share of the window's groups whose task gradient is 0; they contribute only the regularisers' gradient.",
        Query(
            f"{series('squelch_zero_variance_groups')} / {series('squelch_window_groups')}",
            "zero variance",
        ),
    ),
    amount(
        "Steps without signal, refills",
        "Steps in a row in which the filter selected nothing; rounds that played further groups.",
        _q("squelch_no_signal_streak", "no signal"),
        _q("squelch_refill_rounds", "refill rounds"),
    ),
    GAMING,
)

_TOKENS = {kind: series("squelch_tokens_total", kind=kind) for kind in ("sampled", "trained")}
_SPARED = f"({_TOKENS['sampled']} - ignoring (kind) {_TOKENS['trained']})"
_ROWS = f"{series('squelch_trajectories_total', outcome='finished')} - ignoring (outcome)"
_SECONDS = {part: series("squelch_part_seconds_total", part=part) for part in ("train", "rollout")}
_PLAYED = f"sum by (instance, job) ({series('squelch_groups_total')})"
_LEARNED = series("squelch_trained_groups_total")
_LEFT = f"(1 - {_LEARNED} / on (instance, job) {_PLAYED})"
_GAIN = f"100 * {series('squelch_validation_gain_ratio', bound='mean')} / on (instance, job)"

SAVED = row(
    "What the filter saves, and costs",
    "guide/filter.md",
    amount(
        "Tokens not trained on",
        "Sampled tokens that no update learned from, since the start.",
        Query(_SPARED, "tokens"),
    ),
    amount(
        "Rows and updates not trained on",
        "Trajectories that no update learned from, and steps without an update, since the start.",
        Query(f"{_ROWS} {series('squelch_trained_trajectories_total')}", "trajectories"),
        _q("squelch_skipped_updates_total", "updates"),
    ),
    seconds(
        "Seconds saved, seconds thrown away",
        "Saved: training seconds of a trained token, times the tokens not trained on, an estimate. The cost: "
        "rollout seconds times the share of groups that were not learned from.",
        Query(
            f"{_SECONDS['train']} / on (instance, job) {_TOKENS['trained']} * on (instance, job) {_SPARED}",
            "training, saved",
        ),
        Query(f"{_SECONDS['rollout']} * on (instance, job) {_LEFT}", "rollouts, thrown away"),
    ),
    panel(
        "Gain per update and per trained group",
        "Gain in validation success since the first validation, for 100 optimizer steps and for 100 groups that "
        "were learned from. Compare runs with and without the filter.",
        Query(f"{_GAIN} {series('squelch_optimizer_steps_total')}", "100 updates"),
        Query(f"{_GAIN} {_LEARNED}", "100 groups"),
        unit="percentunit",
    ),
    amount(
        "Groups thrown away, refills",
        "The cost in rollouts since the start: groups that were played and not learned from, and rounds that "
        "played further groups in their place.",
        Query(f"{_PLAYED} - on (instance, job) {_LEARNED}", "groups"),
        _q("squelch_refills_total", "refill rounds"),
    ),
)

KINDS = row(
    "Which kinds of tasks are kept",
    "guide/filter.md",
    amount(
        "Effective number of kinds",
        "(sum w)^2 / sum w^2 over the kinds of tasks among the last filter.kind_window groups, of kept and of all "
        "groups. If the first falls below the second, the filter narrows what is learned.",
        _q("squelch_kinds_effective", "kept", NO_KINDS),
        _q("squelch_kinds_effective_played", "played", NO_KINDS),
        _q("squelch_kinds", "number of kinds", NO_KINDS),
    ),
    amount(
        "Starved kinds",
        "Kinds that were played and never kept in the window, the steps since the longest starved was last kept, "
        "and the groups that a floor added.",
        _q("squelch_kinds_starved", "starved kinds", NO_KINDS),
        _q("squelch_kinds_oldest_steps", "longest wait, steps", NO_KINDS),
        _q("squelch_floor_groups", "groups added by floors"),
    ),
    share(
        "Success of kinds",
        "Success by kind, and of the starved kinds together. A starved kind near 1 is solved; near 0 it is too "
        "hard, or the policy has given it up.",
        _q("squelch_kind_success_ratio", "{{kind}}", NO_KINDS),
        _q("squelch_kinds_starved_success_ratio", "starved kinds", NOTHING_STARVED),
    ),
    share(
        "Kept share by kind",
        "Share of each kind's groups that was kept.",
        _q("squelch_kind_kept_ratio", "{{kind}}", NO_KINDS),
    ),
    amount(
        "Starvation by kind",
        "Steps since each kind was last kept.",
        _q("squelch_kind_starved_steps", "{{kind}}", NO_KINDS),
    ),
)

GRADIENTS = row(
    "Gradients by reward variance",
    "guide/gradients.md",
    amount(
        "Gradient norms by bucket",
        "Mean norm of a prompt's gradient; Q1 has the lowest reward variance. Needs gradients.every.",
        _q("squelch_gradient_norm", "Q{{bucket}} {{part}}", NO_GRADIENTS),
    ),
    amount(
        "Gradient ratios by bucket",
        "Regulariser over task gradient, signal over noise, and the tightness of Theorem H.2's bound.",
        _q("squelch_gradient_ratio", "Q{{bucket}} {{ratio}}", NO_GRADIENTS),
    ),
    amount(
        "Reward variance by bucket",
        "Mean reward variance of each bucket, and the number of groups.",
        _q("squelch_gradient_reward_variance", "Q{{bucket}}", NO_GRADIENTS),
        _q("squelch_gradient_groups", "groups", NO_GRADIENTS),
    ),
)

ROWS = (VARIANCE, FILTER, SAVED, NOISE, KINDS, GRADIENTS)
BOARD = Board("squelch-signal", "Signal", "Do rewards differ, and is it learned from?", ROWS)
