"""What a run's filter saved, and what it cost, from the run's metrics. Pure.

| metric | definition |
|---|---|
| groups_played | groups ranked by the filter, refills included |
| groups_trained | groups learned from: under `filter.target=regulariser` and `task` the dropped ones too |
| tokens_not_trained | sampled tokens of training rollouts that no update learned from |
| rows_not_trained | trajectories that no update learned from; None in runs that did not record it |
| updates_skipped | training steps without an update, because the filter kept nothing |
| seconds_not_trained | training seconds a trained token, times `tokens_not_trained`: an estimate |
| seconds_thrown_away | the cost: rollout seconds, times the share of groups that were not learned from |
| refill_rounds | the cost: further rounds of rollouts that replaced dropped groups |
| gain_per_100_groups, gain_per_100_updates | gain in validation success for 100 groups, or updates, learned from |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Savings = dict[str, float | None]


def filter_savings(lines: Sequence[Mapping[str, Any]], gain: float | None) -> Savings:
    """The metrics of the table above over these lines of metrics.jsonl, one a step; empty if no step was filtered.
    `gain`: validation success at the end minus that before training."""
    steps = [line for line in lines if line.get("num_groups") is not None]
    played = _sum(steps, "num_groups")
    # of a run that did not record what it learned from: the groups that the filter kept
    trained = float(sum(line.get("groups/trained", line.get("kept_groups")) or 0.0 for line in steps))
    sampled, learned = _sum(steps, "tokens/sampled"), _sum(steps, "tokens/trained")
    updates = _sum(steps, "optimizer_steps")
    counted = any("trajectories/trained" in line for line in steps)
    if not played:
        return {}
    left = max(0.0, sampled - learned)
    return {
        "groups_played": played,
        "groups_trained": trained,
        "tokens_not_trained": left,
        "rows_not_trained": _sum(steps, "trajectories") - _sum(steps, "trajectories/trained") if counted else None,
        "updates_skipped": float(sum(line.get("kept_groups") == 0 for line in steps)),
        "seconds_not_trained": _sum(steps, "seconds/train") / learned * left if learned else None,
        "seconds_thrown_away": _sum(steps, "seconds/rollout") * (1 - trained / played),
        "refill_rounds": _sum(steps, "refill_rounds"),
        "gain_per_100_groups": 100 * gain / trained if gain is not None and trained else None,
        "gain_per_100_updates": 100 * gain / updates if gain is not None and updates else None,
    }


def savings_line(savings: Savings) -> str:
    """The summary's line; empty if the filter dropped nothing."""
    if not savings or savings["groups_trained"] == savings["groups_played"]:
        return ""
    spared = savings["seconds_not_trained"]
    seconds = "" if spared is None else f", about {spared:.0f} s of training not spent"
    return (
        f"learned from {savings['groups_trained']:.0f} of {savings['groups_played']:.0f} groups: "
        f"{savings['tokens_not_trained']:.0f} tokens not trained on{seconds}, "
        f"{savings['seconds_thrown_away']:.0f} s of rollouts thrown away"
    )


def _sum(lines: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(sum(line[key] for line in lines if line.get(key) is not None))
