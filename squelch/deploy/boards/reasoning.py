"""The board of reasoning: does it depend on its input. Pure: imports only the registry."""

from __future__ import annotations

from squelch.deploy.boards.panel import NO_KINDS, Board, Query, amount, nats, panel, row, series, share
from squelch.deploy.boards.panel import panel_query as _q
from squelch.kit.diagnosis.metrics import REGIMES

SCOPE = "{{scope}}"
BOUND = "{{scope}}, {{bound}}"
FEW_PROMPTS = "a step has fewer than 6 distinct prompts"
NO_PICTURES = "the environment shows no pictures, or too few tasks of one layout"
NO_ANSWER = "the probe's answers are not scored"
NO_TWINS = "hard negatives are not scored: the environment has none, or `scorer.share` no room (`scorer.probe.hard`)"
NO_ALARM = "input dependence is not falling"


def _in_regime(regime: str) -> str:
    """MI-Est of the first turn while it is in this regime."""
    present = series("squelch_reasoning_regime", scope="first_turn", regime=regime)
    return f"{series('squelch_mi_est_nats', scope='first_turn')} and on (instance) {present} == 1"


DEPENDENCE = row(
    "Does reasoning depend on its input",
    "guide/reasoning.md",
    share(
        "Retrieval accuracy",
        "Share of reasonings whose own prompt is the most likely, with its 95% interval over prompts. At chance, "
        "or below the null's 95% point (prompts assigned at random), reasoning is a template.",
        _q("squelch_retrieval_accuracy_ratio", SCOPE),
        _q("squelch_retrieval_accuracy_interval_ratio", BOUND),
        _q("squelch_retrieval_chance_ratio", f"{SCOPE}, chance"),
        _q("squelch_retrieval_accuracy_null_ratio", f"{SCOPE}, null"),
    ),
    nats(
        "MI estimate per token",
        "MI-Est of Table 1 with its 95% interval over prompts, and its null; 0 in template collapse.",
        _q("squelch_mi_est_nats", SCOPE),
        _q("squelch_mi_est_interval_nats", BOUND),
        _q("squelch_mi_est_null_nats", f"{SCOPE}, null"),
    ),
    nats(
        "MI estimate per sequence",
        "MI-Seq-Est of Table 1 with its 95% interval over prompts, its null, and its upper bound.",
        _q("squelch_mi_seq_est_nats", SCOPE),
        _q("squelch_mi_seq_est_interval_nats", BOUND),
        _q("squelch_mi_seq_est_null_nats", f"{SCOPE}, null"),
        _q("squelch_mi_upper_bound_nats", f"{SCOPE}, bound"),
        _q("squelch_mi_seq_est_standard_error_nats", f"{SCOPE}, standard error"),
    ),
    share(
        "Recall at k, first turn",
        "Share of reasonings whose own prompt is among the k most likely, with 95% intervals.",
        _q("squelch_recall_ratio", "k = {{k}}", scope="first_turn"),
        _q("squelch_recall_interval_ratio", "k = {{k}}, {{bound}}", FEW_PROMPTS, scope="first_turn"),
    ),
    panel(
        "MI z-scores",
        "MI-Est divided by the standard deviation of the marginals, in this batch or as a moving average.",
        _q("squelch_mi_zscore", f"z, {SCOPE}"),
        _q("squelch_mi_zscore_interval", f"z, {BOUND}"),
        _q("squelch_mi_zscore_ema", f"z EMA, {SCOPE}"),
        _q("squelch_mi_zscore_ema_interval", f"z EMA, {BOUND}"),
    ),
    panel(
        "p-value of input dependence",
        "Above 0.05 the metrics do not differ significantly from reasoning that ignores its input.",
        _q("squelch_dependence_p_value", f"{{{{figure}}}}, {SCOPE}"),
        low=0,
        high=1,
    ),
)

