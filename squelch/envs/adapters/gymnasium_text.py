"""Any Gymnasium environment with Discrete or Text actions whose state can be shown as text, such as Taxi, or as a
picture.

    environment.name=Gymnasium
    environment.options='{id: Taxi-v4, actions: [South, North, East, West, Pickup, Dropoff]}'

The policy sees the environment's `ansi` rendering, with `pictures: true` the picture that it renders, of exactly its
pixels, or with `render: false` its observation, which must be text. Colours
have a meaning in Gymnasium's renderings (Taxi marks the taxi by a colour), so `R` in blue becomes `[blue R]`, and in
blue on yellow `[blue [yellow R]]`.
"""

from __future__ import annotations

import random
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Text
from pydantic import Field

from squelch.envs.contract import Environment
from squelch.envs.text import printable
from squelch.kit.base.settings import Settings
from squelch.kit.records.pictures import Picture, Shown
from squelch.kit.records.splits import Split, no_task, split_of, task_key_of

MAX_OBSERVATION = 4000
"""Characters of an observation; the rest is cut."""
MAX_RESETS = 1000
"""Number of starts drawn before the adapter concludes that the split has none."""
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED = re.compile(r"\x1b\[[34]([0-7])[0-9;]*m([^\x1b]*)\x1b\[0m")
"""A coloured piece of text that holds no other."""
_CODE = re.compile(r"\x1b\[[0-9;]*m")
MAX_COLOURS = 4
"""Most colours shown for one piece of text: Gymnasium gives at most two, foreground and background."""


class GymnasiumOptions(Settings):
    """The environment, and the instruction to the policy."""

    id: str
    """Gymnasium's id, such as `Taxi-v4`; `module:id` imports the module that registers it first."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `gymnasium.make`."""
    instruction: str = "Play the game ."
    """The task and its symbols, for the system message."""
    actions: tuple[str, ...] = ()
    """The names of Discrete actions, in their order; by default their numbers."""
    render: bool = True
    """Whether to show the `ansi` rendering. False shows the observation, which must then be text."""
    pictures: bool = False
    """Whether to show the picture that the environment renders (`rgb_array`) in place of text, to a model that sees."""
    success_reward: float | None = None
    """Smallest last reward of a solved episode. Unset: any above 0, so that an end that pays nothing, as a lost game's
    does, solves nothing. Ignored if the environment sets `info["is_success"]`."""
    stochastic: bool = True
    """Whether the rewards of an action depend on chance, drawn from the environment's `np_random`."""
    hold_out: bool = True
    """Whether validation has its own starts, by the digest of the first observation. Set it to false for a single
    start, as in CliffWalking; validation then plays the training task."""


class GymnasiumText(Environment):
    """One Gymnasium environment. A seed draws starts until one belongs to the split; noise has its own seed."""

    Options = GymnasiumOptions
    options: GymnasiumOptions
    max_turns = 20

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        wanted: dict[str, Any] = {"render_mode": self._mode} if self._mode else {}
        try:
            self._env = gymnasium.make(self.options.id, disable_env_checker=True, **wanted, **self.options.kwargs)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ValueError(f"environment.options.id: {self.options.id!r} cannot be made: {error}") from error
        self._check_speech()
        space = self._env.action_space
        numbers = range(space.start, space.start + space.n) if isinstance(space, Discrete) else ()
        names = self.options.actions or tuple(map(str, numbers))
        if len(names) != len(numbers):
            raise ValueError(f"environment.options.actions: {len(names)} names for {len(numbers)} actions of {space}")
        self._numbers = dict(zip(names, map(int, numbers), strict=True))
        self._known = {name.strip().lower(): name for name in names}
        if len(self._known) < len(names):
            wrong = f"two of {', '.join(names)} are the same word, because upper and lower case are"
            raise ValueError(f"environment.options.actions: {wrong}; give each action a name of its own")

    def _check_speech(self) -> None:
        """Raises ValueError if actions are neither Discrete nor Text, or the state cannot be shown as text."""
        env, modes = self._env, self._env.metadata.get("render_modes", [])
        if not isinstance(env.action_space, Discrete | Text):
            raise ValueError(f"environment.options.id: actions must be Discrete or Text (got {env.action_space})")
        if self._mode and self._mode not in modes:
            name = "pictures" if self.options.pictures else "render"
            wrong = f"there is no {self._mode} rendering (got {modes}); set it to false"
            raise ValueError(f"environment.options.{name}: {wrong}")
        if not self._mode and not isinstance(env.observation_space, Text):
            raise ValueError(f"environment.options.render: observations must be Text (got {env.observation_space})")

    @property
    def _mode(self) -> str | None:
        """Gymnasium's mode of rendering; None for the observation itself."""
        return "rgb_array" if self.options.pictures else "ansi" if self.options.render else None

    @property
    def shows_pictures(self) -> bool:
        """Whether the rendering is a picture."""
        return self.options.pictures

    @property
    def stochastic(self) -> bool:
        """What the option says: Gymnasium does not declare it."""
        return self.options.stochastic

    def rules(self) -> str:
        """The configured instruction and the actions."""
        actions = f"Actions {' '.join(self._numbers)} ." if self._numbers else "The action is text ."
        return f"{self.options.instruction} {actions}"

    def read_action(self, text: str) -> str | None:
        """The action's name in its one spelling, or for Text actions the text; None if it is no action."""
        if self._numbers:
            return self._known.get(text.strip().lower())
        said = text.strip()
        return said if self._env.action_space.contains(said) else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str | Shown, dict[str, Any]]:
        """Draws starts from `seed` until one belongs to the split."""
        for draw in range(MAX_RESETS):
            start = random.Random(f"{self.options.id} {seed} {draw}").getrandbits(32)
            observation, info = self._env.reset(seed=start)
            shown = self._shown(observation)
            key = task_key_of(self.options.id, shown if isinstance(shown, str) else shown.pictures[0].identity)
            if not self.options.hold_out or split_of(key) == self.split:
                self._env.unwrapped.np_random = np.random.default_rng(options["noise_seed"])
                return shown, {**info, "task_key": key}
        raise no_task(f"{self.options.id} (split {self.split})", self.options, MAX_RESETS)

    def step(self, action: str) -> tuple[str | Shown, float, bool, bool, dict[str, Any]]:
        """As `Environment.step`; `success` is `is_success`, or depends on the last reward (`success_reward`)."""
        played = self._numbers[action] if self._numbers else action
        observation, reward, terminated, truncated, info = self._env.step(played)
        least = self.options.success_reward
        paid = float(reward) > 0 if least is None else float(reward) >= least
        solved = info.get("is_success", terminated and paid)
        return self._shown(observation), float(reward), terminated, truncated, {**info, "success": bool(solved)}

    def _shown(self, observation: Any) -> str | Shown:
        if self.shows_pictures:
            return Shown((Picture(np.asarray(self._env.render())),))
        text = str(self._env.render() if self.options.render else observation)
        for _ in range(MAX_COLOURS):  # the innermost first: Taxi gives the taxi at a landmark two colours
            text = _COLOURED.sub(_in_words, text)
        return printable(_CODE.sub("", text), MAX_OBSERVATION).strip("\n")


def _in_words(coloured: re.Match[str]) -> str:
    """A coloured piece of text with the colour's name instead of the terminal's codes."""
    return f"[{' '.join((_COLOURS[int(coloured[1])], *coloured[2].split()))}]"
