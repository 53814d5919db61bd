"""The base of Squelch's own environments: a Gymnasium environment with text actions and text observations.

Third-party environments need less: see `envs.contract`, whose `Environment` this class implements.

Invariants:

- A task is determined by (environment, options, split, seed); all other randomness in an episode is declared noise
  (`stochastic`), determined by `noise_seed`.
- `read_action` accepts any text, never raises, takes time linear in the text, and returns its own results unchanged.
- `step` never raises on an action: an unknown action changes nothing, has reward 0 and sets `info["action_valid"]` to
  False. It raises if the task cannot be continued (a service is down): the trajectory then fails with that reason and
  the run continues.

Importing this module registers every environment of `envs.registry.ENVIRONMENTS` with Gymnasium as `squelch/<name>-v0`;
`gymnasium.make("squelch.envs.base:squelch/FrozenLake-v0")` imports it first. `squelch/envs/grid_worlds/base.py` is the
base of the grid worlds; `docs/examples/sort_words.py` is a complete small example
(docs/guide/adding-an-environment.md).
"""

from __future__ import annotations

import abc
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.utils import seeding

from squelch.envs.contract import Environment, Twinned
from squelch.envs.format import joined
from squelch.envs.options import read_options
from squelch.envs.registry import ENVIRONMENTS
from squelch.envs.text import PRINTABLE
from squelch.envs.wording import PromptName, Rng, Wording
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import Split, check_split

NAMESPACE = "squelch"