PROBE = row(
    "Fixed probe",
    "guide/reasoning.md",
    nats(
        "MI on the fixed probe",
        "The same validation tasks at every evaluation, sampled with the same seeds: MI with its 95% interval, the "
        "upper bound that leaves the own prompt out, the null, and the ceiling.",
        _q("squelch_probe_mi_nats", "MI"),
        _q("squelch_probe_mi_interval_nats", "MI, {{bound}}"),
        _q("squelch_probe_mi_upper_nats", "own left out"),
        _q("squelch_probe_mi_upper_interval_nats", "own left out, {{bound}}"),
        _q("squelch_probe_mi_null_nats", "null"),
        _q("squelch_probe_ceiling_nats", "ceiling"),
        _q("squelch_probe_mi_standard_error_nats", "standard error"),
        _q("squelch_probe_mi_upper_standard_error_nats", "own left out, standard error"),
    ),
    nats(
        "MI against near variations",
        "Hard negatives: each reasoning under its own prompt and those of seven tasks that differ in one part. It "
        "can fall where the MI on the fixed probe stands at its ceiling. Best answer changes: the share of these "
        "tasks in which a solver answers otherwise.",
        _q("squelch_probe_hard_mi_nats", "MI", NO_TWINS),
        _q("squelch_probe_hard_mi_interval_nats", "MI, {{bound}}", NO_TWINS),
        _q("squelch_probe_hard_ceiling_nats", "ceiling", NO_TWINS),
        _q("squelch_probe_hard_mi_standard_error_nats", "standard error", NO_TWINS),
        _q("squelch_probe_hard_answers_changed_ratio", "best answer changes, share", NO_TWINS),
    ),
    nats(
        "Change of the probe's MI",
        "Since the first evaluation, paired by task, with its 95% interval. If the interval is below 0, reasoning "
        "depends less on its task than before training.",
        _q("squelch_probe_mi_change_nats", "change"),
        _q("squelch_probe_mi_change_interval_nats", "change, {{bound}}"),
        _q("squelch_probe_mi_change_standard_error_nats", "change, standard error"),
    ),
    panel(
        "Is the probe large enough",
        "p-value against reasoning that ignores its task. saturated: 1 if an estimate is within 0.25 nats of its "
        "ceiling, so that more tasks are needed to measure it, for the probe and for the step's own matrix.",
        _q("squelch_probe_p_value", "p-value"),
        _q("squelch_probe_saturated", "probe saturated"),
        _q("squelch_mi_saturated", f"saturated, {SCOPE}"),
        low=0,
        high=1,
    ),
    nats(
        "Entropy on the fixed probe",
        "H(Z|X) of the probe's reasonings, nats per token: how much they vary.",
        _q("squelch_probe_conditional_entropy_nats", "H(Z|X)"),
        low=0,
    ),
    amount(
        "Size of the probe",
        "Tasks and reasonings of the last evaluation, those left out, the share of pairs scored, and its cost.",
        _q("squelch_probe_tasks", "tasks"),
        _q("squelch_probe_reasonings", "reasonings"),
        _q("squelch_probe_excluded_reasonings", "left out"),
        _q("squelch_probe_pairs_ratio", "share of the pairs"),
        _q("squelch_probe_hard_tasks", "tasks with variations", NO_TWINS),
        _q("squelch_probe_hard_pairs", "pairs with variations", NO_TWINS),
        _q("squelch_probe_passes", "forward passes"),
        _q("squelch_probe_cpu_seconds", "CPU seconds"),
    ),
    amount(
        "Last probe evaluation",
        "The step after which the probe was evaluated last, and the policy version that was evaluated.",
        _q("squelch_probe_step", "step"),
        _q("squelch_probe_version", "version"),
    ),
)

