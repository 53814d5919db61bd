"""The interface of every environment: text in, text out, one action word a step.

Invariants:

- A task is determined by (environment, options, split, seed); what remains random in an episode is declared noise,
  determined by `noise_seed`.
- A task's split is a function of its content's digest, so no content is in both splits whatever the seeds.
- `step` never raises on an action: an unknown word moves nothing, pays nothing and says `action_valid: False`.
"""

from __future__ import annotations

import abc
import difflib
import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
from gymnasium.spaces import Text
from pydantic import ValidationError

from envs.settings import Settings
from envs.wording import (
    DEFAULT_QUALITY,
    SHORT_PLAN_RATE,
    Cell,
    DemonstrationQuality,
    Rng,
    Wording,
    choose,
    generic_reasoning,
    grounded_reasoning,
    misplace,
)

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
NAMESPACE = "squelch"
VALIDATION_SHARE = 8  # one task content in this many belongs to validation
MAX_DRAWS = 20_000  # draws after which options are taken to admit no task
ACTION_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

_ENVIRONMENTS: dict[str, type[TextEnv]] = {}


class TextEnv(gymnasium.Env[str, str], abc.ABC):
    """One environment. Subclasses declare the class attributes and the abstract methods."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}
    name: ClassVar[str]
    Options: ClassVar[type[Settings]]
    actions: ClassVar[tuple[str, ...]]
    wording: ClassVar[Wording]
    glyphs: ClassVar[str]
    """Every symbol that an observation can hold, separators left out."""
    step_rewards: ClassVar[tuple[float, ...]]
    """Every reward that one action can pay while the episode goes on."""

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
        self.split: Split = split
        self.render_mode = render_mode
        self.options = self.read_options(options)
        length = 2 * self.side**2 - 1
        self.observation_space = Text(length, min_length=length, charset=self.glyphs + " \n")
        self.action_space = Text(max(map(len, self.actions)), charset=ACTION_LETTERS)
        self._task_seed: int | None = None
        self._noise = random.Random(0)

    @classmethod
    def read_options(cls, options: dict[str, Any]) -> Settings:
        """`options` checked against `Options`; ValueError names the option and what would be right."""
        known = list(cls.Options.model_fields)
        for key in options:
            if key not in known:
                raise ValueError(f"environment.options.{key}: {cls.name} has no such option; {_nearest(key, known)}")
        try:
            return cls.Options(**options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("environment.options", *map(str, first["loc"])))
            wrong = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{where}: {wrong} (got {first['input']!r}, environment {cls.name})") from error

    @property
    @abc.abstractmethod
    def side(self) -> int:
        """Rows, and columns, of an observation."""

    @property
    def shared_noise(self) -> bool:
        """Whether one group's trajectories must be reset with the same `noise_seed`; the caller derives it."""
        return False

    @property
    def task_seed(self) -> int:
        """The seed of the task being played."""
        if self._task_seed is None:
            raise RuntimeError(f"{self.name} was used before reset")
        return self._task_seed

    @abc.abstractmethod
    def instruction(self) -> str:
        """What the task is and what the symbols mean, in a few words; actions and answer format are not in it."""

    @abc.abstractmethod
    def observation(self) -> str:
        """The current state: one symbol a cell, cells separated by spaces, rows by newlines."""

    @abc.abstractmethod
    def task_key(self) -> str:
        """Hex digest of the task's content; two tasks have the same one iff they start in the same state."""

    @abc.abstractmethod
    def solution(self) -> list[str] | None:
        """A shortest sequence of actions to success from the current state, noise left out; None if there is none."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task of `seed`; `options` may hold `noise_seed`. Without them both are drawn from `np_random`."""
        super().reset(seed=seed)
        unknown = set(options or {}) - {"noise_seed"}
        if unknown:
            raise ValueError(f"reset option {sorted(unknown)[0]!r} is unknown; the only one is 'noise_seed'")
        noise_seed = (options or {}).get("noise_seed")
        self._task_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        self._noise = random.Random(f"noise {self.np_random.integers(2**63) if noise_seed is None else noise_seed}")
        details = self._load(self._task_seed)
        return self.observation(), {"success": False, "action_valid": True, **details}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action word. After the end, and on an unknown word, nothing moves and the reward is 0."""
        if self._task_seed is None:
            raise RuntimeError(f"{self.name} was used before reset")
        valid = action in self.actions
        terminated = self._terminated()
        reward = 0.0
        if valid and not terminated:
            reward = self._move(self.actions.index(action))
            terminated = self._terminated()
        info = {"success": self._succeeded(), "action_valid": valid, **self._details()}
        return self.observation(), reward, terminated, False, info

    def render(self) -> str:
        """The current observation (render mode `ansi`)."""
        return self.observation()

    def replay(self, actions: Sequence[str], noise_seed: int) -> float:
        """The return of a fixed action sequence on this task under the given noise; the episode starts anew."""
        self.reset(seed=self.task_seed, options={"noise_seed": noise_seed})
        return float(sum(self.step(action)[1] for action in actions))

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """(reasoning, actions) for the current state, from the solver, made worse as `quality` says."""
        grounded = rng.random() < quality.grounded
        random_rate = quality.random_plan if grounded else quality.generic_random_plan
        count = 1 if rng.random() < SHORT_PLAN_RATE else quality.max_actions
        plan = None if rng.random() < random_rate else self._plan(rng, count)
        actions = plan or [choose(rng, self.actions) for _ in range(count)]
        if not grounded:
            return generic_reasoning(rng, self.wording), actions
        facts = self._facts(rng)
        if rng.random() < quality.wrong_coordinates:
            facts = misplace(rng, facts, self.side)
        return grounded_reasoning(rng, self.wording, facts, actions), actions

    @classmethod
    def phrases(cls) -> list[str]:
        """Text that holds every word of observations and reasoning, with the white space it can have before it.

        `envs.format.phrases` adds what the turn format writes.
        """
        cells = [f"{glyph} {glyph}\n" for glyph in cls.glyphs]  # a row's first cell has no space before it
        words = [*(action.lower() for action in cls.actions), *"0123456789", *cls.wording.fragments()]
        return [*cells, *(f" {word}" for word in words)]

    def _plan(self, rng: Rng, count: int) -> list[str] | None:
        """At most `count` actions of a shortest solution from here, or None."""
        solution = self.solution()
        return solution[:count] if solution else None

    @abc.abstractmethod
    def _load(self, seed: int) -> dict[str, Any]:
        """Make the task of `seed` the current one; returns what `info` adds at reset, such as its difficulty."""

    def _details(self) -> dict[str, Any]:
        """What `info` adds at each step."""
        return {}

    @abc.abstractmethod
    def _move(self, action: int) -> float:
        """Play the action of that index in `actions`; returns its reward."""

    @abc.abstractmethod
    def _terminated(self) -> bool: ...

    @abc.abstractmethod
    def _succeeded(self) -> bool: ...

    @abc.abstractmethod
    def _facts(self, rng: Rng) -> dict[str, Cell]:
        """The facts that a grounded reasoning names, by their name in `wording.facts`."""


def register(environment: type[TextEnv]) -> type[TextEnv]:
    """Class decorator: makes the environment known here and to Gymnasium as `squelch/<name>-v0`."""
    _ENVIRONMENTS[environment.name] = environment
    gymnasium.register(
        id=f"{NAMESPACE}/{environment.name}-v0",
        entry_point=f"{environment.__module__}:{environment.__qualname__}",
    )
    return environment


def environment_names() -> list[str]:
    """Names that `make` knows, sorted."""
    return sorted(_ENVIRONMENTS)


def environment_class(name: str) -> type[TextEnv]:
    """The class of a registered environment; ValueError names the nearest name."""
    if name not in _ENVIRONMENTS:
        raise ValueError(f"environment.name is {name!r}, which is unknown; {_nearest(name, environment_names())}")
    return _ENVIRONMENTS[name]


def make(name: str, split: Split = "train", options: dict[str, Any] | None = None) -> TextEnv:
    """The environment of that name; ValueError for an unknown name, split or option."""
    environment = environment_class(name)
    environment.read_options(options or {})  # first, so that no option can pass for the constructor's own arguments
    return environment(split=split, **(options or {}))


def task_seeds(first_seed: int) -> Iterator[int]:
    """The k-th task of a run has seed `first_seed + k`."""
    return itertools.count(first_seed)


def content_key(name: str, content: str) -> str:
    """Hex digest (128 bits) of a task's content."""
    return hashlib.blake2b(f"{name}\n{content}".encode(), digest_size=16).hexdigest()


def split_of(task_key: str) -> Split:
    """The split that owns a task's content: validation for one digest in `VALIDATION_SHARE`."""
    return "validation" if int(task_key[:8], 16) % VALIDATION_SHARE == 0 else "train"


def no_task(name: str, options: Settings) -> ValueError:
    """The error for options that admit no task within `MAX_DRAWS` draws."""
    return ValueError(
        f"environment.options: {name} found no task in {MAX_DRAWS} draws with {options}; loosen the limits on "
        "distance, solution length, holes or walls, or enlarge the board"
    )


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
