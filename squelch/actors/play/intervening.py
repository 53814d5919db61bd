"""Plays interventions: the action of a first turn is sampled again after another reasoning
(`kit.diagnosis.interventions`).

Invariants:

- Token in, token out: what is fed are the ids of the prompt, then the ids with which a sampled turn begins, up to the
  one that completes `</think>`. Nothing is decoded and encoded again. Without reasoning only the ids of that closing
  are fed.
- A reasoning and the action that is sampled after it have the token limit of a turn together.
- An environment is started and never stepped. It reads the actions (`read_action`) and judges which are the same
  (`same_action`).
- A donor has another content than the task and, where the task's best answer is known (`Twinned`, `Demonstrator`), a
  known one that is another. It is a near twin where the environment has such a one, else the first candidate that fits.
- The own first turn has the request seed of the ticket's first trajectory; the seeds of all other turns are digests of
  (ticket seed, ticket, name of the turn).

| waits for | unblocked by | on time-out |
|---|---|---|
| a turn's tokens | the ticket's rollout worker | the task is left out, after `generation_timeout_s` |
| an environment call | a step thread | the task is left out, after `step_timeout_s` of running |
| a prompt's ids | a thread, which may wait for the renderer | the task is left out, after the renderer's bounds |
| all turns of a task | all three | the task is left out, after `episode_timeout_s` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TypeVar, cast

import numpy as np

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.formats.choice import squelch_turns
from squelch.actors.formats.protocol import Format
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import Generate, GenerationFailed, generate_within
from squelch.actors.play.player import IdleEnvironments, MakeEnv, make_task
from squelch.actors.play.seeds import derive_seed, noise_seed, request_seed
from squelch.actors.play.step_pool import CallFailed, StepPool
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Demonstrator, Environment, Twinned, lacking
from squelch.envs.episode import Episode, Message
from squelch.envs.format import joined, parse, well_formed
from squelch.envs.mixture import Mixture
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.diagnosis.interventions import Arm, Intervention, LeftOut, Reason, SampledTurn, Swap
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Task, Ticket

T = TypeVar("T")
FAMILIES, TWINS_OF_FAMILY = 4, 4
"""Draws of a task's twins, each of those that differ in one part of it, and the number of twins of a draw."""
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True)
class _Opened:
    """A task that was started: its environment, first messages and the actions of its best answer (None if it is not
    known), the number of actions that a turn may have, and the ids and pictures of its first prompt."""

    task: Task
    env: Environment
    task_key: str
    messages: list[Message]
    best: tuple[str, ...] | None
    most_actions: int
    prompt: np.ndarray = field(default_factory=lambda: _NOTHING)
    pictures: PlacedPictures = ()