ANSWERS = row(
    "Does the answer follow from the reasoning",
    "guide/reasoning.md",
    nats(
        "Links from reasoning to answer",
        "Fixed probe, nats per answer. dependence (D): gain of the own reasoning over reasonings of other "
        "prompts; 0 means that the answer ignores its reasoning. information: the same within a prompt, lower "
        "and upper bound. past_reasoning: gain of the prompt beyond the reasoning.",
        _q("squelch_answer_link_nats", "{{link}}", NO_ANSWER),
        _q("squelch_answer_link_interval_nats", "{{link}}, {{bound}}", NO_ANSWER),
        _q("squelch_answer_link_null_nats", "{{link}}, null", NO_ANSWER),
        _q("squelch_answer_link_ceiling_nats", "information, ceiling", NO_ANSWER),
        _q("squelch_answer_link_standard_error_nats", "{{link}}, standard error", NO_ANSWER),
    ),
    share(
        "D as a share of the surprise",
        "How much of the answers' surprise under reasonings of other prompts their own reasoning removes, with its 95% "
        "interval. D grows with the length of an answer, this share does not.",
        _q("squelch_answer_dependence_ratio", "D / surprise", NO_ANSWER),
        _q("squelch_answer_dependence_interval_ratio", "{{bound}}", NO_ANSWER),
        _q("squelch_answer_dependence_standard_error_ratio", "standard error", NO_ANSWER),
    ),
    panel(
        "Is the dependence significant",
        "1 if the answer follows from the reasoning; p-values against randomly permuted reasonings.",
        _q("squelch_answer_follows", "answer follows", NO_ANSWER),
        _q("squelch_answer_link_p_value", "{{link}}, p-value", NO_ANSWER),
        low=0,
        high=1,
    ),
    nats(
        "Answer after a part of the reasoning",
        "log p of the answers after the first 0, 25, ... 100 percent of their reasoning. A flat curve means "
        "that the answer was fixed before the reasoning; its start is off-distribution.",
        _q("squelch_answer_truncated_nats", "{{share}} %", NO_ANSWER),
        _q("squelch_answer_truncated_interval_nats", "{{share}} %, {{bound}}", NO_ANSWER),
    ),
    nats(
        "Surprise of the answers",
        "-log p of the answers under reasonings of other prompts, and after their own: D is the difference.",
        _q("squelch_answer_surprise_nats", "other reasonings", NO_ANSWER),
        _q("squelch_answer_entropy_nats", "own reasoning, H(A|X,Z)", NO_ANSWER),
        low=0,
    ),
    amount(
        "Answers scored",
        "Answers of the last evaluation, those left out by reason, and the share of the pairs scored.",
        _q("squelch_scored_answers", "answers", NO_ANSWER),
        _q("squelch_unscored_answers", "left out, {{reason}}", NO_ANSWER),
        _q("squelch_answer_references_ratio", "share of the pairs", NO_ANSWER),
    ),
)

MODALITY = row(
    "Does the reasoning look at its pictures",
    "guide/reasoning.md",
    nats(
        "MI by modality",
        "Fixed probe and trajectory scope, nats per reasoning. picture (D_V): gain of the own pictures over others', "
        "text as it is; text (D_T): the reverse. blank: loss under pictures of one colour, which is not an MI.",
        _q("squelch_modality_nats", f"{{{{part}}}}, {SCOPE}", NO_PICTURES),
        _q("squelch_modality_interval_nats", f"{{{{part}}}}, {BOUND}", NO_PICTURES),
        _q("squelch_modality_standard_error_nats", f"{{{{part}}}}, standard error, {SCOPE}", NO_PICTURES),
        _q("squelch_modality_surprise_nats", f"{{{{part}}}}, surprise, {SCOPE}", NO_PICTURES),
        _q("squelch_modality_blank_nats", "blank", NO_PICTURES),
    ),
    panel(
        "Is the dependence on a part significant",
        "1 if the reasoning depends on the part; p-values against parts drawn at random. text alone: 1 if it depends "
        "on the text and not on the pictures. On neither, while MI is significant: the parts say the same.",
        _q("squelch_modality_depends", f"{{{{part}}}}, {SCOPE}", NO_PICTURES),
        _q("squelch_modality_p_value", f"{{{{part}}}}, p-value, {SCOPE}", NO_PICTURES),
        _q("squelch_modality_text_alone", f"text alone, {SCOPE}", NO_PICTURES),
        low=0,
        high=1,
    ),
)

