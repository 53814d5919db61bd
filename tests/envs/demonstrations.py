"""Episodes that an environment's own demonstrator plays."""

import random

from squelch.envs.base import TextEnv
from squelch.envs.wording import DemonstrationQuality

PERFECT = DemonstrationQuality(grounded=1, wrong_coordinates=0, random_plan=0)
TRUE = DemonstrationQuality(grounded=1, wrong_coordinates=0)
"""All state the task, and nothing that is false; only some plans are bad."""


def last_reward(env: TextEnv, seed: int, rng: random.Random, quality: DemonstrationQuality) -> float:
    """What the last action of one demonstrated episode paid, 0 where it did not end; every action has to be valid."""
    env.reset(seed=seed)
    for _ in range(env.max_turns):
        _, actions = env.demonstrate(rng, quality)
        _, reward, terminated, _, info = env.step(*actions)
        assert info["action_valid"]
        if terminated:
            return reward
    return 0.0
