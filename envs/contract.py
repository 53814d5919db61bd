"""What an environment must provide: one protocol to be played, and two optional ones.

| protocol | members | who needs it |
|---|---|---|
| `Environment` | `rules`, `read_action`, `reset`, `step`; `max_turns` | every player: training, validation, `eval` |
| `Demonstrator` | `demonstrate` | the warm-up of the tiny policy, and benchmarks that play demonstrations |
| `ClosedVocabulary` | `phrases`, `step_rewards` | a tokenizer of whole words; others are read as byte pairs |

`Environment` uses the signatures of Gymnasium's `reset` and `step`, but this module does not import Gymnasium. Derive a
wrapper from `Environment`: only the four methods and `max_turns` have no default. `envs/base.py` (`TextEnv`) is the
base of the environments that are written here; `envs/adapters/` holds wrappers of other people's environments.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Protocol, TypeVar

from envs.settings import Settings
from envs.splits import Split
from envs.wording import DemonstrationQuality, Rng

Capability = TypeVar("Capability")


class Environment(Protocol):
    """One environment: text in, text out, one action a step.

    - A task is determined by (environment, options, split, seed). Whatever else is random follows from `noise_seed`.
    - Tasks of the two splits differ in content. `envs.splits` decides the split of a content; a wrapper draws tasks
      until `split_of(task_key) == split`, unless its data set publishes a split.
    - The constructor's `options` were checked against `Options`. It may raise ValueError, before anything starts.
    - A call may block (a sandbox, an HTTP service): the player calls from a thread and gives the call up after
      `environment_actor.step_timeout_s`. Two instances may be used from two threads at once; one instance never is.
    """

    Options: ClassVar[type[Settings]] = Settings
    """The task options; `Settings` itself takes none."""
    max_turns: int
    """Turns of an episode where the configuration does not say (`environment.format.max_turns`)."""
    max_actions_per_turn: int = 1
    """Actions of one answer where the configuration does not say. With 1, an answer is never split."""
    shared_noise: bool = False
    """Whether the trajectories of one group are reset with the same `noise_seed`."""

    def __init__(self, split: Split = "train", **options: Any) -> None:
        self.split: Split = split
        self.options = self.Options(**options)

    @abc.abstractmethod
    def rules(self) -> str:
        """The task, its symbols and its actions, for the system message; the answer format is added to it."""

    @abc.abstractmethod
    def read_action(self, text: str) -> str | None:
        """The action that a policy's text means, as `step` takes it; None where it means none.

        Any text may come. Never raises, takes time linear in the text, and returns its own results unchanged.
        """

    @abc.abstractmethod
    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Start the task of `seed` under `options["noise_seed"]`; returns (observation, info).

        `info["task_key"]` is a hex digest of the task's content (`envs.splits.task_key_of`): two tasks that a policy
        could not tell apart have the same one. `info["task_kind"]`, where given, names the kind of task (or is None).
        """

    @abc.abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action that `read_action` returned; returns (observation, reward, terminated, truncated, info).

        `info["success"]` says whether the task is solved. Raises only when the task cannot be played on (a service is
        down): that trajectory fails with the error's text, and the run goes on.
        """

    def notes(self) -> list[str]:
        """What the user should read when a run starts, such as how this machine isolates programs."""
        return []


class Demonstrator(Protocol):
    """An environment that can show how it is played."""

    @abc.abstractmethod
    def demonstrate(self, rng: Rng, quality: DemonstrationQuality) -> tuple[str, list[str]]:
        """(reasoning, actions) for the current state, as a policy would say them, made worse as `quality` says.

        Some must be wrong: groups whose returns never differ teach a policy nothing.
        """


class ClosedVocabulary(Protocol):
    """An environment (class) whose whole text comes from a closed list of words."""

    @classmethod
    @abc.abstractmethod
    def phrases(cls) -> list[str]:
        """Texts that hold every word of rules, observations and demonstrated turns, with the white space before it."""

    @classmethod
    @abc.abstractmethod
    def step_rewards(cls) -> tuple[float, ...]:
        """Every reward that one action can pay while the episode goes on."""


class MissingCapabilityError(ValueError):
    """An environment lacks an optional capability that was asked for; the text names both."""


def lacking(environment: object, capability: type) -> list[str]:
    """The members of a protocol that an environment, or its class, does not define, in the protocol's order."""
    members = dict.fromkeys((*capability.__annotations__, *vars(capability)))
    return [name for name in members if not name.startswith("_") and not _defines(environment, name)]


def _defines(environment: object, name: str) -> bool:
    if not hasattr(environment, name):
        return False
    member = getattr(environment, name)
    return not (hasattr(member, "__isabstractmethod__") and member.__isabstractmethod__)


def require(name: str, environment: object, capability: type[Capability], purpose: str) -> Capability:
    """The environment of that name as one with `capability`, which `purpose` needs.

    Raises:
        MissingCapabilityError: it lacks a member of the protocol.
    """
    missing = lacking(environment, capability)
    if missing:
        methods = " and ".join(f"{member}()" for member in missing)
        raise MissingCapabilityError(
            f"environment {name} has no {methods} (envs.contract.{capability.__name__}), which {purpose} needs"
        )
    return environment  # type: ignore[return-value]  # it has every member of the protocol
