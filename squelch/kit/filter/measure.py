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
from squelch.kit.filter.policy_variance import are_replayed
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.statistics import STATISTICS, ZERO, Column, Compat, Statistic, mean, sample_variance
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
    replay_returns: np.ndarray | None = None
    """(num_survivors, replays) returns of replays under fresh noise, a row of NaN where they failed; (num_survivors, 0)
    if the environment declares no noise."""
    replay_failure: str | None = None
    """Why the first replay that failed did so, if the source knows."""
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
            replay_returns=summary.replay_returns,
            replay_failure=summary.replay_failure,
            label=summary.label,
        )

    @classmethod
    def from_row(cls, group_id: str, step: int, rewards: np.ndarray, **columns: np.ndarray | None) -> GroupStatistics:
        """The statistics of one row of (group_size,) arrays; a NaN reward marks a failed trajectory. `columns` may
        contain `penalties`, `lengths`, `surprisals`, and `replay_returns` of shape (group_size, replays)."""
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
        by_shape.setdefault(_shape(group, entry), []).append(position)
    for shape, positions in by_shape.items():
        if reason := _too_few(shape, entry, filters):
            for position in positions:
                why = groups[position].replay_failure if shape.replays else None
                refusals[position] = f"{reason}; a replay failed: {why}" if why else reason
        else:
            members = [groups[position] for position in positions]
            own = entry if shape.replays is None or shape.replays else STATISTICS[entry.without_noise]
            found, reasons = _measure_equal(members, own, compat)
            measured[:, positions] = found
            for position, refusal in reasons.items():
                refusals[positions[position]] = refusal
    return Measured(measured[0], measured[1], measured[2], refusals)


def score(statistic: str, group: GroupStatistics, compat: Compat = "paper") -> float:
    """One group's score; NaN if the group is refused."""
    return float(measure([group], statistic, compat).scores[0])


class _Shape(NamedTuple):
    """Groups of one shape are measured together. `scored`: survivors that the statistic is computed from; `replays`: of
    each of them, None for a statistic that needs none."""

    survivors: int
    group_size: int
    scored: int
    replays: int | None


def _shape(group: GroupStatistics, statistic: Statistic) -> _Shape:
    survivors = len(group.indices)
    if statistic.of != "replay_returns" or group.replay_returns is None:
        return _Shape(survivors, group.group_size, survivors, None)
    whole, replays = _replayed(group.replay_returns), group.replay_returns.shape[1]
    return _Shape(survivors, group.group_size, len(whole) if replays else survivors, replays)


def _replayed(replay_returns: np.ndarray) -> np.ndarray:
    """The rows of the trajectories whose replays did not fail."""
    return replay_returns[are_replayed(replay_returns)]


def _too_few(shape: _Shape, statistic: Statistic, filters: bool) -> str | None:
    """Why a group of that shape is refused; None if it has enough survivors. Two are needed at least, or one if one
    trajectory was to be played and the statistic is defined for it."""
    least = min(2, shape.group_size)
    if shape.replays and shape.survivors >= statistic.needs:
        if shape.scored < statistic.needs:
            return f"replays of {shape.scored} trajectories of {shape.group_size}, needs {statistic.needs}"
        return None
    of = STATISTICS[statistic.without_noise] if shape.replays == 0 else statistic
    needed = max(of.needs, least) if filters else least
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
    elif statistic.of == "replay_returns":
        known_zero = (variances <= ZERO) & np.isfinite(measured[0])
        measured[0, known_zero] = 0.0  # replays may differ where the returns, and so all advantages, do not
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
    columns = [_column(group, statistic.of) for group in groups]
    if any(column is None for column in columns):
        shape = "(num_groups, group_size, replays)" if statistic.of == "replay_returns" else "(num_groups, group_size)"
        raise ValueError(
            f"statistic {statistic.name} needs `{statistic.of}` of shape {shape}; the file has no such array"
        )
    return np.array(columns, dtype=np.float64)


def _column(group: GroupStatistics, name: Column) -> np.ndarray | None:
    if name == "replay_returns":
        return None if group.replay_returns is None else _replayed(group.replay_returns)
    return group.lengths if name == "lengths" else group.surprisals


def _rewards(group: GroupStatistics, compat: Compat) -> np.ndarray:
    """The rewards that are scored: returns, plus format penalties under `ragen`."""
    if compat == "ragen" and group.penalties is not None:
        return group.returns + group.penalties
    return group.returns


def _why_refused(group: GroupStatistics, values: np.ndarray, returns: np.ndarray, statistic: str) -> str:
    """The reason: the first trajectory whose reward, or other scored value, is not finite."""
    whole = None if group.replay_returns is None else are_replayed(group.replay_returns)
    scored = group.indices if values.ndim == 1 or whole is None else np.array(group.indices)[whole]
    for name, row, indices in (("reward", returns, group.indices), (statistic, values, scored)):
        bad = np.flatnonzero(~np.isfinite(row.reshape(len(row), -1)).all(axis=1))
        if len(bad):
            return f"non-finite {name} in trajectory {indices[bad[0]]}"
    return f"non-finite {statistic}: the rewards are finite, but too large to be squared"
