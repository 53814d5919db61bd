"""`squelch.filter`: which groups carry a signal (paper, section 3.3 and appendix G; docs/guide/filter.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from squelch.kit.api.arrays import labels, numbers
from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.rules import RULES, EpsilonUnit, Keep
from squelch.kit.filter.selection import Code, select
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import STATISTICS, Compat
from squelch.kit.filter.ticket_order import ticket_order

RANGES = {"rho": "in (0, 1]", "epsilon": "at least 0", "band": "two quantiles, 0 <= LOW <= HIGH <= 1"}
"""The valid range of each setting that is a number."""


class OutOfRange(ValueError):
    """A setting whose value is out of its range; the text begins with the setting's name."""


@dataclass(frozen=True, eq=False)
class FilterResult:
    """The filter's decision on groups that are ranked together. Arrays have one entry per group, in the given order."""

    kept: np.ndarray
    """(num_groups,) bool."""
    kept_rows: np.ndarray
    """Bool, of the shape of `rewards`: whether the completion's group is kept."""
    scores: np.ndarray
    """(num_groups,) float64, the statistic by which groups were ranked, in its unit; NaN for refused groups."""
    variances: np.ndarray
    """(num_groups,) float64, sample variance (ddof = 1) of the rewards; NaN for refused groups."""
    means: np.ndarray
    """(num_groups,) float64, mean reward; NaN for refused groups."""
    kept_fraction: float
    """Kept groups divided by all groups, [0, 1]."""
    kept_mass: float | None
    """Share of the summed reward variance that the kept groups hold, [0, 1]; None if the sum is 0."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    threshold: float | None
    """The rule's threshold, in the rule's own unit; None if the rule compared nothing."""
    rejection: str
    """Why nothing is kept, e.g. because all rewards are equal; empty if a group is kept."""
    codes: tuple[Code, ...]
    """The cause of each group's decision, e.g. `selected`, `zero`, `below_threshold`, `refused`."""
    reasons: tuple[str, ...]
    """The same for people."""
    group_ids: tuple[Any, ...]
    """The label of each group: those given, in order of their first appearance, or 0, 1, …"""
    settings: str
    """The rule with its settings, as archived by a run."""


def filter(
    rewards: Any,
    group_ids: Any = None,
    *,
    rule: str = "top_p",
    rho: float = 0.9,
    statistic: str = "reward_variance",
    keep: Keep = "largest",
    include_zero: bool = False,
    epsilon: float = 0.01,
    epsilon_unit: EpsilonUnit | None = None,
    band: tuple[float, float] = (0.0, 1.0),
    compat: Compat = "paper",
    lengths: Any = None,
    surprisals: Any = None,
    penalties: Any = None,
) -> FilterResult:
    """Decides which groups a step learns from. By default it keeps the fewest groups that hold 90% of the summed reward
    variance. `squelch filter` is this function on a file.

    Args:
        rewards: (num_groups, group_size), or (num_rows,) with `group_ids`: rewards without format penalty; NaN or None
            for a completion that failed or was not scored.
        group_ids: (num_rows,) the label of each row's group, e.g. verl's `uid`, which no row may lack; rows may come in
            any order, and groups may differ in size. None: each row of `rewards` is a group.
        rule: selection rule, an entry of `kit.filter.rules.RULES` (top_p, top_k, min_p, …, none).
        rho: top_p: share of the summed statistic to keep; top_k: share of groups; min_p: share of the largest score; in
            (0, 1].
        statistic: what groups are ranked by, an entry of `kit.filter.statistics.STATISTICS`.
        keep: whether the groups with the largest or the smallest scores are kept.
        include_zero: whether groups whose |score| <= 1e-10 may be kept.
        epsilon: top_p: tolerance of the threshold, in `epsilon_unit`; at least 0.
        epsilon_unit: `relative`: a share of the largest score; `absolute`: the statistic's unit. None: relative;
            absolute under compat="ragen".
        band: band: lower and upper quantile of the scores that are kept.
        compat: `paper`, or `ragen` for the definitions of the authors' code (standard deviation of rewards with format
            penalties, at least one group for top_k).
        lengths: of the shape of `rewards`: sampled tokens, for statistic="length".
        surprisals: of that shape: mean -log p of the sampled tokens, nats, for the statistics of entropy.
        penalties: of that shape: format penalties, <= 0, for compat="ragen".

    Raises:
        ValueError: an array has another shape, a setting is unknown or out of its range, the statistic's array is
            missing, or a statistic of differences within groups is given groups of one completion.
    """
    config = filter_settings(
        rule=rule,
        rho=rho,
        statistic=statistic,
        keep=keep,
        include_zero=include_zero,
        epsilon=epsilon,
        epsilon_unit=epsilon_unit,
        band=tuple(band),
        compat=compat,
    )
    arrays = {"lengths": lengths, "surprisals": surprisals, "penalties": penalties}
    given = {name: numbers(name, array) for name, array in arrays.items() if array is not None}
    values = numbers("rewards", rewards)
    if group_ids is None:
        owner = np.broadcast_to(np.arange(len(values))[:, None], values.shape) if values.ndim == 2 else None
        return decide(groups_of(values, **given), config, owner)
    names, owner = _owners(values, labels("group_ids", group_ids))
    _require_shapes(values, given)
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    groups = [
        GroupStatistics.from_row(str(index), 0, values[own], **{name: array[own] for name, array in given.items()})
        for index, own in enumerate(rows)
    ]
    return replace(decide(groups, config, owner), group_ids=names)


