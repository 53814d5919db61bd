"""Metrics of the scorer: its samples, its excluded reasonings, and its own health (docs/reasoning.md). Pure."""

from __future__ import annotations

from actors.diagnosis.metrics import SCOPES, scoped
from actors.metrics.specification import MetricSpec, Section, Table, gauge, product

EXCLUSIONS = ("failed", "no_turn", "empty", "unclosed", "stale", "too_long", "non_finite", "one_prompt")
"""failed: the trajectory failed. no_turn: the trajectory ended before its first turn. empty: the reasoning is only
white space. unclosed: the reasoning was never closed, e.g. cut at the token limit. stale: a token was sampled by a
version older than the bound. too_long: prompt and reasoning exceed the model's context. non_finite: the model gave a
NaN or infinite log-probability under some prompt. one_prompt: there was no other prompt to compare with."""
PART_FIGURES = (
    *("retrieval_accuracy", "retrieval_accuracy_low", "retrieval_accuracy_high", "retrieval_chance"),
    *("mi_est", "mi_est_low", "mi_est_high", "mi_est_p_value", "conditional_entropy", "num_prompts", "num_samples"),
)
"""Metrics of a part of a matrix: of one turn, or of one environment."""


METRICS: Table = {
    Section.REASONING: (
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
        MetricSpec(
            "squelch_unscored_reasonings",
            "gauge",
            "Reasonings left out of the score matrix, by reason (docs/reasoning.md)",
            "{scope}/excluded/{reason}",
            ("scope", "reason"),
            product(SCOPES, EXCLUSIONS),
        ),
        gauge("squelch_scorer_version", "scorer/version", "Policy version of the scorer's weights"),
        gauge("squelch_scorer_cpu_seconds", "scorer/cpu_seconds", "CPU seconds of the last scoring", unit="seconds"),
        gauge(
            "squelch_scorer_parity_nats",
            "scorer/parity",
            "Mean absolute difference in log-probability of scorer and learner on the probe",
            unit="nats",
        ),
        gauge("squelch_scorer_step", "scorer/step", "Training step that was scored last"),
        MetricSpec(
            "squelch_scorings_total",
            "counter",
            "Scorings by outcome: done, skipped because the scorer was behind, refused for age, late, failed",
            "scorer/{outcome}",
            ("outcome",),
            product(("done", "skipped", "refused", "late", "failed")),
        ),
        MetricSpec(
            "squelch_turn_reasoning",
            "gauge",
            "Metrics of the reasonings of one turn (1 is the first) among the contexts of that turn, in each metric's "
            "unit",
            "turn/{turn}/{figure}",
            ("turn", "figure"),
            product(("1",), PART_FIGURES),
            open=True,
        ),
        MetricSpec(
            "squelch_environment_reasoning",
            "gauge",
            "Metrics of one environment's first turns, if a window mixes several, in each metric's unit",
            "environment/{environment}/{figure}",
            ("environment", "figure"),
            open=True,
        ),
    ),
}
