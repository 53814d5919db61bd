"""Replays of a trajectory's actions under fresh noise, from which the filter separates the variance of the policy from
that of the environment (docs/guide/filter.md, "Noisy rewards").

The *plan* of an episode is the list of actions that the policy's answers named, in the form in which the environment
was given them, or would have been: actions that an answer names after the environment has ended belong to the plan too,
since the policy chose them. A replay starts the same task under another noise seed and plays the plan open loop: nobody
looks at what happens.

- If the environment ends before the plan does, the rest of the plan is dropped, as in the episode itself.
- If the plan ends first, the replay ends there and its return is what was earned so far. This happens where the episode
  was ended by its own noise: turns that it never came to were never sampled. Plans of one turn are always whole.
- Badly formatted turns play the actions before the error, as in the episode. Format penalties are left out.
- Reward noise (`envs.noise.reward_noise`) is drawn anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from squelch.kit.untrusted.rewards import finite_reward

if TYPE_CHECKING:
    from squelch.envs.contract import Environment

MAX_SLICE_S = 0.05
"""Seconds after which `Replay.advance` returns, so that one call is bounded like one step of the environment."""


class Replay:
    """One replay of a plan in `env`, which it resets."""

    def __init__(
        self, env: Environment, seed: int, task_key: str, plan: Sequence[str], noise_seed: int, reward_noise: float
    ) -> None:
        """`task_key`: the digest of the task that the plan was made for; `reward_noise`: added to the return."""
        self._env, self._seed, self._task_key, self._noise_seed = env, seed, task_key, noise_seed
        self._plan, self._next, self._started = plan, 0, False
        self._earned, self._reward_noise = 0.0, reward_noise

    def advance(self, clock: Callable[[], float] = time.monotonic) -> float | None:
        """Plays on for at most MAX_SLICE_S and one step; returns the return of the replay, or None if it goes on.

        Raises what the environment raises, and RuntimeError if it starts another task than that of the plan.
        """
        until = clock() + MAX_SLICE_S
        if not self._started:
            self._start()
        while self._next < len(self._plan):
            if clock() >= until:
                return None
            self._step()
        return self._earned + self._reward_noise

    def _start(self) -> None:
        _, info = self._env.reset(seed=self._seed, options={"noise_seed": self._noise_seed})
        if info["task_key"] != self._task_key:
            raise RuntimeError("the environment started another task for the same seed, so it cannot be replayed")
        self._started = True

    def _step(self) -> None:
        _, reward, terminated, truncated, _ = self._env.step(self._plan[self._next])
        self._earned += finite_reward(reward)
        self._next = len(self._plan) if terminated or truncated else self._next + 1