def filter_settings(**given: Any) -> FilterConfig:
    """The filter's settings; OutOfRange or ValueError with the setting's name."""
    try:
        return FilterConfig(**given)
    except ValidationError as error:
        first = error.errors()[0]
        text = first["msg"].removeprefix("Value error, ")
        name = str((first["loc"] or ("band" if text.startswith("band") else "",))[0])
        if name in RANGES:
            raise OutOfRange(f"{name} is {given[name]}; it must be {RANGES[name]}") from error
        raise ValueError(f"{name} is {given[name]!r}: {text}" if name else text) from error


def groups_of(rewards: np.ndarray, kinds: np.ndarray | None = None, **columns: np.ndarray) -> list[GroupStatistics]:
    """The groups of a table of rewards (num_groups, group_size). `columns`: further arrays by name, as of `filter`;
    `kinds`: (num_groups,) the kind of each group's task. ValueError for another shape."""
    if rewards.ndim != 2 or 0 in rewards.shape:
        raise ValueError(
            f"`rewards` has shape {rewards.shape}; it must be (num_groups, group_size) with at least one group and one "
            "trajectory; a failed trajectory is NaN"
        )
    _require_shapes(rewards, columns)
    if kinds is not None and kinds.shape != rewards.shape[:1]:
        raise ValueError(f"`kinds` has shape {kinds.shape}; it must be ({len(rewards)},), one kind for each group")
    rows = [
        GroupStatistics.from_row(str(i), 0, rewards[i], **{name: np.asarray(a[i]) for name, a in columns.items()})
        for i in range(len(rewards))
    ]
    if kinds is None:
        return rows
    names = [kind.decode(errors="replace") if isinstance(kind, bytes) else str(kind) for kind in kinds.tolist()]
    return [replace(row, kind=name) for row, name in zip(rows, names, strict=True)]


def decide(groups: Sequence[GroupStatistics], config: FilterConfig, owner: np.ndarray | None = None) -> FilterResult:
    """The filter's decision on groups that are ranked together, whose ids break ties. `owner`: index of each
    completion's group. ValueError as of `filter`."""
    needs, filters = STATISTICS[config.statistic].needs, RULES[config.rule].filters
    if filters and needs > 1 and groups and all(group.group_size == 1 for group in groups):
        raise ValueError(
            f"every group has one trajectory, and {config.statistic} compares the trajectories of a group; sample "
            "several completions of each prompt, or take the rule none"
        )
    measured = measure(groups, config.statistic, config.compat, config.rule)
    order = ticket_order([group.group_id for group in groups])
    found = select(measured.scores, order, config, variances=measured.variances, refusals=measured.refusals)
    kept = np.zeros(len(groups), dtype=bool)
    kept[list(found.kept)] = True
    return FilterResult(
        kept=kept,
        kept_rows=kept if owner is None else kept[owner],
        scores=measured.scores,
        variances=measured.variances,
        means=measured.means,
        kept_fraction=found.kept_fraction,
        kept_mass=found.kept_mass,
        num_zero=found.num_zero,
        threshold=found.threshold,
        rejection=found.rejection,
        codes=found.codes,
        reasons=found.reasons,
        group_ids=tuple(range(len(groups))),
        settings=config.describe(),
    )


def _owners(rewards: np.ndarray, given: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray]:
    """(labels in order of their first appearance, (num_rows,) index of each row's group)."""
    if rewards.ndim != 1 or not len(rewards) or given.shape != rewards.shape:
        raise ValueError(
            f"`rewards` has shape {rewards.shape} and `group_ids` {given.shape}; with `group_ids` both must be "
            "(num_rows,), with at least one row"
        )
    _, first, owner = np.unique(given, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return tuple(given[first[order]].tolist()), np.argsort(order)[owner]


def _require_shapes(rewards: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    for name, array in columns.items():
        if array.shape != rewards.shape:
            raise ValueError(f"`{name}` has shape {array.shape}; it must be that of `rewards`, {rewards.shape}")
