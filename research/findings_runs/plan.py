"""The runs by which the findings are judged, fixed before the first of them: healthy ones, and planted faults. Pure.

healthy   the recipes as they are shipped, three seeds each; `prompts` (SmolLM2) with fewer and smaller steps. The
          parts `tune` and `judge` have six runs each: thresholds may be chosen by the first alone
planted   a recipe with one fault from its first step on. Where a fault leaves nothing to learn the filter is off,
          without which the run would end after five steps (`filter.no_signal_limit`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.cells import StudyCell
from research.findings_runs import faults

TUNE, JUDGE, PLANTED = "tune", "judge", "planted"
SEEDS, PLANTED_SEED = (201, 202, 203), 200
TUNED: Mapping[str, Sequence[int]] = {
    "frozenlake": (201, 202),
    "sokoban": (201,),
    "countdown": (201, 202),
    "prompts": (201,),
}
"""The seeds of each recipe by which thresholds may be tuned; the others judge."""
EXAMPLE = "squelch.envs.prompt_file:example.jsonl"
SMALL = {"sampling.group_size": 4, "validation.tasks": 32, "validation.every": 10}
"""Steps of SmolLM2 that two cores make in half a minute."""
UNFILTERED = {"filter.rule": "none"}


HEALTHY: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "frozenlake": (60, {}),
    "sokoban": (45, {}),
    "countdown": (40, {}),
    "prompts": (20, SMALL),
}
"""The steps of a healthy run of each recipe, and what it changes of the recipe."""


@dataclass(frozen=True)
class Fault:
    """A planted fault. `expected`: the findings that name it, of which one must be a warning or critical in time."""

    recipe: str
    steps: int
    expected: Sequence[str]
    settings: Mapping[str, Any]


FAULTS: Mapping[str, Fault] = {
    "form": Fault(
        *("frozenlake", 30, ("reward_hacked",)),
        {**UNFILTERED, "environment.options.pays": "format", "validation.every": 10},
    ),
    "cut": Fault("frozenlake", 20, ("turns_cut",), {**UNFILTERED, "sampling.max_tokens_per_turn": 12}),
    "agents": Fault(
        *("prompts", 20, ("trajectories_fail",)),
        {
            "environment.name": "Agent",
            "environment.options": {"command": ["python3", "-c", faults.AGENT], "data": EXAMPLE},
        },
    ),
    "verifier": Fault(
        *("prompts", 20, ("reward_constant", "none_solved")),
        {**SMALL, "environment.options.reward": f"{faults.__name__}:exact"},
    ),
    "entropy": Fault(
        *("frozenlake", 30, ("entropy_explodes",)),
        {**UNFILTERED, "learner.objective.entropy_coefficient": 2.0},
    ),
    "rate": Fault(
        *("frozenlake", 30, ("updates_clipped", "validation_falls", "success_collapsed")),
        {**UNFILTERED, "learner.optimizer.learning_rate": 6e-3, "validation.every": 10},
    ),
    "stale": Fault(
        *("frozenlake", 30, ("groups_stale",)),
        {
            **UNFILTERED,
            "loop.max_staleness": 16,
            "learner.objective.anchor": "recomputed",
            "learner.optimizer.learning_rate": 1e-3,
        },
    ),
    "penalty": Fault("sokoban", 40, ("actions_fall",), {**UNFILTERED, "learner.optimizer.learning_rate": 4e-4}),
}
"""A reward for the form; turns that the limit of tokens cuts; agents that fail; a verifier that is never content; an
entropy bonus that outweighs the reward; 30 times the learning rate; groups of weights from 16 steps ago, of a policy
that moves fast; and a penalty for each action that the division by a group's deviation makes as large as success
(docs/research/findings.md)."""
IN_STEPS, IN_SCORINGS = 20, 3
"""A planted fault is found in time within so many steps, or so many scorings."""


def cells() -> list[StudyCell]:
    """The cells: a healthy run, the faults, the other runs that tune, and those that judge."""
    runs = [_healthy(name, seed) for seed in SEEDS for name in HEALTHY]
    tuning, judging = ([cell for cell in runs if cell.part == part] for part in (TUNE, JUDGE))
    planted = [
        StudyCell(PLANTED, one.recipe, name, one.settings, PLANTED_SEED, one.steps) for name, one in FAULTS.items()
    ]
    return [*tuning[:1], *planted, *tuning[1:], *judging]


def _healthy(name: str, seed: int) -> StudyCell:
    steps, settings = HEALTHY[name]
    return StudyCell(TUNE if seed in TUNED[name] else JUDGE, name, "shipped", settings, seed, steps)
