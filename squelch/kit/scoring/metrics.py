"""Metrics of the scorer: its samples, its excluded reasonings, and its own health (docs/guide/reasoning.md). Pure."""

from __future__ import annotations

from squelch.kit.diagnosis.metrics import LINKS, LINKS_TESTED, PARTS, SCOPES, SHARES, scoped
from squelch.kit.metrics.specification import MetricSpec, Section, Table, counter, gauge, measured, product

OUTCOMES = ("done", "skipped", "refused", "late", "failed", "withdrawn")
"""What a scorer step that is due may come to; a late one ends as another of these."""
EXCLUSIONS = ("failed", "no_turn", "empty", "unclosed", "stale", "too_long", "non_finite", "one_prompt")
"""failed: the trajectory failed. no_turn: the trajectory ended before its first turn. empty: the reasoning is only
white space. unclosed: the reasoning was never closed, e.g. cut at the token limit. stale: a token was sampled by a
version older than the bound. too_long: prompt and reasoning exceed the model's context. non_finite: the model gave a
NaN or infinite log-probability under some prompt. one_prompt: there was no other prompt to compare with."""
ANSWER_EXCLUSIONS = ("no_answer", "too_long", "non_finite")
"""Why a usable reasoning's answer is left out of the links. no_answer: the turn has no complete answer. too_long:
prompt, reasoning and answer exceed the model's context. non_finite: as for reasonings."""
PART_METRICS = (
    *("retrieval_accuracy", "retrieval_accuracy_low", "retrieval_accuracy_high", "retrieval_chance"),
    *("mi_est", "mi_est_low", "mi_est_high", "mi_est_p_value", "conditional_entropy", "num_prompts", "num_samples"),
)
"""Metrics of a part of a matrix: of one turn, or of one environment."""


def _estimated(
    name: str, key: str, help: str, *, error: str = " for its fixed tasks", null: bool = False
) -> tuple[MetricSpec, ...]:
    """A metric of the fixed probe with its interval and standard error, as `measured`."""
    spec = gauge(name, f"probe/{key}", help)
    return measured(spec, interval=", from the spread between a task's reasonings", error=error, null=null)


PROBE = (
    *_estimated("squelch_probe_mi_nats", "mi", "Fixed probe: MI of task and first reasoning, nats", null=True),
    *_estimated(
        "squelch_probe_mi_upper_nats",
        "mi_upper",
        "Fixed probe: the form that leaves the own prompt out of the mixture, an upper bound in expectation",
    ),
    gauge("squelch_probe_p_value", "probe/mi_p_value", "p-value of squelch_probe_mi_nats against its null, 0.001 to 1"),
    gauge("squelch_probe_ceiling_nats", "probe/ceiling", "Largest possible MI of the probe: entropy of its prompts"),
    gauge("squelch_probe_saturated", "probe/saturated", "1 while the probe's MI is within 0.25 nats of its ceiling"),
    *_estimated(
        "squelch_probe_mi_change_nats",
        "mi_change",
        "Change of the probe's MI since the first evaluation, paired by task",
        error="",
    ),
    gauge(
        "squelch_probe_conditional_entropy_nats",
        "probe/conditional_entropy",
        "H(Z|X) of the probe's reasonings, nats per token",
    ),
    gauge("squelch_probe_tasks", "probe/tasks", "Tasks of the probe with a usable reasoning"),
    gauge("squelch_probe_reasonings", "probe/samples", "Usable reasonings of the probe"),
    gauge("squelch_probe_excluded_reasonings", "probe/num_excluded", "Reasonings of the probe that were left out"),
    gauge("squelch_probe_pairs_ratio", "probe/pairs_ratio", "Share of the probe's (reasoning, prompt) pairs scored"),
    *_estimated(
        "squelch_probe_hard_mi_nats",
        "hard/mi",
        "Fixed probe: MI of task and first reasoning among near variations of the task (hard negatives), nats",
        error=" for its fixed tasks and their variations",
    ),
    gauge(
        "squelch_probe_hard_ceiling_nats",
        "probe/hard/ceiling",
        "Largest possible squelch_probe_hard_mi_nats: log(m + 1) for m variations of a task",
    ),
    gauge(
        "squelch_probe_hard_answers_changed_ratio",
        "probe/hard/answers_changed",
        "Share of the variations of the probe's tasks whose best answer is another; NaN without a solver",
    ),
    gauge("squelch_probe_hard_tasks", "probe/hard/tasks", "Tasks of the probe that were compared with variations"),
    gauge(
        "squelch_probe_hard_pairs",
        "probe/hard/pairs",
        "Pairs of a reasoning and the prompt of a variation that were scored beside the probe's own pairs",
    ),
    gauge("squelch_probe_passes", "probe/passes", "Forward passes of the probe's last evaluation"),
    gauge("squelch_probe_step", "probe/step", "Training step after which the probe was read last"),
    gauge("squelch_probe_version", "probe/version", "Policy version of the probe's last evaluation"),
    gauge("squelch_probe_cpu_seconds", "probe/cpu_seconds", "CPU seconds of the probe's last evaluation"),
)
"""Metrics of the fixed probe (`kit.diagnosis.fixed_probe`)."""

