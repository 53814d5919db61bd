"""Levels of the run itself: trajectories that fail, groups that are refused, and where a step's time goes. Pure."""

from __future__ import annotations

from squelch.kit.findings.history import History
from squelch.kit.findings.level import Level, Levels, of_key

PARTS = {
    "rollout": "sampling and the environments",
    "train": "the learner",
    "publish": "the weights' way to the rollout workers",
    "filter": "the filter",
    "archive": "the archive",
    "orchestration": "the driver",
}
"""The parts of a step that do not overlap, in words."""


def _failed_share(history: History) -> float | None:
    failed, alive = history.now("trajectories_failed"), history.now("trajectories")
    return None if failed is None or alive is None or failed + alive == 0 else failed / (failed + alive)


def _fail(history: History) -> Level | None:
    share = _failed_share(history)
    if share is None:
        return None
    causes = {cause: count for cause, count in history.newest("failures/").items() if count > 0}
    most = max(causes, key=lambda cause: causes[cause], default=None)
    why = (
        "" if most is None else f", all with {most}" if len(causes) == 1 else f", most with {most} ({causes[most]:.0f})"
    )
    return Level(share, {"why": why, "failed": history.now("trajectories_failed")})


def _refused(history: History) -> Level | None:
    """The share of refused groups, where failed trajectories do not explain it."""
    refused, groups = history.now("refused_groups"), history.now("num_groups")
    if refused is None or not groups:
        return None
    return Level(0.0 if (_failed_share(history) or 0.0) > 0 else refused / groups)


def _bound(history: History) -> Level | None:
    whole = history.recent("seconds/step", 10)
    parts = {part: history.recent(f"seconds/{part}", 10) for part in PARTS}
    known = {part: value for part, value in parts.items() if value is not None}
    if not whole or not known:
        return None
    most = max(known, key=lambda part: known[part])
    return Level(known[most] / whole, {"part": PARTS[most], "seconds": known[most], "whole": whole})


def _slower(history: History) -> Level | None:
    ratio = history.change("seconds/step", 10)
    if ratio is None:
        return None
    return Level(ratio, {"before": history.early("seconds/step"), "now": history.recent("seconds/step", 10)})


LEVELS: Levels = {
    "trajectories_fail": _fail,
    "groups_refused": _refused,
    "prompts_differ": of_key("groups/differing_prompts"),
    "step_bound": _bound,
    "steps_slow_down": _slower,
}
