"""The arms, steps and noise levels of the runs that the claims are about. Every arm was fixed before its first run.

An arm's base is the recipe as it came (`sokoban`, `frozenlake`, `countdown`); what an arm changes stands in the table,
as `changed`; arms with top_p had `filter.epsilon_unit=absolute` (0.01). The recipes' learning rate falls to its floor
within the first 40 to 60 steps and stays there, so a run of 60 steps is the beginning of a run of 300, and a claim
about 60 steps also counts the longer runs of its arm. Cells of one seed play the same tasks in every arm.
"""

from __future__ import annotations

from collections.abc import Sequence

BASE = ("none", "top_p")
"""Without the filter, and with top-p 0.9."""
LEAD_STEPS, LONG_STEPS, SHORT_STEPS, COUNTDOWN_STEPS, GRADIENT_STEPS = 180, 300, 60, 40, 30
SEEDS, NOISE_SEEDS = range(3), range(5)
REGULARISERS = ("top_p0.5", "none_ent0.1", "none_kl0.1", "none_ent0.03")
"""Interventions of Figures 8 and 13, besides the base."""
NOISE_LEVELS = (0.0, 0.2, 0.5, 0.8, 1.0)
MANY = (0.8, 1.0)
"""Noise levels that get five seeds instead of three: there the paper's advantage vanishes."""


def noise_arm(arm: str, level: float) -> str:
    """The name of an arm of Figure 9."""
    return f"{arm}_noise{level:g}"


def seeds_at(level: float) -> Sequence[int]:
    """The seeds of a noise level."""
    return NOISE_SEEDS if level in MANY else SEEDS
