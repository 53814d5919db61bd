"""Metrics of played trajectories, and the values of a step's groups that feed them. Pure.

Of a failed trajectory only the cause is counted. Sums are exact (`math.fsum`), so no value depends on the order of
arrival. `kit.filter.metrics` has the metrics of the filter's groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from squelch.kit.metrics.declared import declared
from squelch.kit.records.failures import FailureCause

if TYPE_CHECKING:
    from squelch.kit.records.records import GroupSummary

BANDS = ("all_fail", "mixed", "all_succeed")
SHOWN_TURNS = 12
"""Turns that have metrics of their own, the first ones."""
FAILURES = tuple(cause.value for cause in FailureCause if cause is not FailureCause.OTHER)
TURNS = tuple(str(turn + 1) for turn in range(SHOWN_TURNS))
METRICS = declared(__file__, BANDS=BANDS, TURNS=TURNS, FAILURES=FAILURES)


def trajectory_metrics(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Metrics of one step's trajectories, kept or not, by flat key; means are NaN if no trajectory survived.

    Args:
        summaries: every group of the step.
    """
    num_turns = sum(s.num_turns for s in summaries)
    num_alive = sum(len(s.indices) for s in summaries)
    num_actions = sum(s.num_actions for s in summaries)
    lengths = _join(summaries, "lengths")
    surprisal = math.fsum(length * nats for length, nats in zip(lengths, _join(summaries, "surprisals"), strict=True))
    return {
        "success": _ratio(sum(_join(summaries, "successes")), num_alive),
        **_band_shares(summaries),
        "format_validity": _ratio(sum(s.format_valid_turns for s in summaries), num_turns),
        "format_penalty_mean": _ratio(math.fsum(_join(summaries, "format_penalties")), num_alive),
        "reasoning_length": _ratio(sum(s.reasoning_tokens for s in summaries), num_turns),
        "turns_cut/reasoning": _ratio(sum(s.cut_in_reasoning for s in summaries), num_turns),
        "turns_cut/answer": _ratio(sum(s.cut_in_answer for s in summaries), num_turns),
        "turns_per_trajectory": _ratio(num_turns, num_alive),
        "actions_per_trajectory": _ratio(num_actions, num_alive),
        "actions_per_turn": _ratio(num_actions, num_turns),
        "truncated_share": _ratio(sum(_join(summaries, "truncations")), num_alive),
        "rollout_entropy": _ratio(surprisal, sum(lengths)),
        "tokens/sampled": float(sum(lengths)),
        "tokens/total": float(sum(s.num_tokens for s in summaries)),
        "trajectories": float(num_alive),
        "trajectories_failed": float(sum(len(s.failures) for s in summaries)),
        **_failures(summaries),
        **_by_environment(summaries),
    }


def turn_metrics(summaries: Sequence[GroupSummary], kept: Container[str]) -> dict[str, float]:
    """Metrics by flat key of the trajectories that had each of the first turns. `kept`: the ids of the kept groups."""
    played = [
        (turns, bool(success), summary.group_id in kept)
        for summary in summaries
        for turns, success in zip(summary.turns, summary.successes, strict=True)
    ]
    found: dict[str, float] = {}
    for turn in range(1, SHOWN_TURNS + 1):
        had = [one for one in played if one[0] >= turn]
        found |= {
            f"turns/reached/{turn}": _ratio(len(had), len(played)) if had else math.nan,
            f"turns/success/{turn}": _ratio(sum(success for _, success, _ in had), len(had)),
            f"turns/kept/{turn}": _ratio(sum(is_kept for _, _, is_kept in had), len(had)),
        }
    return found


def _by_environment(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Metrics of each of several environments; none in a run of one."""
    found: dict[str, float] = {}
    for label in sorted({summary.label for summary in summaries if summary.label}):
        own = [summary for summary in summaries if summary.label == label]
        num_turns, num_alive = sum(s.num_turns for s in own), sum(len(s.indices) for s in own)
        found |= {
            f"environment/success/{label}": _ratio(sum(_join(own, "successes")), num_alive),
            f"environment/format/{label}": _ratio(sum(s.format_valid_turns for s in own), num_turns),
            f"environment/turns/{label}": _ratio(num_turns, num_alive),
        }
    return found


def _join(summaries: Sequence[GroupSummary], name: str) -> list[float]:
    """One value per surviving trajectory of all groups."""
    return [value for summary in summaries for value in vars(summary)[name].tolist()]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _band_shares(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Share of the groups with survivors in each band of success."""
    bands = [_band(summary) for summary in summaries if len(summary.successes)]
    return {f"tasks_{band}": _ratio(bands.count(band), len(bands)) for band in BANDS}


def _band(summary: GroupSummary) -> str:
    solved = int(summary.successes.sum())
    return "all_fail" if solved == 0 else "all_succeed" if solved == len(summary.successes) else "mixed"


def _failures(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Failed trajectories by cause."""
    counts = Counter(failure.cause for summary in summaries for failure in summary.failures)
    return {f"failures/{cause}": float(count) for cause, count in counts.items()}
