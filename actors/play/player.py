"""The player, which plays tickets.

`EnvironmentPlayer` uses asyncio and depends on neither Ray nor vLLM; a function `generate` samples its turns.
`actors/play/actor.py` is its Ray actor.

Invariants:

- A trajectory is the exact ids `first_turn | sampled | next_turn | sampled | ...`; no text is decoded and encoded
  again. `loss_mask` is true at sampled ids only. A trajectory ends with its last sampled id.
- A turn that is cut at its token limit is closed with masked ids (`next_turn(closed=False)`) and counts as badly
  formatted, and the episode continues. If the context cannot hold a further turn, the episode ends as `truncated`,
  which is not a failure; only a first turn that does not fit is a failure (`context_exhausted`).
- An error fails one trajectory only, which records the cause (`actors.failures`) and keeps its tokens.
- Randomness: each request's seed is a digest of (ticket seed, ticket, trajectory, turn). Each trajectory's noise seed
  is a digest of (ticket seed, ticket, trajectory), or of (ticket seed, ticket) if the environment shares its noise.
- A ticket may ask for replays of its trajectories under fresh noise, which follow each episode
  (`actors.play.replaying`).

| waits for | unblocked by | on time-out |
|---|---|---|
| a turn's tokens | the ticket's rollout worker | `generation_timeout`, after `generation_timeout_s` |
| an environment call | a step thread | `step_timeout`, after `step_timeout_s` of running; the thread is abandoned |
| an episode | both | `episode_timeout`, after `episode_timeout_s` |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from squelch.actors.config import EnvironmentActorConfig, SamplingConfig
from squelch.actors.failures import Failure, FailureCause
from squelch.actors.messages import Completion, GenerationRequest, VersionSpan
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.replaying import NOT_REPLAYED, Replayed, replay
from squelch.actors.play.seeds import noise_seed, request_seed
from squelch.actors.play.step_pool import CallFailed, StepPool
from squelch.actors.records import Group, Task, Ticket, Trajectory, Turn
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode, Message, TurnOutcome
from squelch.envs.registry import make

Generate = Callable[[str, GenerationRequest], Awaitable[Completion]]
MakeEnv = Callable[[Task], Environment]


def make_task(task: Task, config: EnvironmentConfig) -> Environment:
    """An environment for a task, not yet reset, in the style of `config` and with its first training seed."""
    return make(task.environment, task.split, dict(task.options), config.prompt, config.train_seed)


class _Failed(Exception):
    """Ends this trajectory with a failure."""

    def __init__(self, cause: FailureCause, detail: object = "") -> None:
        self.failure = Failure(cause, str(detail))
        super().__init__(str(self.failure))


@dataclass
class _Transcript:
    """A trajectory in progress: its ids, in the order in which they are fed and sampled."""

    parts: list[np.ndarray] = field(default_factory=list)
    log_probs: list[np.ndarray | None] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    version_spans: tuple[VersionSpan, ...] | None = ()
    length: int = 0
    task_key: str = ""
    task_kind: str | None = None
    success: bool = False
    truncated: bool = False
    bootstrap_last_state: bool = False
    seconds_environment: float = 0.0
    seconds_generation: float = 0.0
    replayed: Replayed = NOT_REPLAYED

    def add(self, ids: np.ndarray, log_probs: np.ndarray | None = None) -> int:
        """Append fed ids, or sampled ids with their log-probabilities; returns the position of the first."""
        start = self.length
        self.parts.append(ids)
        self.log_probs.append(log_probs)
        self.length += len(ids)
        return start

    def add_sampled(self, completion: Completion) -> int:
        """Append a sampled turn; returns the position of its first id."""
        spans = completion.spans_from(self.length)
        before = self.version_spans
        self.version_spans = None if spans is None or before is None else (*before, *spans)
        return self.add(completion.token_ids, completion.log_probs)

    def token_ids(self) -> np.ndarray:
        """All ids so far, (num_tokens,) int32."""
        return np.concatenate(self.parts).astype(np.int32, copy=False) if self.parts else np.zeros(0, np.int32)

    def trajectory(self, index: int, worker: str, failure: Failure | None) -> Trajectory:
        """The trajectory; one that failed is neither a success nor truncated."""
        mask, log_probs = np.zeros(self.length, dtype=bool), np.zeros(self.length, dtype=np.float32)
        position = 0
        for part, sampled in zip(self.parts, self.log_probs, strict=True):
            if sampled is not None:
                mask[position : position + len(part)] = True
                log_probs[position : position + len(part)] = sampled
            position += len(part)
        ended = failure is None
        return Trajectory(
            index,
            self.token_ids(),
            mask,
            log_probs,
            self.turns,
            success=ended and self.success,
            truncated=ended and self.truncated,
            failure=failure,
            worker=worker,
            bootstrap_last_state=ended and self.bootstrap_last_state,
            version_spans=self.version_spans,
            replay_returns=self.replayed.returns,
            replay_failure=self.replayed.failure,
        )


class EnvironmentPlayer:
    """Plays tickets concurrently. `generate(worker, request)` returns a completion or raises GenerationFailed."""

    def __init__(
        self,
        codec: ChatCodec,
        environment: EnvironmentConfig,
        sampling: SamplingConfig,
        config: EnvironmentActorConfig,
        max_model_len: int,
        generate: Generate,
        make_env: MakeEnv | None = None,
    ) -> None:
        self._codec = codec
        self._format, self._reward_noise = environment.format, environment.reward_noise
        self._max_tokens = sampling.max_tokens_per_turn
        self._config = config
        self._max_model_len = max_model_len
        self._generate = generate
        self._make_env = make_env or partial(make_task, config=environment)
        self.steps = StepPool(config.step_timeout_s, config.step_threads)
        self._idle: dict[tuple[str, str, str], list[Environment]] = {}

    async def play(self, ticket: Ticket) -> Group:
        """Play a ticket's `group_size` trajectories concurrently; an error in one of them is not raised."""
        played = await asyncio.gather(*(self._play_one(ticket, index) for index in range(ticket.group_size)))
        transcripts, trajectories = zip(*played, strict=True)
        started = next((transcript for transcript in transcripts if transcript.task_key), transcripts[0])
        return Group(
            ticket=ticket,
            task_key=started.task_key,
            task_kind=started.task_kind,
            trajectories=list(trajectories),
            seconds_environment=sum(one.seconds_environment for one in transcripts) / len(transcripts),
            seconds_generation=sum(one.seconds_generation for one in transcripts) / len(transcripts),
            seconds_replays=sum(one.replayed.seconds for one in transcripts),
        )

    def close(self) -> None:
        """Let the step threads end."""
        self.steps.close()

    # --- one trajectory ---

    async def _play_one(self, ticket: Ticket, index: int) -> tuple[_Transcript, Trajectory]:
        transcript, failure = _Transcript(), None
        try:
            async with asyncio.timeout(self._config.episode_timeout_s):
                env, episode = await self._episode(ticket, index, transcript)
        except TimeoutError:
            failure = Failure(FailureCause.EPISODE_TIMEOUT)
        except _Failed as error:
            failure = error.failure
        else:
            transcript.replayed = await replay(episode, ticket, index, self.steps, self._config.episode_timeout_s)
            if not transcript.replayed.lost_environment:
                self._idle.setdefault(_idle_key(ticket.task), []).append(env)
        return transcript, transcript.trajectory(index, ticket.worker, failure)

    async def _episode(self, ticket: Ticket, index: int, transcript: _Transcript) -> tuple[Environment, Episode]:
        env, episode, messages = await self._call(transcript, lambda: self._begin(ticket, index))
        transcript.task_key, transcript.task_kind = episode.task_key, episode.task_kind
        feed = self._codec.first_turn(messages)
        while self._fits(transcript, feed):
            transcript.add(feed)
            completion = await self._sample(ticket, index, transcript)
            outcome = await self._act(episode, transcript, completion)
            transcript.success = outcome.success
            transcript.truncated = outcome.truncated
            transcript.bootstrap_last_state = outcome.bootstrap_last_state
            if outcome.next_message is None:
                break
            if len(transcript.turns) == ticket.most_turns:
                transcript.truncated = True
                break
            feed = self._codec.next_turn(outcome.next_message, closed=completion.finish_reason == "stop")
        return env, episode

    def _begin(self, ticket: Ticket, index: int) -> tuple[Environment, Episode, list[Message]]:
        """In a step thread: take or make an environment and start the task in it."""
        try:
            env = self._idle.get(_idle_key(ticket.task), []).pop()
        except IndexError:
            env = self._make_env(ticket.task)
        noise = noise_seed(ticket, index, env.shared_noise)
        episode = Episode(env, ticket.task.seed, noise, self._format, self._reward_noise)
        return env, episode, episode.start()

    def _fits(self, transcript: _Transcript, feed: np.ndarray) -> bool:
        """Whether the context has room for `feed` and a turn of full length. If not, the episode ends as truncated."""
        needed = transcript.length + len(feed) + self._max_tokens
        if needed <= self._max_model_len:
            return True
        if not transcript.turns:
            raise _Failed(
                FailureCause.CONTEXT_EXHAUSTED,
                f"the first prompt of {len(feed)} tokens and a turn of {self._max_tokens} exceed "
                f"max_model_len={self._max_model_len}",
            )
        transcript.truncated = transcript.bootstrap_last_state = True
        return False

    async def _sample(self, ticket: Ticket, index: int, transcript: _Transcript) -> Completion:
        turn = len(transcript.turns)
        request = GenerationRequest(
            request_id=f"{ticket.ticket_id}/{index}/{turn}",
            prompt_ids=transcript.token_ids(),
            max_tokens=self._max_tokens,
            temperature=ticket.temperature,
            seed=request_seed(ticket, index, turn),
        )
        started = time.monotonic()
        bound = asyncio.timeout(self._config.generation_timeout_s)
        try:
            async with bound:
                return await self._generate(ticket.worker, request)
        except TimeoutError as error:
            if bound.expired():
                raise _Failed(FailureCause.GENERATION_TIMEOUT) from error
            raise _Failed(FailureCause.GENERATION_ERROR, error) from error
        except GenerationFailed as error:
            raise _Failed(FailureCause.GENERATION_ERROR, error) from error
        finally:
            transcript.seconds_generation += time.monotonic() - started

    async def _act(self, episode: Episode, transcript: _Transcript, completion: Completion) -> TurnOutcome:
        """Record a sampled turn and pass its text to the episode, with whether it was cut at its token limit."""
        ids = completion.token_ids
        start = transcript.add_sampled(completion)
        hit_token_limit = completion.finish_reason == "length"
        text = self._codec.text(ids)
        outcome = await self._call(transcript, lambda: episode.act(text, hit_token_limit))
        first, last = self._codec.reasoning_span(ids)
        transcript.turns.append(
            Turn(
                sample_start=start,
                sample_end=start + len(ids),
                reasoning_start=start + first,
                reasoning_end=start + last,
                reward=float(outcome.reward),
                format_penalty=float(outcome.format_penalty),
                format_valid=outcome.format_valid,
                hit_token_limit=hit_token_limit,
                num_actions=outcome.num_actions,
                version_min=completion.version_min,
                version_max=completion.version_max,
            )
        )
        return outcome

    async def _call(self, transcript: _Transcript, function: Callable[[], Any]) -> Any:
        """Run an environment call in a step thread. If it fails, the episode's environment is not used again."""
        started = time.monotonic()
        try:
            return await self.steps.run(function)
        except TimeoutError as error:
            raise _Failed(FailureCause.STEP_TIMEOUT) from error
        except CallFailed as error:
            raise _Failed(FailureCause.ENVIRONMENT_ERROR, error) from error
        finally:
            transcript.seconds_environment += time.monotonic() - started


def _idle_key(task: Task) -> tuple[str, str, str]:
    """Key of the environments that can be reused for a task: tasks with the same key share them, one after another."""
    return task.environment, task.split, task.options_json