ANSWERS = (
    *measured(
        gauge(
            "squelch_answer_link_nats",
            "probe/link/{link}",
            "Fixed probe (in squelch.Monitor without one: the step), nats per answer: I(A;Z|X) and its upper form, D "
            "(does the answer follow from the reasoning), and the information of the prompt beyond the reasoning",
            product(LINKS),
        ),
        interval="",
        error=" for its fixed tasks",
    ),
    gauge(
        "squelch_answer_link_p_value",
        "probe/link/{link}_p_value",
        "p-value of squelch_answer_link_nats against randomly permuted reasonings, 0.001 to 1",
        product(LINKS_TESTED),
    ),
    gauge(
        "squelch_answer_link_null_nats",
        "probe/link/{link}_null_95",
        "95% point of the null distribution of squelch_answer_link_nats",
        product(LINKS_TESTED),
    ),
    gauge(
        "squelch_answer_link_ceiling_nats",
        "probe/link/ceiling",
        "Largest possible I(A;Z|X) of the probe: min(log K, H(A|X))",
    ),
    gauge(
        "squelch_answer_surprise_nats",
        "probe/link/surprise",
        "-log p of the probe's answers under reasonings of other prompts, nats per answer",
    ),
    *_estimated(
        "squelch_answer_dependence_ratio",
        "link/dependence_share",
        "D as a share of squelch_answer_surprise_nats: what the own reasoning removes of it. Unlike D it does not grow "
        "with the length of the answer",
    ),
    gauge(
        "squelch_answer_entropy_nats",
        "probe/link/answer_entropy",
        "H(A|X,Z): -log p of the probe's answers after their own reasoning, nats per answer",
    ),
    *measured(
        gauge(
            "squelch_answer_truncated_nats",
            "probe/link/truncated@{share}",
            "log p of the probe's answers after the first share (percent) of their reasoning, nats per answer",
            product(tuple(f"{100 * share:.0f}" for share in SHARES)),
        ),
        interval="",
    ),
    gauge(
        "squelch_answer_follows",
        "probe/link/follows",
        "1 if the answer follows from the reasoning (D is significant), else 0",
    ),
    gauge("squelch_scored_answers", "probe/link/answers", "Answers of the probe that were scored"),
    gauge(
        "squelch_answer_references_ratio",
        "probe/link/references_ratio",
        "Share of the pairs of an answer and a reasoning of another prompt that were scored",
    ),
    gauge(
        "squelch_unscored_answers",
        "probe/link/excluded/{reason}",
        "Answers of usable reasonings that were left out, by reason (docs/guide/reasoning.md)",
        product(ANSWER_EXCLUSIONS),
    ),
    gauge(
        "squelch_kind_dependence_nats",
        "probe/link/dependence/{kind}",
        "D of the fixed probe's tasks of one kind, nats per answer; NaN without a scored answer",
    ),
)
"""Metrics of the links from reasoning to answer (`kit.diagnosis.links`)."""