REGIME = row(
    "Entropy and regime",
    "guide/reasoning.md",
    amount(
        "Retrieval accuracy against H(Z|X)",
        "In template collapse retrieval falls while H(Z|X) stays high, so that entropy alone does not show it.",
        _q("squelch_retrieval_accuracy_ratio", "retrieval", scope="first_turn"),
        _q("squelch_conditional_entropy_nats", "H(Z|X), nats per token", scope="first_turn"),
    ),
    nats(
        "Entropies",
        "H(Z) - H(Z|X) is the information that reasoning has about its input; with 95% intervals over prompts.",
        _q("squelch_conditional_entropy_nats", f"H(Z|X), {SCOPE}"),
        _q("squelch_conditional_entropy_interval_nats", f"H(Z|X), {BOUND}"),
        _q("squelch_marginal_entropy_nats", f"H(Z), {SCOPE}"),
        _q("squelch_marginal_entropy_interval_nats", f"H(Z), {BOUND}"),
    ),
    panel(
        "Regime",
        "mute: hardly any reasoning. template: it does not depend on its input. blind: it depends on the text, and not "
        "on the pictures. decorative: the answer does not follow from it. private_code: it does, but the judge finds "
        "it untrue. grounded: none of these. unknown: the metric that decides is not known.",
        _q("squelch_reasoning_regime", "{{regime}}", scope="first_turn"),
        kind="state-timeline",
    ),
    nats(
        "Entropy and mutual information",
        "The plane of Figure 1: H(Z|X) across, MI-Est upwards, one colour for each regime. In template collapse "
        "the points sink at high entropy; where reasoning becomes one text for every input they also move left.",
        _q("squelch_conditional_entropy_nats", "H(Z|X)", scope="first_turn"),
        *(Query(_in_regime(regime), regime, "the run was in another regime") for regime in REGIMES),
        kind="xychart",
    ),
    panel(
        "Alarm",
        "Change-point statistic of MI-Seq-Est, which raises the alarm above 4; start of the fall; reward's trend.",
        _q("squelch_dependence_cusum", "statistic"),
        _q("squelch_dependence_alarm", "alarm"),
        _q("squelch_probe_alarm", "fixed probe, {{figure}}"),
        _q("squelch_reasoning_blind", "blind", NO_PICTURES),
        _q("squelch_dependence_alarm_armed", "armed"),
        _q("squelch_dependence_falling_since_step", "falling since step", NO_ALARM),
        _q("squelch_dependence_reward_trend", "reward trend", NO_ALARM),
    ),
)

PARTS = row(
    "Environments and judge",
    "guide/reasoning.md",
    nats(
        "By environment",
        "MI-Est of each environment's first turns, if a window mixes environments.",
        _q(
            "squelch_environment_reasoning",
            "{{environment}}",
            "one environment",
            figure="mi_est",
        ),
    ),
    share(
        "Judge",
        "Shares of reasonings that make claims, make only true ones, and would be true of another task. true: the "
        "share of true ones among those that make any, over two scorer steps. least true: half of the run's "
        "baseline. untrue: 1 while true is below least true.",
        _q("squelch_judge_ratio", "{{figure}}", "environments without a judge"),
        _q("squelch_judge_true_share", "true", "environments without a judge"),
        _q("squelch_judge_least_true_share", "least true", "environments without a judge"),
        _q("squelch_reasoning_untrue", "untrue", "environments without a judge"),
    ),
)

