"""Advantages of a group's trajectories, and the reward of every sampled token. Pure numpy, float64. A new estimator is
an entry of `ADVANTAGES` in `learner.objective.components`.

Invariants:

- A group whose returns do not differ has advantage 0 everywhere, or, with a KL term in the reward, the centred costs of
  that term; no function here divides by a standard deviation that is only rounding error.
- Advantages are computed from the rewards and, if configured, from format penalties, the over-long penalty and a KL
  term in the reward. The filter uses the rewards alone (`kit.filter.measure`).
- With a critic, advantages do not compare the trajectories of a group: see `learner.objective.gae`.
"""

import numpy as np

from squelch.kit.records.equal_rewards import are_equal
from squelch.kit.records.records import Trajectory
from squelch.learner.config import ObjectiveConfig, OverlongConfig
from squelch.learner.objective.components import ADVANTAGES, centred


def shaped_returns(returns: np.ndarray, format_penalties: np.ndarray, include_penalty: bool) -> np.ndarray:
    """Returns that the advantages compare, (num_survivors,) float64: episode returns, plus format penalties if
    asked."""
    base = np.asarray(returns, dtype=np.float64)
    return base + np.asarray(format_penalties, dtype=np.float64) if include_penalty else base


def group_advantages(returns: np.ndarray, estimator: str, divisor: float | None = None) -> np.ndarray:
    """Advantages of one group's surviving trajectories, (num_survivors,) float64, by an entry of
    `learner.objective.components.ADVANTAGES`. Returns that do not differ, and a single survivor, have advantage 0.

    `divisor`: instead of the rule, the centred returns are divided by this value; by 1 if it is 0, where only penalties
    differ.
    """
    values = np.asarray(returns, dtype=np.float64)
    if are_equal(values):
        return np.zeros_like(values)
    return ADVANTAGES[estimator].of_group(values) if divisor is None else centred(values) / (divisor or 1.0)


def group_advantages_with_costs(returns: np.ndarray, costs: np.ndarray, estimator: str) -> np.ndarray:
    """As `group_advantages` of the returns minus the costs of a KL term in the reward, each (num_survivors,). Where the
    returns themselves do not differ, the costs are centred and not divided by their own standard deviation, which would
    take their coefficient away and make of the smallest KL term a full step."""
    values = np.asarray(returns, dtype=np.float64)
    if len(values) > 1 and are_equal(values):
        return centred(values - costs)
    return group_advantages(values - costs, estimator)


def overlong_penalties(lengths: np.ndarray, config: OverlongConfig) -> np.ndarray:
    """Over-long penalties of turns with `lengths` (n,) sampled tokens, (n,) float64, <= 0 (DAPO, Eq. 13).

    The equation's value is 0 up to L_max - L_cache tokens, then ((L_max - L_cache) - |y|) / L_cache, which reaches -1
    at L_max, and -1 above; it is multiplied by `config.penalty`.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    if not config.penalty:
        return np.zeros_like(tokens)
    free = config.max_tokens - config.cache_tokens
    share = (free - tokens) / config.cache_tokens if config.cache_tokens else -np.where(tokens > free, 1.0, 0.0)
    return config.penalty * np.clip(share, -1.0, 0.0)


def token_rewards(trajectory: Trajectory, config: ObjectiveConfig) -> np.ndarray:
    """Reward of each sampled token, (num_sampled,) float64: 0 except at the last sampled token of each turn.

    With `reward: episode` the last sampled token of the episode gets the whole sum, which is the return that advantages
    compare within the group. The reward of a turn without sampled tokens goes to the sampled token before it.
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
    """Reward of each turn, (num_turns,), with its format penalty if configured."""
    rewards = np.array([turn.reward for turn in trajectory.turns])
    penalties = np.array([turn.format_penalty for turn in trajectory.turns])
    return shaped_returns(rewards, penalties, config.include_format_penalty)