class TextEnv(gymnasium.Env[str, str], Environment):
    """One environment. Subclasses define the abstract methods, and the class attributes that have no value here."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}
    name: ClassVar[str]
    """The environment's name in messages, and below `squelch/` in Gymnasium's registry."""
    wordings: ClassVar[Mapping[PromptName, Wording]]
    """The words of each prompt style."""
    Options: ClassVar[type[Settings]]
    """The model of the task options; bounds on every number, and a docstring under every field."""
    max_turns: ClassVar[int]
    """Turns of an episode, unless the configuration sets `environment.format.max_turns`."""
    max_actions_per_turn: ClassVar[int] = 1
    """Most actions in one answer, unless the configuration sets it. With 1, an answer is never split."""
    actions: ClassVar[tuple[str, ...]] = ()
    """The action words if they are a closed list; empty if actions are free text (override `read_action`)."""
    max_action_length: ClassVar[int]
    """Characters of the longest action that `step` accepts; required if `actions` is empty."""
    max_observation_length: ClassVar[int]
    """Characters of the longest observation; required unless `_observation_space` is overridden."""

    def __init__(
        self, split: Split = "train", render_mode: str | None = None, prompt: PromptName = "tiny", **options: Any
    ) -> None:
        check_split(split)
        self._check_declared()
        self.split: Split = split
        self.render_mode = render_mode
        self.prompt = prompt
        self.options = read_options(self.name, self.Options, options)
        self.action_space = self._action_space()
        self._known = {action.lower(): action for action in self.actions}
        self._task_seed: int | None = None
        self._noise = random.Random(0)

    @classmethod
    def _check_declared(cls) -> None:
        """Raises ValueError if the class lacks what every environment declares."""
        missing = [name for name in ("name", "wordings") if not hasattr(cls, name)]
        if not cls.actions and cls.read_action is TextEnv.read_action:
            missing.append("actions or read_action()")
        elif not cls.actions and not hasattr(cls, "max_action_length"):
            missing.append("max_action_length")
        if missing:
            raise ValueError(f"environment {cls.__name__} does not declare {', '.join(missing)} (envs.base.TextEnv)")

    @gymnasium.Env.np_random.getter
    def np_random(self) -> np.random.Generator:
        """Gymnasium's generator of this environment. After a fully seeded reset it is created at first use, because its
        creation can take longer than that of the task."""
        if self._np_random is None and self._np_random_seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(self._np_random_seed)
        generator: Any = gymnasium.Env.np_random.fget
        return generator(self)

    @property
    def observation_space(self) -> Text:
        """Gymnasium's space of the observations in the style `prompt`."""
        return self._observation_space()

    @property
    def task_seed(self) -> int:
        """The seed of the present task."""
        if self._task_seed is None:
            raise RuntimeError(f"{self.name} was used before reset")
        return self._task_seed

    @property
    def wording(self) -> Wording:
        """The words in the style `prompt`; where only one style is declared, those."""
        return self.wordings.get(self.prompt) or next(iter(self.wordings.values()))

    def rules(self) -> str:
        """The task, its symbols and its actions."""
        return self.wording.rules.format(**self.terms())

    def terms(self) -> dict[str, str]:
        """The fields of the rules, by name."""
        return {}

    def read_action(self, text: str) -> str | None:
        """The action of the closed list that the text names, ignoring case; override it for free text."""
        return self._known.get(text.strip().lower())

    @abc.abstractmethod
    def observation(self) -> str:
        """The current state as the policy sees it, within `observation_space`."""

    def shown(self) -> Any:
        """The observation, with pictures where the environment shows any (`envs.pictures.Shown`). Gymnasium's types
        know text alone."""
        return self.observation()

    @abc.abstractmethod
    def task_key(self) -> str:
        """Hex digest of the task's content; two tasks have the same digest iff they start in the same state."""

    def task_kind(self) -> str | None:
        """The kind of task: a short name that many tasks share, such as a difficulty, by which the filter reports which
        kinds it keeps; None if the environment has no kinds."""
        return None

    def solution(self) -> list[str] | None:
        """Actions to success from the current state without noise (in grid worlds the fewest); None if none are
        known."""
        return None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task of `seed`; `options` may contain `noise_seed`. A missing seed is drawn from `np_random`."""
        unknown = set(options or {}) - {"noise_seed"}
        if unknown:
            raise ValueError(f"reset option {sorted(unknown)[0]!r} is unknown; the only one is 'noise_seed'")
        noise_seed = (options or {}).get("noise_seed")
        if seed is None or noise_seed is None:
            super().reset(seed=seed)
        else:
            self._np_random, self._np_random_seed = None, seed
        self._task_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        if self.stochastic:
            self._noise = random.Random(f"noise {self.np_random.integers(2**63) if noise_seed is None else noise_seed}")
        return self._opening(self._load(self._task_seed))

    def _opening(self, details: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The observation and `info` of the task that was made the current one."""
        about = {"task_key": self.task_key(), "task_kind": self.task_kind()}
        return self.shown(), {"success": False, "action_valid": True, **about, **details}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action. After the end, and for an unknown action, nothing changes and the reward is 0."""
        if self._task_seed is None:
            raise RuntimeError(f"{self.name} was used before reset")
        chosen = self.read_action(action)
        reward = 0.0
        if chosen is not None and not (self._terminated() or self._truncated()):
            reward = self._move(chosen)
        valid = chosen is not None
        info = {"success": self._succeeded(), "action_valid": valid, **self._details()}
        return self.shown(), reward, self._terminated(), self._truncated(), info

    def render(self) -> str:
        """The current observation (render mode `ansi`)."""
        return self.observation()

    def _observation_space(self) -> Text:
        return Text(self.max_observation_length, charset=PRINTABLE)

    def _action_space(self) -> Text:
        if not self.actions:
            return Text(self.max_action_length, charset=PRINTABLE)
        return Text(max(map(len, self.actions)), charset="".join(sorted(set("".join(self.actions)))))

    @abc.abstractmethod
    def _load(self, seed: int) -> dict[str, Any]:
        """Make the task of `seed` the current task; returns further entries of `info` at reset, such as its
        difficulty."""

    def _details(self) -> dict[str, Any]:
        """Further entries of `info` at each step."""
        return {}

    @abc.abstractmethod
    def _move(self, action: str) -> float:
        """Play an action that `read_action` returned; returns its reward. Not called after the end."""

    @abc.abstractmethod
    def _terminated(self) -> bool:
        """Whether the task itself ended the episode, solved or not."""

    def _truncated(self) -> bool:
        """Whether the environment's own limit ended the episode."""
        return False

    @abc.abstractmethod
    def _succeeded(self) -> bool:
        """Whether the task is solved."""


class TwinnedEnv(TextEnv, Twinned):
    """An environment with twins. Subclasses define `content`, `family` and `_load_content`."""

    @abc.abstractmethod
    def family(self, rng: Rng) -> Iterator[str]:
        """The contents of all other tasks of a family that `rng` draws (`Twinned.twins`), in an order that it draws."""

    def twins(self, rng: Rng, most: int) -> list[str]:
        """As `Twinned.twins`: the first of the family."""
        return list(islice(self.family(rng), most))

    def start(self, content: str) -> tuple[str, dict[str, Any]]:
        """As `Twinned.start`."""
        if self._task_seed is None:
            raise RuntimeError(f"{self.name} was used before reset")
        return self._opening(self._load_content(content))

    def best_answer(self, most_actions: int) -> str | None:
        """As `Twinned.best_answer`: the first actions of the solver."""
        actions = self.solution()
        return None if actions is None else joined(actions[:most_actions])

    @abc.abstractmethod
    def _load_content(self, content: str) -> dict[str, Any]:
        """As `_load`, of the task with that content. Raises ValueError for what is no task's content."""


for _name, _path in ENVIRONMENTS.items():
    gymnasium.register(id=f"{NAMESPACE}/{_name}-v0", entry_point=_path)
