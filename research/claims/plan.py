"""The cells of the claims, in order of value: after any number of them, the most that such a number can tell is told.

Every arm was fixed before its first run. An arm's base is the recipe as it comes (`sokoban`, `frozenlake`,
`countdown`); the arm names what it changes. The recipes' learning rate falls to its floor within the first 40 to 60
steps and stays there, so a run of 60 steps is the beginning of a run of 300, and a claim about 60 steps also counts the
longer runs of its arm. Cells of one seed play the same tasks in every arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.cells import Study, StudyCell

Settings = Mapping[str, Any]
STEP_S: Mapping[str, float] = {"sokoban": 5.2, "frozenlake": 2.6, "countdown": 2.2}
"""Expected seconds of a step on two idle cores (Zen 4), validation, scoring and the probe included."""
COMMON = (
    "recorder.report=false",
    "recorder.port=0",
    "scorer.every=10",
    "scorer.probe.every=60",
    "validation.every=30",
    "loop.checkpoint_every=30",
    "loop.keep_checkpoints=1",
)
"""Settings of every cell: as much measurement as the claims need, and nothing that is for people."""
ENTROPY, KL = "learner.objective.entropy_coefficient", "learner.objective.kl.coefficient"
NONE: Settings = {"filter.rule": "none"}
TOP_P: Settings = {"filter.rule": "top_p", "filter.rho": 0.9}
BASE: Mapping[str, Settings] = {"none": NONE, "top_p": TOP_P}
LEAD_STEPS, LONG_STEPS, SHORT_STEPS, COUNTDOWN_STEPS = 180, 300, 60, 40
LEAD_SEEDS, LONG_SEEDS, SEEDS, NOISE_SEEDS = range(5), (5, 6, 7), (0, 1, 2), range(5)
REGULARISERS: Mapping[str, Settings] = {
    "top_p0.5": {"filter.rule": "top_p", "filter.rho": 0.5},
    "none_ent0.1": {**NONE, ENTROPY: 0.1},
    "none_kl0.1": {**NONE, KL: 0.1},
    "none_ent0.03": {**NONE, ENTROPY: 0.03},
}
"""Interventions of Figures 8 and 13, besides the base."""
RULES: Mapping[str, Settings] = {
    "top_k0.25": {"filter.rule": "top_k", "filter.rho": 0.25},
    "top_k0.5": {"filter.rule": "top_k", "filter.rho": 0.5},
    "smallest": {"filter.rule": "top_k", "filter.rho": 0.5, "filter.keep": "smallest", "filter.include_zero": True},
    "min_p0.05": {"filter.rule": "min_p", "filter.rho": 0.05},
    "min_p0.2": {"filter.rule": "min_p", "filter.rho": 0.2},
    "reward_sum": {"filter.rule": "top_k", "filter.rho": 0.5, "filter.statistic": "reward_sum"},
    "entropy": {**TOP_P, "filter.statistic": "entropy"},
    "entropy_variance": {**TOP_P, "filter.statistic": "entropy_variance"},
    "length": {**TOP_P, "filter.statistic": "length"},
}
"""Arms of Table 5, besides the base. `reward_sum` ranks, because top_p refuses Sokoban's negative sums."""
CRITIC: Settings = {"learner.critic.learning_rate": 5e-4}
ALGORITHMS: Mapping[str, Settings] = {
    "ppo": {"learner.algorithm": "ppo", **CRITIC},
    "dr_grpo": {"learner.algorithm": "dr_grpo", "learner.objective.aggregation": "constant"},
}
DAPO: Mapping[str, Settings] = {
    "dapo_none": {"learner.algorithm": "dapo", "filter.rule": "top_p", "filter.rho": 1.0},
    "dapo_top_p": {"learner.algorithm": "dapo", "learner.algorithm_filter": False, **TOP_P},
}
"""DAPO as its authors have it (groups without variance are replaced), and with the filter in its place."""
NOISE_LEVELS = (0.0, 0.2, 0.5, 0.8, 1.0)
MANY = (0.8, 1.0)
"""Noise levels that get five seeds instead of three: there the paper's advantage vanishes."""
SLIP_OF_NOISE = 0.75
"""With probability p the executed direction is uniform over the four; in 3/4 of these cases it is another one."""
GRADIENTS: Settings = {"gradients.every": 15}
GRADIENT_STEPS = 30
DECOMPOSITION_S = 120.0
"""Seconds of one decomposition of the gradient."""


