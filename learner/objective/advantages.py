"""Advantages: how good each trajectory was next to its group; what every sampled token was paid. Pure numpy, float64.

Invariants:

- A group whose returns do not differ has group advantage 0 everywhere; nothing here ever divides by a number that
  stands for rounding.
- What enters an advantage: rewards; format penalties if asked; the over-long penalty and a KL in the reward where they
  are on. What enters the filter: rewards alone (`actors.filter.measure`).
- A critic's advantages do not compare a group: `learner.objective.gae`.
"""

import numpy as np

from actors.records import Trajectory
from learner.config import ObjectiveConfig, OverlongConfig
from learner.objective.components import ADVANTAGES

RELATIVE_ZERO = 1e-10
"""A std below this share of the largest absolute value (or of 1) is rounding, not signal."""


def shaped_returns(returns: np.ndarray, format_penalties: np.ndarray, include_penalty: bool) -> np.ndarray:
    """What the advantage ranks, (num_survivors,) float64: the episode return, with the format penalty if asked."""
    base = np.asarray(returns, dtype=np.float64)
    return base + np.asarray(format_penalties, dtype=np.float64) if include_penalty else base


def group_advantages(returns: np.ndarray, estimator: str) -> np.ndarray:
    """Advantages of one group's surviving trajectories, (num_survivors,) float64, by an entry of
    `learner.objective.components.ADVANTAGES`. Returns that do not differ, and a single survivor, have advantage 0."""
    values = np.asarray(returns, dtype=np.float64)
    return np.zeros_like(values) if _all_alike(values) else ADVANTAGES[estimator].of_group(values)


def _all_alike(values: np.ndarray) -> bool:
    return len(values) < 2 or bool(values.std(ddof=1) <= RELATIVE_ZERO * max(1.0, float(np.abs(values).max())))


def overlong_penalties(lengths: np.ndarray, config: OverlongConfig) -> np.ndarray:
    """What turns of `lengths` (n,) sampled tokens lose, (n,) float64, <= 0 (DAPO, Eq. 13, times `penalty`).

    0 up to L_max - L_cache, then ((L_max - L_cache) - |y|) / L_cache down to -1 at L_max, -1 above.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    if not config.penalty:
        return np.zeros_like(tokens)
    free = config.max_tokens - config.cache_tokens
    share = (free - tokens) / config.cache_tokens if config.cache_tokens else -np.where(tokens > free, 1.0, 0.0)
    return config.penalty * np.clip(share, -1.0, 0.0)


def token_rewards(trajectory: Trajectory, config: ObjectiveConfig) -> np.ndarray:
    """Reward of each sampled token, (num_sampled,) float64: 0 but on a turn's last one.

    With `reward: episode` everything stands on the episode's last sampled token. The sum is what a group ranks. A turn
    that sampled nothing pays the sampled token before it.
    """
    rewards = np.zeros(int(trajectory.loss_mask.sum()))
    last = np.cumsum(trajectory.loss_mask) - 1
    lengths = np.array([turn.sample_end - turn.sample_start for turn in trajectory.turns])
    paid = _paid(trajectory, config) + overlong_penalties(lengths, config.overlong)
    for turn, value in zip(trajectory.turns, paid.tolist(), strict=True):
        place = max(0, int(last[turn.sample_end - 1])) if turn.sample_end else 0
        rewards[place if config.reward == "turn" else -1] += value
    return rewards


def _paid(trajectory: Trajectory, config: ObjectiveConfig) -> np.ndarray:
    """(num_turns,) rewards with the format penalty if asked."""
    rewards = np.array([turn.reward for turn in trajectory.turns])
    penalties = np.array([turn.format_penalty for turn in trajectory.turns])
    return shaped_returns(rewards, penalties, config.include_format_penalty)