_READ = ("probe", "trajectory")
MODALITY = (
    *measured(
        gauge(
            "squelch_modality_nats",
            "{scope}/modality/{part}",
            "Dependence of the reasoning on pictures (D_V) or text (D_T) alone, nats per sequence, of the fixed "
            "probe's first turns and of the trajectory scope; NaN below 4 prompts of one layout, and where that part "
            "is always the same",
            product(_READ, PARTS),
        ),
        interval="",
        error="",
    ),
    gauge(
        "squelch_modality_surprise_nats",
        "{scope}/modality/{part}_surprise",
        "-log p of the reasonings under others' pictures, or text, nats per sequence",
        product(_READ, PARTS),
    ),
    gauge(
        "squelch_modality_p_value",
        "{scope}/modality/{part}_p_value",
        "p-value of squelch_modality_nats against parts drawn at random",
        product(_READ, PARTS),
    ),
    gauge(
        "squelch_modality_depends",
        "{scope}/modality/{part}_depends",
        "1 if the reasoning depends on that part: significant, and at least 0.01 nats and a tenth of the surprise",
        product(_READ, PARTS),
    ),
    gauge(
        "squelch_modality_text_alone",
        "{scope}/modality/text_alone",
        "1 if the reasoning depends on the text and not on the pictures, which is the regime blind where MI is "
        "significant, else 0",
        product(_READ),
    ),
    gauge(
        "squelch_modality_blank_nats",
        "probe/modality/blank",
        "What a reasoning loses if its pictures are blank (their mean colour), nats per sequence; not an MI",
    ),
)
"""Metrics of MI by modality (`kit.diagnosis.modality`)."""

METRICS: Table = {
    Section.REASONING: (
        *PROBE,
        *ANSWERS,
        *MODALITY,
        scoped(
            "squelch_mi_saturated",
            "mi_saturated",
            "1 while MI-Seq-Est is within 0.25 nats of its upper bound: too few prompts to see more",
        ),
        scoped(
            "squelch_reasoned_turns_ratio",
            "reasoned",
            "Share of the turns that have reasoning, among those that closed it",
        ),
        scoped("squelch_scored_prompts", "num_prompts", "Distinct prompts in the score matrix"),
        scoped("squelch_excluded_reasonings", "num_excluded", "Reasonings left out, for any reason"),
        scoped(
            "squelch_scorer_version_mismatch_ratio", "version_mismatch", "Share of tokens sampled by other versions"
        ),
        scoped("squelch_scored_reasonings", "num_samples", "Reasonings in the score matrix"),
        scoped(
            "squelch_scored_pairs_ratio",
            "pairs_ratio",
            "Share of (reasoning, prompt) pairs scored; below 1: scorer.max_pairs",
        ),
        gauge(
            "squelch_unscored_reasonings",
            "{scope}/excluded/{reason}",
            "Reasonings left out of the score matrix, by reason (docs/guide/reasoning.md)",
            product(SCOPES, EXCLUSIONS),
        ),
        gauge("squelch_scorer_version", "scorer/version", "Policy version of the scorer's weights"),
        gauge("squelch_scorer_cpu_seconds", "scorer/cpu_seconds", "CPU seconds of the last scorer step"),
        gauge(
            "squelch_scorer_parity_nats",
            "scorer/parity",
            "Mean absolute difference in log-probability of scorer and learner on the probe",
        ),
        gauge("squelch_scorer_passes", "scorer/passes", "Forward passes of the last scorer step"),
        gauge(
            "squelch_scorer_pass_seconds",
            "scorer/pass_seconds",
            "What a forward pass costs beside its tokens, as measured on the scorer's device",
        ),
        gauge(
            "squelch_scorer_token_seconds",
            "scorer/token_seconds",
            "What a token of a forward pass costs, as measured on the scorer's device",
        ),
        gauge("squelch_scorer_step", "scorer/step", "Training step that was scored last"),
        counter(
            "squelch_scorings_total",
            "scorer/{outcome}",
            "Scorer steps by outcome: done, skipped because the scorer was behind, refused for age, late, failed, "
            "withdrawn because the groups were lost before they were trained on",
            product(OUTCOMES),
        ),
        gauge(
            "squelch_turn_reasoning",
            "turn/{turn}/{figure}",
            "Metrics of the reasonings of one turn (1 is the first, 21+ all after the 20th) among the contexts of that "
            "turn, in each metric's unit",
            product(("1",), PART_METRICS),
            open=True,
        ),
        gauge(
            "squelch_kind_mi_est_nats",
            "kind/{kind}/mi_est",
            "MI-Est of the first turns of one kind of task among the prompts of all kinds, nats per token",
        ),
        gauge(
            "squelch_environment_reasoning",
            "environment/{environment}/{figure}",
            "Metrics of one environment's first turns, if a window mixes several, in each metric's unit",
        ),
    ),
}
