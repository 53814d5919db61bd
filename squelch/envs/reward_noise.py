"""Additive Gaussian reward noise: makes the return of any environment stochastic (`environment.reward_noise`).

    squelch train countdown environment.reward_noise.std=0.5

One normal draw with mean 0 is added to the reward of an episode's last turn, so that the expected return of a policy,
and with it the order of policies, stays as it is. The draw follows the noise seed: the same trajectory is paid the same
again. The policy never reads it, because no message follows the last turn. An episode that stops because the context
has no room for a further turn gets no draw.
"""

from __future__ import annotations

import random

from pydantic import Field

from squelch.kit.base.settings import Settings


class RewardNoise(Settings):
    """Additive Gaussian noise on the return of an episode (`envs.reward_noise`)."""

    std: float = Field(0.0, ge=0)
    """Standard deviation of the noise, in the unit of the reward; 0 adds none."""

    def draw(self, noise_seed: int) -> float:
        """The noise of the episode with that noise seed."""
        return random.Random(f"reward noise {noise_seed}").gauss(0.0, self.std) if self.std else 0.0


NO_NOISE = RewardNoise()