def _cell(part: str, recipe: str, arm: str, settings: Settings, seed: int, steps: int, **extra: Any) -> StudyCell:
    return StudyCell(part, recipe, arm, settings, seed, steps, STEP_S[recipe], extra)


def pairs(part: str, recipe: str, seeds: Sequence[int], steps: int) -> Iterator[StudyCell]:
    """The base without and with the filter, seed by seed; the side that goes first alternates."""
    for place, seed in enumerate(seeds):
        for arm in ("none", "top_p") if place % 2 == 0 else ("top_p", "none"):
            yield _cell(part, recipe, arm, BASE[arm], seed, steps)


def arms(
    part: str, recipe: str, chosen: Mapping[str, Settings], seeds: Sequence[int] = SEEDS, steps: int = SHORT_STEPS
) -> Iterator[StudyCell]:
    """Every arm, seed by seed."""
    for seed in seeds:
        for arm, settings in chosen.items():
            yield _cell(part, recipe, arm, settings, seed, steps)


def algorithms() -> dict[str, Settings]:
    """The arms of Table 4's algorithms other than GRPO, each without and with the filter."""
    crossed = {f"{name}_{arm}": {**own, **BASE[arm]} for name, own in ALGORITHMS.items() for arm in BASE}
    return {**crossed, **DAPO}


def noise_arm(arm: str, level: float) -> str:
    """The name of an arm of Figure 9."""
    return f"{arm}_noise{level:g}"


def noise() -> Iterator[StudyCell]:
    """Figure 9: FrozenLake without and with the filter at each level of noise."""
    for seed in NOISE_SEEDS:
        for level in NOISE_LEVELS:
            if seed in SEEDS or level in MANY:
                slip = {"environment.options.slip_rate": SLIP_OF_NOISE * level}
                for arm, settings in BASE.items():
                    own = {**settings, **slip}
                    yield _cell("noise", "frozenlake", noise_arm(arm, level), own, seed, SHORT_STEPS)


def gradients() -> Iterator[StudyCell]:
    """Figure 3: decompositions of the gradient under GRPO and PPO, with a KL term as the paper's second regulariser."""
    for seed in SEEDS:
        for name, own in {"grpo": {}, "ppo": ALGORITHMS["ppo"]}.items():
            settings = {**NONE, **own, KL: 0.001}
            arm, step_s = f"{name}_kl0.001", STEP_S["sokoban"] + DECOMPOSITION_S / GRADIENTS["gradients.every"]
            yield StudyCell("gradients", "sokoban", arm, settings, seed, GRADIENT_STEPS, step_s, GRADIENTS)


def every_cell() -> list[StudyCell]:
    """All cells in order of value."""
    return [
        *pairs("lead", "sokoban", LEAD_SEEDS, LEAD_STEPS),
        *pairs("long", "frozenlake", SEEDS, LONG_STEPS),
        *pairs("long", "sokoban", LONG_SEEDS, LONG_STEPS),
        *arms("plane", "sokoban", REGULARISERS),
        *arms("rules", "frozenlake", {"top_k0.25": RULES["top_k0.25"]}),
        *arms("rules", "countdown", {**BASE, "top_k0.25": RULES["top_k0.25"]}, steps=COUNTDOWN_STEPS),
        *arms("rules", "sokoban", RULES),
        *gradients(),
        *noise(),
        *arms("algorithms", "sokoban", algorithms()),
        *arms("algorithms", "frozenlake", algorithms()),
    ]


STUDY = Study("claims", COMMON, tuple(every_cell()), Path(__file__).parents[1] / "results" / "claims")
