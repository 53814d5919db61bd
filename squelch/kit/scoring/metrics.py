"""Metrics of the scorer: its samples, its excluded reasonings, and its own health (docs/guide/scorer.md). Pure."""

from __future__ import annotations

from squelch.kit.diagnosis.metrics import LINKS, LINKS_TESTED, PARTS, SCOPES, SHARES
from squelch.kit.metrics.declared import declared

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

METRICS = declared(
    __file__,
    SCOPES=SCOPES,
    OUTCOMES=OUTCOMES,
    EXCLUSIONS=EXCLUSIONS,
    ANSWER_EXCLUSIONS=ANSWER_EXCLUSIONS,
    PART_METRICS=PART_METRICS,
    LINKS=LINKS,
    LINKS_TESTED=LINKS_TESTED,
    SHARES=tuple(f"{100 * share:.0f}" for share in SHARES),
    PARTS=PARTS,
)