class _Left(Exception):
    """The task is left out."""

    def __init__(self, reason: Reason, failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.reason, self.failure = reason, failure


class Intervening:
    """Plays interventions concurrently. `generate` and `steps`: as in `EnvironmentPlayer`."""

    def __init__(
        self,
        one: Format,
        environment: EnvironmentConfig | Mixture,
        sampling: SamplingConfig,
        config: EnvironmentActorConfig,
        max_model_len: int,
        generate: Generate,
        steps: StepPool,
        make_env: MakeEnv | None = None,
    ) -> None:
        self._format, self._mixture, self._config = one, Mixture.of(environment), config
        self._max_tokens, self._max_model_len = sampling.max_tokens_per_turn, max_model_len
        self._generate, self._steps = generate, steps
        self._idle = IdleEnvironments(make_env or partial(make_task, mixture=self._mixture))

    async def play(self, swap: Swap) -> Intervention | LeftOut:
        """The turns of a task, or why it is left out; an error of environment or rollout worker is not raised."""
        label = swap.ticket.task.label
        try:
            async with asyncio.timeout(self._config.episode_timeout_s):
                return await self._play(swap)
        except TimeoutError:
            return LeftOut(label, "failed", Failure(FailureCause.EPISODE_TIMEOUT))
        except _Left as left:
            return LeftOut(label, left.reason, left.failure)

    async def _play(self, swap: Swap) -> Intervention:
        ticket, codec = swap.ticket, squelch_turns(self._format, swap.ticket.task.environment)
        most = self._mixture.labelled(ticket.task.label).tokens(self._max_tokens)
        own = await self._open(ticket, ticket.task, codec)
        donor, twin = await self._donor(swap, own, codec)
        if max(len(own.prompt), len(donor.prompt)) + most > self._max_model_len:
            raise _Left("no_room")
        sampled = await asyncio.gather(
            self._sample(ticket, "first", own, most),
            self._sample(ticket, "second", own, most),
            self._sample(ticket, "donor", donor, most),
        )
        first, second, given = (_reasoned(codec, completion.token_ids) for completion in sampled)
        blank = first[codec.reasoning_span(sampled[0].token_ids)[1] :]
        begun: dict[Arm, np.ndarray] = {"second": second, "donor": given, "blank": blank}
        rests = await asyncio.gather(*(self._again(ticket, arm, own, ids, most) for arm, ids in begun.items()))

        def read() -> Intervention:
            turns = _sampled_turn(own, codec, sampled[0]), _sampled_turn(donor, codec, sampled[2])
            again = {arm: _sampled_turn(own, codec, rest, begun[arm]) for arm, rest in zip(begun, rests, strict=True)}
            arms = {arm: _spelt_as(own.env, said, turns) for arm, said in again.items()}
            return Intervention(ticket.task.label, *turns, arms, twin)

        found = await self._call(read)
        for opened in (own, donor):
            self._idle.keep(opened.task, opened.env)
        return found

    # --- tasks ---

    async def _donor(self, swap: Swap, own: _Opened, codec: ChatCodec) -> tuple[_Opened, bool]:
        """A donor, and whether it is a near twin."""
        twin = await self._call(lambda: self._twin(swap.ticket, own))
        if twin is not None:
            return await _with_prompt(twin, codec), True
        for task in swap.candidates:
            found = await self._open(swap.ticket, task, codec)
            if await self._call(partial(_can_give, own, found)):
                return found, False
            self._idle.keep(task, found.env)
        raise _Left("no_donor")

    def _twin(self, ticket: Ticket, own: _Opened) -> _Opened | None:
        """In a step thread: a near twin of the task with another best answer, in an environment of its own; None if
        there is none among `FAMILIES` draws of twins."""
        if own.best is None or lacking(own.env, Twinned):
            return None
        started, episode = self._started(ticket)
        source, env = cast("Twinned", own.env), cast("Twinned", started.env)  # `env` goes on to the twins themselves
        rng = Random(derive_seed("twins", ticket.seed, ticket.ticket_id))
        for content in (twin for _ in range(FAMILIES) for twin in source.twins(rng, TWINS_OF_FAMILY)):
            messages, best = episode.start_twin(env, content), _best(started.env, episode.max_actions)
            found = replace(started, messages=messages, task_key=episode.task_key, best=best)
            if _can_give(own, found):
                return found
        self._idle.keep(ticket.task, started.env)
        return None

    async def _open(self, ticket: Ticket, task: Task, codec: ChatCodec) -> _Opened:
        """A task that was started in an environment of its own."""
        started, _ = await self._call(lambda: self._started(replace(ticket, task=task)))
        return await _with_prompt(started, codec)

    def _started(self, ticket: Ticket) -> tuple[_Opened, Episode]:
        """In a step thread: as `_open`, without the ids of the prompt, and the episode."""
        task, env = ticket.task, self._idle.take(ticket.task)
        if env.whole_turns:
            raise ValueError(f"environment {task.environment} reads whole turns, in which no action can be compared")
        chosen = self._mixture.labelled(task.label).environment
        episode = Episode(env, task.seed, noise_seed(ticket, 0, env.shared_noise), chosen.format)
        messages, best = episode.start(), _best(env, episode.max_actions)
        return _Opened(task, env, episode.task_key, messages, best, episode.max_actions), episode

    # --- turns ---

    async def _sample(
        self, ticket: Ticket, name: str, opened: _Opened, most: int, begun: np.ndarray = _NOTHING
    ) -> Completion:
        """A turn, or the rest of one that has begun with these ids."""
        seed = derive_seed("intervention", ticket.seed, ticket.ticket_id, name)
        seed = request_seed(ticket, 0, 0) if name == "first" else seed
        ids = np.concatenate([opened.prompt, begun])
        name, pictures = f"{ticket.ticket_id}/{name}", opened.pictures
        request = GenerationRequest(name, ids, most, ticket.temperature, seed, pictures=pictures)
        try:
            return await generate_within(self._generate, ticket.worker, request, self._config.generation_timeout_s)
        except TimeoutError as error:
            raise _Left("failed", Failure(FailureCause.GENERATION_TIMEOUT)) from error
        except GenerationFailed as error:
            raise _Left("failed", Failure(FailureCause.GENERATION_ERROR, str(error))) from error

    async def _again(self, ticket: Ticket, arm: Arm, own: _Opened, begun: np.ndarray, most: int) -> Completion:
        """The rest of the turn that begins with these ids, on the own prompt."""
        if (room := most - len(begun)) < 1:
            raise _Left("no_room")
        return await self._sample(ticket, f"again/{arm}", own, room, begun)

    async def _call(self, function: Callable[[], T]) -> T:
        """Runs an environment call in a step thread."""
        try:
            return await self._steps.run(function)
        except TimeoutError as error:
            raise _Left("failed", Failure(FailureCause.STEP_TIMEOUT)) from error
        except CallFailed as error:
            raise _Left("failed", Failure(FailureCause.ENVIRONMENT_ERROR, str(error))) from error


def _reasoned(codec: ChatCodec, sampled: np.ndarray) -> np.ndarray:
    """The ids of a sampled turn up to the one that completes the closing of its reasoning."""
    end = codec.closing_end(sampled)
    if end is None:
        raise _Left("unclosed")
    return sampled[:end]


async def _with_prompt(started: _Opened, codec: ChatCodec) -> _Opened:
    try:
        ids, pictures = await asyncio.to_thread(codec.first_fed, started.messages)
        return replace(started, prompt=ids, pictures=pictures)
    except ValueError as error:
        raise _Left("failed", Failure(FailureCause.ENVIRONMENT_ERROR, str(error))) from error


def _sampled_turn(opened: _Opened, codec: ChatCodec, rest: Completion, begun: np.ndarray = _NOTHING) -> SampledTurn:
    """In a step thread: what a turn, which may have begun with some ids, says to the environment of its task."""
    text, cut = codec.text(np.concatenate([begun, rest.token_ids])), rest.finish_reason == "length"
    turn = parse(text, opened.most_actions, opened.env.read_action)
    return SampledTurn(turn.actions, turn.valid and not cut)


def _spelt_as(env: Environment, said: SampledTurn, turns: Iterable[SampledTurn]) -> SampledTurn:
    """In a step thread: what was said, with the actions of the first of `turns` whose actions are the same."""
    same = next((turn for turn in turns if _same(env, said.actions, turn.actions)), said)
    return replace(said, actions=same.actions)


def _same(env: Environment, some: Sequence[str], others: Sequence[str]) -> bool:
    return len(some) == len(others) and all(
        one == other or env.same_action(one, other) for one, other in zip(some, others, strict=True)
    )


def _can_give(own: _Opened, donor: _Opened) -> bool:
    """In a step thread: whether a task can be the donor of the own one."""
    if donor.task_key == own.task_key:
        return False
    if own.best is None:
        return True
    return donor.best is not None and not _same(own.env, own.best, donor.best)


def _best(env: Environment, most_actions: int) -> tuple[str, ...] | None:
    """In a step thread: the actions of `best_answer`."""
    best = best_answer(env, most_actions)
    return None if best is None else parse(well_formed("", [best]), most_actions, env.read_action).actions or None


def best_answer(env: Environment, most_actions: int) -> str | None:
    """What a solver answers in the environment's current state, with at most so many actions, or what it demonstrates
    without a mistake; None if neither is known."""
    if not lacking(env, Twinned):
        return cast("Twinned", env).best_answer(most_actions)
    if lacking(env, Demonstrator):
        return None
    quality = DemonstrationQuality(
        grounded=1.0, wrong_coordinates=0.0, random_plan=0.0, generic_random_plan=0.0, max_actions=most_actions
    )
    return joined(cast("Demonstrator", env).demonstrate(Random(0), quality)[1])
