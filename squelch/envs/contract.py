"""The protocols of environments: one that is required for playing, and six optional ones.

| protocol | members | used by |
|---|---|---|
| `Environment` | `rules`, `read_action`, `reset`, `step`; `max_turns` | every player: training, validation, `eval` |
| `Demonstrator` | `demonstrate` | the warm-up of a policy, and benchmarks that play demonstrations |
| `Judged` | `judge` | the judge of reasonings (docs/guide/reasoning.md) |
| `Twinned` | `content`, `twins`, `start`, `best_answer` | hard negatives and interventions (docs/guide/probe.md) |
| `ClosedVocabulary` | `phrases`, `step_rewards` | a tokenizer of whole words; others are read as byte pairs |
| `GroupRewarded` | `group_rewards` | the player, once all trajectories of a group have ended |
| `AgentDriven` | `run`, `clean_up`, `most_at_once`, `turns`, `untrained` | the player: a program calls the policy |

`Environment` uses the signatures of Gymnasium's `reset` and `step`, but this module does not import Gymnasium. Derive a
wrapper from `Environment`: only the four methods and `max_turns` have no default. `squelch/envs/base.py` (`TextEnv`) is
the base of Squelch's own environments; `squelch/envs/adapters/` contains wrappers of third-party environments.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from squelch.envs.wording import DemonstrationQuality, PromptName, Rng, Wording
from squelch.kit.base.settings import Settings
from squelch.kit.records.judge import Judge
from squelch.kit.records.splits import Split

if TYPE_CHECKING:  # its pixels need numpy, which the table of environments does not load
    from squelch.kit.records.pictures import Shown

Capability = TypeVar("Capability")


class Opening(NamedTuple):
    """The first messages of a task, and the JSON schemas of the tools that they show."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]] | None = None


class Environment(Protocol):
    """One environment with text actions, and observations of text or of text and pictures; a step plays one action.

    - A task is determined by (environment, options, split, seed), and in an environment with a curriculum by its place
      in the run, `seed - first_seed`. All other randomness is determined by `noise_seed`.
    - Tasks of the two splits differ in content. `envs.splits` decides the split of a content; a wrapper draws
      tasks until `split_of(task_key) == split`, unless its data set publishes a split.
    - The constructor's `options` were checked against `Options`. It may raise ValueError, before anything starts.
    - A call may block (a sandbox, an HTTP service): the player calls from a thread and abandons the call after
      `environment_actor.step_timeout_s`. Two threads may use two instances at once, but never the same instance.
    """

    Options: ClassVar[type[Settings]] = Settings
    """The model of the task options; `Settings` itself has none."""
    max_turns: int
    """Turns of an episode, unless the configuration sets `environment.format.max_turns`."""
    max_actions_per_turn: int = 1
    """Most actions in one answer, unless the configuration sets it. With 1, an answer is never split."""
    stochastic: bool = False
    """Whether an episode depends on `noise_seed`. False declares that the same actions in the same task always earn the
    same rewards."""
    shared_noise: bool = False
    """Whether the trajectories of one group are reset with the same `noise_seed`."""
    prompt: PromptName = "tiny"
    """The style of the messages; `envs.registry.make` sets it from `environment.prompt`. An environment without words
    of its own in that style keeps those that it has."""
    first_seed: int = 0
    """Seed of the run's first training task, so that the k-th one has `first_seed + k`; `envs.registry.make` sets it,
    for a player from `environment.train_seed`. Only a curriculum needs it."""
    shows_pictures: bool = False
    """Whether observations have pictures beside text (`envs.pictures.Shown`), which only a model with a vision tower
    can be shown."""
    whole_turns: bool = False
    """Whether the environment has no turn format of Squelch. Its `reset` then gives the first messages of the
    conversation (`info["messages"]`, of system, user and assistant; `info["tools"]`, if present, are JSON schemas that
    the model's chat template shows), nothing is added to them, and `step` is called
    once a turn with the whole text that was sampled, without `read_action`; the observation is the next user message.
    A turn is badly formatted only if it is cut at its token limit, and no turn earns a format penalty."""
    wording: Wording | None = None
    """Words in the style `prompt`, whose worked turn the system message shows; None if the environment has only
    `rules`."""

    def __init__(self, split: Split = "train", **options: Any) -> None:
        self.split: Split = split
        self.options = self.Options(**options)

    @abc.abstractmethod
    def rules(self) -> str:
        """The task, its symbols and its actions, for the system message; the answer format is added to it."""

    @abc.abstractmethod
    def read_action(self, text: str) -> str | None:
        """The action that a policy's text means, in the form that `step` accepts; None if it means no action.

        Accepts any text, never raises, takes time linear in the text, and returns its own results unchanged. Only where
        the environment runs in another process, it raises if that process does not answer, as `step` does.
        """

    @abc.abstractmethod
    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str | Shown, dict[str, Any]]:
        """Start the task of `seed` under `options["noise_seed"]`; returns (observation, info).

        `info["task_key"]` is a hex digest of the task's content (`envs.splits.task_key_of`): two tasks that a
        policy could not distinguish have the same digest. `info["task_kind"]`, if present, is the kind of task or None:
        a short name that many tasks share, such as a difficulty. The filter reports which kinds it keeps by it.
        """

    @abc.abstractmethod
    def step(self, action: str) -> tuple[str | Shown, float, bool, bool, dict[str, Any]]:
        """Play an action that `read_action` returned; returns (observation, reward, terminated, truncated, info).

        `info["success"]` says whether the task is solved. Raises only if the task cannot be continued (a service is
        down): the trajectory fails with the error's text, and the run continues.
        """

    def same_action(self, one: str, other: str) -> bool:
        """Whether two actions that `read_action` returned are the same, by default if they are spelt alike.

        Interventions ask it, of actions that differ as text (`kit.diagnosis.interventions`). It is symmetric, and
        changes no state. A predicate and no canonical form, because a comparison of values, as that of computer
        algebra, knows only pairs. Raises as `step`.
        """
        return one == other

    def check(self) -> None:
        """Raise ValueError if the options ask for something that cannot be said in the style `prompt`; `make` calls
        it."""

    def notes(self) -> list[str]:
        """Messages to the user at the start of a run, such as how this machine isolates programs."""
        return []

    def longest_openings(self) -> list[Opening]:
        """The longest first messages of a task, so that a run whose context they exceed is refused at its start; of an
        environment with tools, the longest with and without; empty if it does not know its tasks."""
        return []

    def pinned(self) -> dict[str, Any]:
        """Options that a run fixes at its start for all of its actors, because they follow from something that may
        change meanwhile, such as the version of a service."""
        return {}

    def picture_sizes(self) -> list[tuple[int, int]]:
        """Every (width, height) in pixels that a picture may have, so that a model whose patches do not fit is refused
        at the start; empty if that is not known."""
        return []

    def longest_call(self) -> tuple[float, str]:
        """The most seconds that a call may take by the environment's own settings, and which these are; (0, "") if
        none bounds it. A run that would abandon the call sooner says so at its start."""
        return 0.0, ""


