"""Which groups each candidate rho would keep, chosen from half of their trajectories, and q of that choice. Pure numpy.

The choice is the filter's own: its statistic, its rule and its floor of a step (`filter.min_groups`), on the rewards of
one half of each group. `learner.decomposition.alignment` says what q means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from squelch.actors.config import FilterConfig
from squelch.actors.filter.floors import Ranked, added_by_floors, may_add
from squelch.actors.filter.measure import GroupStatistics, measure
from squelch.actors.filter.selection import best_first, explain, pick, without_rounding
from squelch.actors.filter.tickets import ticket_order
from squelch.learner.decomposition.alignment import HalfGram
from squelch.learner.decomposition.statistics import split_halves


@dataclass(frozen=True)
class Alignment:
    """q of every rho of a grid at one step. `kept`: mean number of groups that the rho keeps, over the two halves."""

    q: Mapping[float, float]
    kept: Mapping[float, float]
    num_groups: int


def alignment(
    gram: HalfGram, groups: Sequence[GroupStatistics], config: FilterConfig, grid: Sequence[float]
) -> Alignment:
    """q of each rho of `grid` under the filter's rule and its floor of a step. `groups`: those of `gram`, any order."""
    by_id = {group.group_id: group for group in groups}
    ordered = [by_id[group_id] for group_id in gram.group_ids]
    q, kept = {}, {}
    for rho in grid:
        masks = [chosen(_halves(ordered, half), config.model_copy(update={"rho": rho})) for half in (0, 1)]
        q[rho] = sum(gram.q(mask, half) for half, mask in enumerate(masks)) / 2
        kept[rho] = float(sum(mask.sum() for mask in masks)) / 2
    return Alignment(q, kept, gram.num_groups)


def chosen(groups: Sequence[GroupStatistics], config: FilterConfig) -> np.ndarray:
    """(n,) bool: the groups that the rule keeps of a whole window, with the floor `filter.min_groups`."""
    measured = measure(groups, config.statistic, config.compat, config.rule)
    order = ticket_order([group.group_id for group in groups])
    mask = pick(measured.scores, order, config)
    if not config.min_groups:
        return mask.kept
    scores, variances = measured.scores.tolist(), measured.variances.tolist()
    rows = zip(scores, mask.kept.tolist(), measured.refusals, strict=True)
    codes = [explain(*row, mask, config)[0] for row in rows]
    best = best_first(without_rounding(measured.scores), order, config).tolist()
    ranked = [
        Ranked(str(i), None, rank, bool(mask.kept[i]), may_add(codes[i], scores[i], variances[i]))
        for rank, i in enumerate(best)
        if codes[i] != "refused"
    ]
    kept = mask.kept.copy()
    kept[[int(name) for name in added_by_floors(ranked, {}, {}, config.model_copy(update={"kind_floor": 0.0}))]] = True
    return kept


def _halves(groups: Sequence[GroupStatistics], half: int) -> list[GroupStatistics]:
    """The groups with the trajectories of one half only, the halves of `split_halves`."""
    found = []
    for group in groups:
        first = split_halves(group.group_id, len(group.indices))
        if first is None:
            raise RuntimeError(f"group {group.group_id} has too few trajectories to be split")
        inside = np.flatnonzero(first if half == 0 else ~first)
        indices = tuple(group.indices[i] for i in inside.tolist())
        part = replace(
            group,
            indices=indices,
            group_size=len(indices),
            returns=group.returns[inside],
            penalties=_at(group.penalties, inside),
            lengths=_at(group.lengths, inside),
            surprisals=_at(group.surprisals, inside),
            replay_returns=_at(group.replay_returns, inside),
        )
        found.append(part)
    return found


def _at(column: np.ndarray | None, places: np.ndarray) -> np.ndarray | None:
    return None if column is None else column[places]
