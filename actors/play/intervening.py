"""Plays interventions: the action of a first turn is sampled again after another reasoning
(`actors.diagnosis.interventions`).

Invariants:

- Token in, token out: what is fed are the ids of the prompt, then the ids with which a sampled turn begins, up to the
  one that completes `</think>`. Nothing is decoded and encoded again. Without reasoning only the ids of that closing
  are fed.
- A reasoning and the action that is sampled after it have the token limit of a turn together.
- An environment is started and never stepped. It reads the actions (`read_action`), and so decides which are equal.
- A donor has another content than the task and, where best answers are known (`Twinned`, `Demonstrator`), another
  best answer. It is a near twin where the environment has such a one, else the first candidate that fits.
- The own first turn has the request seed of the ticket's first trajectory; the seeds of all other turns are digests of
  (ticket seed, ticket, name of the turn).

| waits for | unblocked by | on time-out |
|---|---|---|
| a turn's tokens | the ticket's rollout worker | the task is left out, after `generation_timeout_s` |
| an environment call | a step thread | the task is left out, after `step_timeout_s` of running |
| all turns of a task | both | the task is left out, after `episode_timeout_s` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TypeVar, cast

import numpy as np

from squelch.actors.config import EnvironmentActorConfig, SamplingConfig
from squelch.actors.diagnosis.interventions import Arm, Intervention, LeftOut, Reason, Said, Swap
from squelch.actors.failures import Failure, FailureCause
from squelch.actors.formats.choice import squelch_turns
from squelch.actors.formats.protocol import Format
from squelch.actors.messages import Completion, GenerationRequest, PlacedPictures
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import Generate, GenerationFailed, generate_within
from squelch.actors.play.player import IdleEnvironments, MakeEnv, make_task
from squelch.actors.play.seeds import derive_seed, noise_seed, request_seed
from squelch.actors.play.step_pool import CallFailed, StepPool
from squelch.actors.records import Task, Ticket
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Demonstrator, Environment, Twinned, lacking
from squelch.envs.episode import Episode, Message
from squelch.envs.format import joined, parse
from squelch.envs.mixture import Mixture
from squelch.envs.wording import DemonstrationQuality

T = TypeVar("T")
FAMILIES, TWINS_OF_FAMILY = 4, 4
"""Draws of a task's twins, each of those that differ in one part of it, and the number of twins of a draw."""
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True)
class _Opened:
    """A task that was started: its environment, first messages and best answer (None if it is not known), the number of
    actions that a turn may have, and the ids and pictures of its first prompt."""

    task: Task
    env: Environment
    task_key: str
    messages: list[Message]
    best: str | None
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
        again = await asyncio.gather(
            self._again(ticket, "second", own, second, most, codec),
            self._again(ticket, "donor", own, given, most, codec),
            self._again(ticket, "blank", own, blank, most, codec),
        )
        said = await self._said(own, codec, _NOTHING, sampled[0])
        answered = await self._said(donor, codec, _NOTHING, sampled[2])
        for opened in (own, donor):
            self._idle.keep(opened.task, opened.env)
        arms: dict[Arm, Said] = {"second": again[0], "donor": again[1], "blank": again[2]}
        return Intervention(ticket.task.label, said, answered, arms, twin)

    # --- tasks ---

    async def _donor(self, swap: Swap, own: _Opened, codec: ChatCodec) -> tuple[_Opened, bool]:
        """A donor, and whether it is a near twin: tasks with other content and, if best answers are known, another."""
        twin = await self._call(lambda: self._twin(swap.ticket, own))
        if twin is not None:
            return _with_prompt(twin, codec), True
        for task in swap.candidates:
            found = await self._open(swap.ticket, task, codec)
            if found.task_key != own.task_key and (own.best is None or found.best != own.best):
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
            messages, best = episode.start_twin(env, content), env.best_answer(episode.max_actions)
            if best not in (None, own.best) and episode.task_key != own.task_key:
                return replace(started, messages=messages, task_key=episode.task_key, best=best)
        self._idle.keep(ticket.task, started.env)
        return None

    async def _open(self, ticket: Ticket, task: Task, codec: ChatCodec) -> _Opened:
        """A task that was started in an environment of its own."""
        started, _ = await self._call(lambda: self._started(replace(ticket, task=task)))
        return _with_prompt(started, codec)

    def _started(self, ticket: Ticket) -> tuple[_Opened, Episode]:
        """In a step thread: as `_open`, without the ids of the prompt, and the episode."""
        task, env = ticket.task, self._idle.take(ticket.task)
        if env.whole_turns:
            raise ValueError(f"environment {task.environment} reads whole turns, in which no action can be compared")
        chosen = self._mixture.labelled(task.label).environment
        episode = Episode(env, task.seed, noise_seed(ticket, 0, env.shared_noise), chosen.format)
        messages, best = episode.start(), best_answer(env, episode.max_actions)
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

    async def _again(
        self, ticket: Ticket, arm: str, own: _Opened, begun: np.ndarray, most: int, codec: ChatCodec
    ) -> Said:
        """The turn that begins with these ids, on the own prompt."""
        if (room := most - len(begun)) < 1:
            raise _Left("no_room")
        rest = await self._sample(ticket, f"again/{arm}", own, room, begun)
        return await self._said(own, codec, begun, rest)

    async def _said(self, opened: _Opened, codec: ChatCodec, begun: np.ndarray, rest: Completion) -> Said:
        """What a turn says to the environment of its task."""
        text, cut = codec.text(np.concatenate([begun, rest.token_ids])), rest.finish_reason == "length"
        turn = await self._call(lambda: parse(text, opened.most_actions, opened.env.read_action))
        return Said(turn.actions, turn.valid and not cut)

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


def _with_prompt(started: _Opened, codec: ChatCodec) -> _Opened:
    try:
        ids, pictures = codec.first_fed(started.messages)
        return replace(started, prompt=ids, pictures=pictures)
    except ValueError as error:
        raise _Left("failed", Failure(FailureCause.ENVIRONMENT_ERROR, str(error))) from error


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