COLLAPSE = row(
    "Where it collapses",
    "guide/reasoning.md",
    nats(
        "MI by kind",
        "MI-Est of each kind's first turns among the prompts of all kinds.",
        _q("squelch_kind_mi_est_nats", "{{kind}}", NO_KINDS),
    ),
    nats(
        "D by kind",
        "What the answers to the fixed probe's tasks of each kind take from their reasoning.",
        _q("squelch_kind_dependence_nats", "{{kind}}", NO_KINDS),
    ),
    share(
        "Kept by kind",
        "Share of each kind's groups that the filter kept.",
        _q("squelch_kind_kept_ratio", "{{kind}}", NO_KINDS),
    ),
    share("Success by kind", "Success of each kind's groups.", _q("squelch_kind_success_ratio", "{{kind}}", NO_KINDS)),
    nats(
        "MI by turn",
        "MI-Est among the contexts of one turn, with its 95% interval: shows the turns that ignore their context.",
        _q("squelch_turn_reasoning", "turn {{turn}}", figure="mi_est"),
        _q("squelch_turn_reasoning", "turn {{turn}}, low", FEW_PROMPTS, figure="mi_est_low"),
        _q("squelch_turn_reasoning", "turn {{turn}}, high", FEW_PROMPTS, figure="mi_est_high"),
    ),
    nats(
        "D",
        "Of first turns, with its 95% interval; that of later turns is not measured.",
        _q("squelch_answer_link_nats", "turn 1", NO_ANSWER, link="dependence"),
        _q("squelch_answer_link_interval_nats", "turn 1, {{bound}}", NO_ANSWER, link="dependence"),
    ),
    share(
        "Kept by turn",
        "Of the trajectories that had a turn: the share in kept groups.",
        _q("squelch_turn_kept_ratio", "turn {{turn}}"),
    ),
    share(
        "Success by turn",
        "Of the trajectories that had a turn: the share that succeeded in the end.",
        _q("squelch_turn_success_ratio", "turn {{turn}}"),
    ),
    share(
        "Trajectories by turn",
        "Share of the trajectories that had a turn.",
        _q("squelch_turn_reached_ratio", "turn {{turn}}"),
    ),
)

SCORER = row(
    "Scorer",
    "guide/reasoning.md",
    amount(
        "Size of the score matrix",
        "Prompts and reasonings in the matrix; shares of tokens that other versions sampled, and of pairs scored.",
        _q("squelch_scored_prompts", f"prompts, {SCOPE}"),
        _q("squelch_scored_reasonings", f"reasonings, {SCOPE}"),
        _q("squelch_prompts_needed", f"prompts needed, {SCOPE}", FEW_PROMPTS),
        _q("squelch_scorer_version_mismatch_ratio", f"other versions, {SCOPE}"),
        _q("squelch_scored_pairs_ratio", f"share of the pairs, {SCOPE}"),
    ),
    amount(
        "Left out of the score matrix",
        "Number of reasonings left out, by reason.",
        _q("squelch_excluded_reasonings", f"all, {SCOPE}"),
        _q("squelch_unscored_reasonings", f"{{{{reason}}}}, {SCOPE}"),
        _q("squelch_reasoned_turns_ratio", f"share of turns with reasoning, {SCOPE}"),
    ),
    amount(
        "Scorer",
        "CPU seconds of the last scorer step; difference of its log-probabilities from the learner's on the probe.",
        _q("squelch_scorer_cpu_seconds", "CPU seconds"),
        _q("squelch_scorer_parity_nats", "parity, nats"),
    ),
    amount(
        "Forward passes of the scorer",
        "Forward passes of the last scorer step, and what a pass and a token cost on the scorer's device.",
        _q("squelch_scorer_passes", "passes"),
        _q("squelch_scorer_pass_seconds", "seconds a pass"),
        _q("squelch_scorer_token_seconds", "seconds a token"),
    ),
    amount(
        "Scorer steps",
        "Scorer steps by outcome: done, skipped because the scorer was behind, refused for age, late, or failed.",
        _q("squelch_scorings_total", "{{outcome}}"),
    ),
)

BOARD = Board(
    "squelch-reasoning",
    "Reasoning",
    "Does reasoning depend on its input?",
    (DEPENDENCE, PROBE, ANSWERS, MODALITY, REGIME, COLLAPSE, PARTS, SCORER),
)