GroupReward = tuple[float, bool] | str
"""(reward, success) of a trajectory, or the reason why it has none: the trajectory fails with it."""


class GroupRewarded(Protocol):
    """An environment that rewards the trajectories of a task together, after all of them have ended."""

    @abc.abstractmethod
    def group_rewards(self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[GroupReward]:
        """The rewards of the task that `reset` started, one for each trajectory, added to those of its steps.

        `completions`: the text of each trajectory's last turn; `completion_ids`: its sampled token ids. An error fails
        all of them with the error's text.
        """


@dataclass(frozen=True)
class Access:
    """Where an agent reaches the policy. `base_url`: http://HOST:PORT, to which OpenAI's clients add `/v1`; `token`:
    the API key, which names the trajectory."""

    base_url: str
    token: str


@dataclass(frozen=True)
class AgentResult:
    """What an agent reports at its end. `reward`: of the whole trajectory, beside those of its calls."""

    success: bool
    reward: float = 0.0
    rewards: tuple[float, ...] | None = None
    """One for each call that was answered, in the order in which they arrived; None: all 0."""
    penalties: tuple[float, ...] | None = None
    """Format penalties of the same calls, 0 or negative."""
    answer: str | None = None
    """Where the environment rewards the group (`GroupRewarded`): the completion that it gets; else None."""


@dataclass(frozen=True)
class AgentCall:
    """What is known of an agent's call before it is sampled. `model`: as the request names it; `headers`: values by
    name, whatever its case; `offers_tools`: whether the request lists a tool."""

    model: str
    headers: Mapping[str, str]
    offers_tools: bool


class AgentFailed(RuntimeError):
    """The trajectory fails, and the text says why. `reward`: what it earns in place of a failure, unless something else
    than the policy may be at fault; None: nothing."""

    def __init__(self, text: str, reward: float | None = None) -> None:
        self.reward = reward
        super().__init__(text)


class AgentInterrupted(RuntimeError):
    """The agent was ended through no fault of its own, as far as anyone knows: its trajectory begins again."""


class AgentDriven(Protocol):
    """An environment whose tasks are played by a program that calls the policy over HTTP (`actors.endpoint`).

    `reset` starts the task and gives its `task_key`, but no messages; `step` is never called. It has `whole_turns`.
    """

    turns: Literal["model", "squelch"]
    """The turns that the agent sees: of the model's own format, or of Squelch's, whose reasoning is opened for it."""
    most_at_once: int | None
    """Most trajectories that one environment actor runs at once; None: all of its tickets'."""

    def untrained(self, call: AgentCall) -> str:
        """The rule by which a call is answered but not trained on, in words; empty if it is trained on."""
        return ""

    @abc.abstractmethod
    async def run(self, access: Access) -> AgentResult:
        """Play the task that `reset` started. It never blocks the event loop; if it is cancelled, it ends what it
        started and returns.

        Raises AgentFailed for whatever gives no reward, and AgentInterrupted a bounded number of times.
        """

    async def clean_up(self) -> None:
        """Remove what `run` left. It is called after each `run`, however that ended, and is no part of the agent's
        time; the trajectory counts among `most_at_once` until it returns."""


class Demonstrator(Protocol):
    """An environment that can demonstrate how it is played."""

    @abc.abstractmethod
    def demonstrate(self, rng: Rng, quality: DemonstrationQuality) -> tuple[str, list[str]]:
        """(reasoning, actions) for the current state, in the form of a policy's turn, made worse at the rates in
        `quality`.

        Some demonstrations must be wrong: a policy learns nothing from groups whose returns never differ.
        """


class Judged(Protocol):
    """An environment (class) whose reasonings can be checked against the state, without a model."""

    @classmethod
    @abc.abstractmethod
    def judge(cls) -> Judge:
        """The judge of this environment's reasonings, in every prompt style."""


class Twinned(Protocol):
    """An environment that can vary one part of a task: where one hole is, or one of the numbers."""

    @abc.abstractmethod
    def content(self) -> str:
        """The content of the task that was started, from which `start` starts the same one."""

    @abc.abstractmethod
    def twins(self, rng: Rng, most: int) -> list[str]:
        """The contents of at most `most` other tasks that differ from the one that was started in one part, which `rng`
        draws. Which they are depends on the content and `rng` alone.

        All tasks that differ from one another in that part only are a family; the twins are drawn from it uniformly,
        and are all others of it if there are no more than `most`. So twins are mutual: `rng` draws the family from each
        of its members with the same probability. If its members are equally likely as tasks too, the own task could be
        any of a cluster, and the hard negatives measure an information (`kit.diagnosis.hard_negatives`).
        """

    @abc.abstractmethod
    def start(self, content: str) -> tuple[str | Shown, dict[str, Any]]:
        """Start the task of that content, under the noise of the last `reset`; returns (observation, info) as that
        does. Raises ValueError for what is no task's content."""

    @abc.abstractmethod
    def best_answer(self, most_actions: int) -> str | None:
        """What a solver answers in the first turn, with at most so many actions; None if none is known. It answers
        equal states alike."""


class ClosedVocabulary(Protocol):
    """An environment (class) whose whole text comes from a closed list of words in the prompt style `tiny`."""

    @classmethod
    @abc.abstractmethod
    def phrases(cls) -> list[str]:
        """Texts that contain every word of rules, observations and demonstrated turns, with the white space before
        it."""

    @abc.abstractmethod
    def step_rewards(self) -> tuple[float, ...]:
        """Every reward of one action that does not end the episode, under the options of this environment."""


def refuse_own_format(name: str, environment: Environment, where: str) -> None:
    """Raises ValueError for an environment with a format, or group rewards, of its own, which `where` does not pass on:
    its turns would be read in Squelch's format."""
    if environment.whole_turns or not lacking(environment, GroupRewarded):
        raise ValueError(f"environment {name} has a format or group rewards of its own, which {where} does not pass on")


class MissingCapabilityError(ValueError):
    """An environment lacks a requested optional capability; the message names both."""


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
    """The environment `name`, typed as one with `capability`, which `purpose` needs.

    Raises:
        MissingCapabilityError: the environment lacks a member of the protocol.
    """
    missing = lacking(environment, capability)
    if missing:
        methods = " and ".join(f"{member}()" for member in missing)
        raise MissingCapabilityError(
            f"environment {name} has no {methods} (envs.contract.{capability.__name__}), which {purpose} needs"
        )
    return environment  # type: ignore[return-value]  # it has every member of the protocol
