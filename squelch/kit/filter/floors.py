"""Floors under the rule's choice: the share of its groups that each kind keeps, and the number of groups of a step.

A rule ranks all groups of a window by one score, so a kind of task whose rewards vary less may never be kept. A floor
keeps further groups, the best-scored first. Only groups with reward variance and a score other than zero can be
added, which the rule dropped because others scored better (`below_threshold`): a group without signal teaches nothing
under any floor, whatever `filter.include_zero` lets the rule keep, and a window that the rule rejected as a whole stays
rejected. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from squelch.kit.filter.selection import Code
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import ZERO


@dataclass(frozen=True, slots=True)
class Ranked:
    """A valid group of a step. `rank`: its place among the step's groups, best first; `dropped`: whether a floor may
    add it (`may_add`)."""

    name: str
    kind: str | None
    rank: int
    kept: bool
    dropped: bool


def may_add(code: Code, score: float, variance: float) -> bool:
    """Whether a floor may add a group that the rule decided on with `code`: it has signal, and others scored better.
    `variance`: of its rewards; a score of another statistic, such as the length, is no signal."""
    return code == "below_threshold" and abs(score) > ZERO and variance > ZERO


def added_by_floors(
    groups: Sequence[Ranked], played: Mapping[str, int], kept: Mapping[str, int], config: FilterConfig
) -> dict[str, str]:
    """The groups that the floors add to those that are kept: name and reason.

    `groups`: the step's groups so far, without refused ones. `played`, `kept`: groups of each kind in the window of
    `filter.kind_window` groups before the step (`kit.filter.coverage`).
    """
    spare = sorted((group for group in groups if group.dropped), key=lambda group: group.rank)
    added: dict[str, str] = {}
    if config.kind_floor > 0:
        added |= _of_kinds(groups, spare, played, kept, config.kind_floor)
    missing = config.min_groups - sum(group.kept for group in groups) - len(added)
    others = [group for group in spare if group.name not in added]
    return added | {group.name: f"kept by filter.min_groups={config.min_groups}" for group in others[: max(0, missing)]}


def _of_kinds(
    groups: Sequence[Ranked], spare: Sequence[Ranked], played: Mapping[str, int], kept: Mapping[str, int], share: float
) -> dict[str, str]:
    """Adds to each kind the groups that it lacks for `share` of its groups in the window and the step, rounded down."""
    all_played = Counter(played) + Counter(group.kind for group in groups if group.kind is not None)
    all_kept = Counter(kept) + Counter(group.kind for group in groups if group.kind is not None and group.kept)
    added = {}
    for kind, count in all_played.items():
        missing = math.floor(share * count + 1e-9) - all_kept[kind]
        mine = [group for group in spare if group.kind == kind]
        reason = f"kept by filter.kind_floor={share:g}: {all_kept[kind]} of {count} groups of kind {kind!r} were kept"
        added |= {group.name: reason for group in mine[: max(0, missing)]}
    return added
