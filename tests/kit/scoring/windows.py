"""Windows of groups for the scorer's tests."""

import numpy as np

from squelch.actors.config import ScorerConfig
from squelch.kit.records.records import Trajectory, Turn

CONFIG = ScorerConfig(samples_per_prompt=2, trajectory_draws=12, timeout_s=60.0)


def trajectory(index: int, prompt: int, version: int = 0, vocabulary: int = 1000) -> Trajectory:
    ids = np.array([prompt, 3, 4, prompt, index % vocabulary, 5, 6, 7], dtype=np.int32)
    turn = Turn(3, 8, 3, 6, 0.0, 0.0, True, False, 1, version, version)
    return Trajectory(index, ids, np.arange(8) >= 3, np.zeros(8, dtype=np.float32), [turn], False, False)


def window(version: int = 0, num_groups: int = 8) -> dict[str, list[Trajectory]]:
    return {f"g{g}": [trajectory(i, 10 + g, version) for i in range(4)] for g in range(num_groups)}
