"""A small environment written for OpenEnv, to try the bridge with: say a word backwards, in at most three turns.

It needs `openenv`, and no Squelch (`squelch/envs/remote/openenv_bridge.py`).
"""

from __future__ import annotations

import random
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pi", "ra", "su", "te")
MAX_TURNS = 3


class Say(Action):
    """What the player says."""

    text: str


class Heard(Observation):
    """The word, and how much of the last answer was right."""

    word: str
    right_letters: int = 0


class ReversedWord(Environment[Say, Heard, State]):
    """The reward is 1 for the word said backwards, else the share of letters at their places, at the end."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Heard:
        """Draws a word."""
        self._state = State(episode_id=episode_id, step_count=0)
        self._word = "".join(random.Random(seed).choices(SYLLABLES, k=3))
        return Heard(word=self._word)

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        """Compares an answer with the word."""
        self._state.step_count += 1
        right = sum(a == b for a, b in zip(action.text, reversed(self._word), strict=False))
        solved = action.text == self._word[::-1]
        done = solved or self._state.step_count >= MAX_TURNS
        reward = 1.0 if solved else right / (2 * len(self._word)) if done else 0.0
        return Heard(word=self._word, right_letters=right, done=done, reward=reward)

    @property
    def state(self) -> State:
        """The number of steps."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and version."""
        return EnvironmentMetadata(name="ReversedWord", description="Say a word backwards.", version="1.0")
