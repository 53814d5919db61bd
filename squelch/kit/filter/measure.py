"""Measures groups: score, reward variance and mean return of each, or the reason why it is refused
(docs/guide/filter.md).

Numpy in float64; imports neither torch, Ray, vLLM nor pyarrow. All values of a refused group (non-finite value, too few
survivors) are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from squelch.kit.base.lookup import look_up
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.statistics import STATISTICS, Compat, Statistic, mean, sample_variance
from squelch.kit.records.equal_rewards import are_equal

if TYPE_CHECKING:
    from squelch.kit.records.records import GroupSummary


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """The data from which a group's score is computed. Arrays are (num_survivors,) float64; None if the source has
    none."""

    group_id: str
    step: int
    group_size: int
    """Number of trajectories that were to be played, including failed ones."""
    indices: tuple[int, ...]
    """Index in the group of each survivor."""
    returns: np.ndarray
    """Episode returns, without format penalties."""
    penalties: np.ndarray | None = None
    """Format penalties, <= 0."""
    lengths: np.ndarray | None = None
    """Numbers of sampled tokens."""
    surprisals: np.ndarray | None = None
    """Mean -log p of the sampled tokens, nats."""
    kind: str | None = None
    """The kind of the task, if its environment declares one."""
    success: float = math.nan
    """Share of the survivors that solved the task; NaN if unknown."""
    label: str = ""
    """Which of a run's several environments played it; empty in a run of one."""

    @classmethod
    def of(cls, summary: GroupSummary) -> GroupStatistics:
        """The statistics of a group's summary, which contains survivors only."""
        return cls(
            summary.group_id,
            summary.step,
            summary.group_size,
            summary.indices,
            summary.returns,
            summary.format_penalties,
            summary.lengths,
            summary.surprisals,
            kind=summary.task_kind,
            success=float(summary.successes.mean()) if len(summary.successes) else math.nan,
            label=summary.label,
        )

    @classmethod
    def from_row(cls, group_id: str, step: int, rewards: np.ndarray, **columns: np.ndarray | None) -> GroupStatistics:
        """The statistics of one row of (group_size,) arrays; a NaN reward marks a failed trajectory. `columns` may
        contain `penalties`, `lengths` and `surprisals`."""
        alive = np.flatnonzero(~np.isnan(rewards))
        parts: dict[str, Any] = {
            key: None if value is None else np.asarray(value, np.float64)[alive] for key, value in columns.items()
        }
        returns = np.asarray(rewards, np.float64)[alive]
        return cls(group_id, step, len(rewards), tuple(alive.tolist()), returns, **parts)


@dataclass(frozen=True)
class Measured:
    """The values of n groups, in their order. `scores`, `variances`, `means`: (n,) float64, NaN for refused groups."""

    scores: np.ndarray
    variances: np.ndarray
    """Sample variance (ddof = 1) of the returns without penalties, under every statistic; 0 for a single survivor."""
    means: np.ndarray
    """Mean return without penalties."""
    refusals: list[str | None]


def measure(
    groups: Sequence[GroupStatistics], statistic: str, compat: Compat = "paper", rule: str = "top_p"
) -> Measured:
    """Scores of many groups; groups with the same number of survivors are reduced in one numpy call.

    Raises ValueError for an unknown statistic or rule, and if the groups lack the statistic's column.
    """
    entry, filters = look_up(STATISTICS, statistic, "statistic"), look_up(RULES, rule, "rule").filters
    measured = np.full((3, len(groups)), np.nan)
    refusals: list[str | None] = [None] * len(groups)
    by_shape: dict[_Shape, list[int]] = {}
    for position, group in enumerate(groups):
        by_shape.setdefault(_Shape(len(group.indices), group.group_size), []).append(position)
    for shape, positions in by_shape.items():
        if reason := _too_few(shape, entry, filters):
            for position in positions:
                refusals[position] = reason
        else:
            members = [groups[position] for position in positions]
            found, reasons = _measure_equal(members, entry, compat)
            measured[:, positions] = found
            for position, refusal in reasons.items():
                refusals[positions[position]] = refusal
    return Measured(measured[0], measured[1], measured[2], refusals)


def score(statistic: str, group: GroupStatistics, compat: Compat = "paper") -> float:
    """One group's score; NaN if the group is refused."""
    return float(measure([group], statistic, compat).scores[0])


class _Shape(NamedTuple):
    """Groups of one shape are measured together."""

    survivors: int
    group_size: int


def _too_few(shape: _Shape, statistic: Statistic, filters: bool) -> str | None:
    """Why a group of that shape is refused; None if it has enough survivors. Two are needed at least, or one if one
    trajectory was to be played and the statistic is defined for it."""
    least = min(2, shape.group_size)
    needed = max(statistic.needs, least) if filters else least
    if shape.survivors >= needed:
        return None
    return f"{shape.survivors} survivor{'s' * (shape.survivors != 1)} of {shape.group_size}, needs {needed}"


def _measure_equal(
    groups: Sequence[GroupStatistics], statistic: Statistic, compat: Compat
) -> tuple[np.ndarray, dict[int, str]]:
    """(3, n) scores, variances and means of groups with the same number of survivors, and the refused groups'
    reasons."""
    returns = np.array([group.returns for group in groups], dtype=np.float64)
    values = returns if statistic.of == "returns" and compat == "paper" else _values(groups, statistic, compat)
    reduction = statistic.reduction(compat)
    equal = are_equal(returns)
    with np.errstate(over="ignore", invalid="ignore"):
        variances = np.where(equal, 0.0, sample_variance(returns))
        known = values is returns and reduction is sample_variance
        measured = np.array([variances if known else reduction(values), variances, mean(returns)])
    if values is returns and statistic.needs > 1:
        measured[0, equal] = 0.0  # a difference of returns is rounding where the learner sees none
    reasons: dict[int, str] = {}
    finite = np.isfinite(measured)
    for position in () if finite.all() else np.flatnonzero(~finite.all(axis=0)).tolist():
        reasons[position] = _why_refused(groups[position], values[position], returns[position], statistic.name)
        measured[:, position] = np.nan
    return measured, reasons


def _values(groups: Sequence[GroupStatistics], statistic: Statistic, compat: Compat) -> np.ndarray:
    """The statistic's input, (num_groups, num_survivors), for groups with the same number of survivors."""
    if statistic.of == "returns":
        return np.array([_rewards(group, compat) for group in groups], dtype=np.float64)
    columns = [group.lengths if statistic.of == "lengths" else group.surprisals for group in groups]
    if any(column is None for column in columns):
        raise ValueError(
            f"statistic {statistic.name} needs `{statistic.of}` of shape (num_groups, group_size); the file has no "
            "such array"
        )
    return np.array(columns, dtype=np.float64)


def _rewards(group: GroupStatistics, compat: Compat) -> np.ndarray:
    """The rewards that are scored: returns, plus format penalties under `ragen`."""
    if compat == "ragen" and group.penalties is not None:
        return group.returns + group.penalties
    return group.returns


def _why_refused(group: GroupStatistics, values: np.ndarray, returns: np.ndarray, statistic: str) -> str:
    """The reason: the first trajectory whose reward, or other scored value, is not finite."""
    for name, row in (("reward", returns), (statistic, values)):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            return f"non-finite {name} in trajectory {group.indices[bad[0]]}"
    return f"non-finite {statistic}: the rewards are finite, but too large to be squared"
