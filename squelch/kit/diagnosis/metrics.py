"""Metrics of the diagnosis, which measures whether reasoning depends on its input (docs/guide/reasoning.md). Pure."""

from __future__ import annotations

from squelch.kit.metrics.specification import MetricSpec, Section, Table, gauge, measured, product

SCOPES = ("first_turn", "trajectory")
TESTED = ("retrieval_accuracy", "mi_est", "mi_seq_est")
"""Proxies with a null, see `kit.diagnosis.uncertainty`."""
REGIMES = ("mute", "template", "blind", "decorative", "private_code", "grounded", "unknown")
"""See `kit.diagnosis.regime`."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the reasoning in the truncation curve of `kit.diagnosis.links`."""
LINKS = ("information", "information_upper", "dependence", "past_reasoning")
DEPENDENCE_SHARE = "dependence_share"
"""D as a share of the answer's surprise; the links themselves are in nats."""
LINKS_TESTED = ("information", "dependence")
"""The links with a null."""


def key_of(share: float) -> str:
    """The key of a point of the truncation curve: `truncated@0` to `truncated@100`."""
    return f"truncated@{100 * share:.0f}"


LINK_KEYS = (
    *(f"{link}{end}" for link in (*LINKS, DEPENDENCE_SHARE) for end in ("", "_low", "_high", "_standard_error")),
    *(f"{link}_{metric}" for link in LINKS_TESTED for metric in ("p_value", "null_95")),
    *(f"{key_of(share)}{end}" for share in SHARES for end in ("", "_low", "_high")),
    *("ceiling", "surprise", "answer_entropy", "references_ratio", "follows", "answers"),
)
"""The metrics of `kit.diagnosis.links.LinksEvaluation`."""


PARTS = ("picture", "text")
"""The parts of a prompt with pictures, see `kit.diagnosis.modality`."""
MODALITY_KEYS = (
    *(f"{part}{end}" for part in PARTS for end in ("", "_low", "_high", "_standard_error")),
    *(f"{part}_{metric}" for part in PARTS for metric in ("surprise", "p_value", "depends")),
    *("text_alone", "blank"),
)
"""The metrics of MI by modality."""


_OVER_PROMPTS = " over prompts; NaN below 6 distinct prompts"


def scoped(name: str, key: str, help: str) -> MetricSpec:
    """A proxy of Table 1 with one series per turn scope."""
    return gauge(name, "{scope}/" + key, help, product(SCOPES))


def _estimated(
    name: str, key: str, help: str, *, error: str | None = None, null: bool = False
) -> tuple[MetricSpec, ...]:
    """A proxy of Table 1 with its interval over prompts, as `measured`."""
    return measured(scoped(name, key, help), interval=_OVER_PROMPTS, error=error, null=null)


METRICS: Table = {
    Section.REASONING: (
        *_estimated(
            "squelch_retrieval_accuracy_ratio",
            "retrieval_accuracy",
            "Share of reasonings best explained by their X",
            null=True,
        ),
        scoped("squelch_retrieval_chance_ratio", "retrieval_chance", "Retrieval accuracy of reasoning that ignores X"),
        *measured(
            gauge(
                "squelch_recall_ratio",
                "{scope}/recall@{k}",
                "Share of reasonings whose own X is among the k that explain them best; NaN below k + 1 prompts",
                product(SCOPES, ("2", "4", "8")),
            ),
            interval=_OVER_PROMPTS,
        ),
        *_estimated(
            "squelch_mi_est_nats", "mi_est", "MI-Est (Table 1): matched less marginal, nats per token", null=True
        ),
        *_estimated(
            "squelch_mi_seq_est_nats",
            "mi_seq_est",
            "MI-Seq-Est (Table 1): nats per sequence",
            error=" over prompts",
            null=True,
        ),
        *_estimated("squelch_mi_zscore", "mi_zscore", "MI-ZScore (Table 1): MI-Est / batch std of the marginals"),
        *_estimated("squelch_mi_zscore_ema", "mi_zscore_ema", "MI-ZScore-EMA (Table 1): the std is a moving average"),
        *_estimated(
            "squelch_conditional_entropy_nats", "conditional_entropy", "H(Z|X): reasoning given X, nats per token"
        ),
        *_estimated("squelch_marginal_entropy_nats", "marginal_entropy", "H(Z): reasoning, nats per token"),
        scoped("squelch_mi_upper_bound_nats", "upper_bound", "Largest possible MI-Seq-Est: entropy of the prompts"),
        gauge(
            "squelch_dependence_p_value",
            "{scope}/{figure}_p_value",
            "p-value: share of random assignments of prompts to reasonings that reach the observed value, 0.001 to 1",
            product(SCOPES, TESTED),
        ),
        scoped(
            "squelch_prompts_needed",
            "prompts_needed",
            "Distinct prompts needed for an MI-Est interval of half width scorer.half_width",
        ),
        gauge(
            "squelch_reasoning_regime",
            "{scope}/regime/{regime}",
            "1 for the present regime of the reasoning (docs/guide/reasoning.md), else 0",
            product(SCOPES, REGIMES),
        ),
        gauge(
            "squelch_judge_ratio",
            "judge/{figure}",
            "Environments with a judge, first turns: share of reasonings that make claims about the task, that make "
            "only true ones, and whose claims are all true of another task of the step",
            product(("names", "right", "right_elsewhere")),
        ),
        gauge(
            "squelch_reasoning_untrue",
            "judge/untrue",
            "1 while the share of true ones among the first-turn reasonings that state anything, a mean over two "
            "scorer steps, is below half of the run's baseline, else 0; unchanged by a scorer step in which few state "
            "anything; NaN without a judge",
        ),
        gauge(
            "squelch_judge_true_share",
            "judge/true_share",
            "Share of true ones among the first-turn reasonings that state anything, a mean over the last two scorer "
            "steps in which several do; NaN before them, or without a judge",
        ),
        gauge(
            "squelch_judge_least_true_share",
            "judge/least_true",
            "Half of the run's baseline: while the share of true ones is below it, the reasoning counts as untrue. The "
            "baseline is the median of the run's first three shares",
        ),
        gauge(
            "squelch_reasoning_blind",
            "alarm/blind",
            "Environments whose pictures alone show the task: 1 if the last scorer step found the reasoning of either "
            "scope blind, 0 if not, NaN if it did not decide that",
        ),
        gauge(
            "squelch_dependence_alarm",
            "alarm/raised",
            "1 while input dependence is falling (change-point alarm), else 0",
        ),
        gauge(
            "squelch_dependence_falling_since_step", "alarm/since", "Last step before the fall; NaN without an alarm"
        ),
        gauge(
            "squelch_probe_alarm",
            "probe/alarm/{figure}",
            "Fixed probe: 1 while the reasoning tells less about its task (mi), or the answer follows less from the "
            "reasoning (dependence), than at the run's best level",
            product(("mi", "dependence")),
        ),
        gauge("squelch_dependence_cusum", "alarm/cusum", "The alarm's statistic; it is raised above 4"),
        gauge("squelch_dependence_alarm_armed", "alarm/armed", "1 once a baseline above its null is known, else 0"),
        gauge(
            "squelch_dependence_reward_trend",
            "alarm/reward_trend",
            "Reward since the fall began: 1 rising, 0 flat, -1 falling; NaN without an alarm",
        ),
    ),
}
