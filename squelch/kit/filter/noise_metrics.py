"""Metrics of replays under fresh environment noise: the policy's part of the reward variance, and the noise.

They are exported whenever trajectories are replayed, whichever statistic selects. The policy variance is exported as
estimated, including negative values and those that are not significant, so that its mean is unbiased. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.kit.filter.metrics import mean
from squelch.kit.filter.policy_variance import FEWEST, STANDARD_ERRORS, are_replayed, policy_variance, standard_error
from squelch.kit.filter.statistics import ZERO, sample_variance
from squelch.kit.metrics.specification import Section, Table, counter, gauge

if TYPE_CHECKING:
    import numpy as np

    from squelch.kit.records.records import GroupSummary

METRICS: Table = {
    Section.FILTER: (
        gauge(
            "squelch_policy_variance_mean",
            "policy_variance_mean",
            "Mean over groups of the reward variance without environment noise, unclipped; absent without replays",
        ),
        gauge("squelch_policy_variance_error", "policy_variance_error", "Standard error of that mean, by jackknife"),
        gauge(
            "squelch_policy_variance_told_groups",
            "policy_variance_told_groups",
            "Groups whose policy variance is above 0 and above 2 of its standard errors",
        ),
        gauge(
            "squelch_noise_variance_mean",
            "noise_variance_mean",
            "Mean over trajectories of the variance of a replay's return under fresh environment noise",
        ),
        gauge(
            "squelch_replay_gap_mean",
            "replay_gap_mean",
            "Mean return of replays minus that of the original trajectories; 0 in expectation if plans do not react",
        ),
        gauge("squelch_replay_gap_error", "replay_gap_error", "Standard error of that difference, over groups"),
        counter(
            "squelch_replays_total",
            {"replays": ("finished",), "replays_failed": ("failed",)},
            "Replays of trajectories under fresh environment noise, by outcome",
            labels=("outcome",),
        ),
        counter(
            "squelch_replay_seconds_total",
            "replay_seconds",
            "Seconds that replays waited for their environment, summed over trajectories",
        ),
    ),
}


def noise_metrics(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """The metrics of one step's groups; empty if none was to be replayed.

    Args:
        summaries: every group of the step.
    """
    asked = [summary for summary in summaries if summary.replay_returns is not None]
    if not asked:
        return {}
    variances = [found for summary in asked if (found := _variance(summary)) is not None]
    gaps = [gap for summary in asked if (gap := _gap(summary)) is not None]
    finished = [int(_whole(summary).sum()) * _replays(summary).shape[1] for summary in asked]
    return {
        "policy_variance_mean": mean(value for value, _ in variances),
        "policy_variance_error": _error_of_mean([error for _, error in variances]),
        "policy_variance_told_groups": float(
            sum(value > max(ZERO, STANDARD_ERRORS * error) for value, error in variances)
        ),
        "noise_variance_mean": mean(value for summary in asked for value in _noise(summary)),
        "replay_gap_mean": mean(gaps),
        "replay_gap_error": statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan,
        "replays": float(sum(finished)),
        "replays_failed": float(sum(_replays(one).size - done for one, done in zip(asked, finished, strict=True))),
        "replay_seconds": math.fsum(summary.seconds_replays for summary in asked),
    }


def _replays(summary: GroupSummary) -> np.ndarray:
    """(num_survivors, replays)."""
    assert summary.replay_returns is not None, "only replayed groups have metrics of replays"
    return summary.replay_returns


def _whole(summary: GroupSummary) -> np.ndarray:
    """Mask of the survivors whose replays did not fail, (num_survivors,)."""
    return are_replayed(_replays(summary))


def _variance(summary: GroupSummary) -> tuple[float, float] | None:
    """(policy variance, standard error) of a group; of one without noise its reward variance, which has no error from
    noise. None if too few trajectories were replayed."""
    returns = _replays(summary)
    if not returns.shape[1]:
        return (float(sample_variance(summary.returns[None])[0]), 0.0) if len(summary.returns) > 1 else None
    rows = returns[_whole(summary)][None]
    if rows.shape[1] < FEWEST:
        return None
    return float(policy_variance(rows)[0]), float(standard_error(rows)[0])


def _noise(summary: GroupSummary) -> list[float]:
    """Sample variance of each replayed trajectory's returns over its noise; 0 without noise."""
    returns = _replays(summary)
    return sample_variance(returns[_whole(summary)]).tolist() if returns.shape[1] else [0.0] * len(returns)


def _gap(summary: GroupSummary) -> float | None:
    """Mean return of a group's replays minus that of the same trajectories; None without replays."""
    rows = _replays(summary)
    whole = _whole(summary)
    return float(rows[whole].mean() - summary.returns[whole].mean()) if rows.shape[1] and whole.any() else None


def _error_of_mean(errors: Sequence[float]) -> float:
    """Standard error of the mean of independent groups; NaN without groups."""
    return math.sqrt(math.fsum(error * error for error in errors)) / len(errors) if errors else math.nan
