"""The player, which plays tickets.

`EnvironmentPlayer` uses asyncio and depends on neither Ray nor vLLM; a function `generate` samples its turns.
`squelch/actors/play/actor.py` is its Ray actor.

Invariants:

- A segment is the exact ids `first_turn | sampled | next_turn | sampled | ...`; no text is decoded and encoded
  again. `loss_mask` is true at sampled ids only. A trajectory ends with its last sampled id. It is one segment, unless
  `model.keep_reasoning` lets the template remove reasoning (`actors.formats.retention`).
- A turn that is cut at its token limit is closed with masked ids (`next_turn(closed=False)`) and counts as badly
  formatted, and the episode continues. If the context cannot hold a further turn, the episode ends as `truncated`,
  which is not a failure; only a first turn that does not fit is a failure (`context_exhausted`).
- An error fails one trajectory only, which records the cause (`kit.records.failures`) and keeps its tokens.
- Randomness: each request's seed is a digest of (ticket seed, ticket, trajectory, turn). Each trajectory's noise seed
  is a digest of (ticket seed, ticket, trajectory), or of (ticket seed, ticket) if the environment shares its noise.
- Templates are rendered, messages encoded and turns read in threads: nothing of it blocks the event loop. They are no
  step threads, because a renderer that is busy with others' prompts is no late environment. What takes less than the
  way to a thread and back is done at once (`TurnFormat.quick`), as are all turns of small games.
- The calls of an agent are turns as well; it ends them itself (`actors.play.agent_episode`).
- An environment may reward the trajectories of a group together (`GroupRewarded`), once all have ended: each of them
  gets a reward, or fails with the reason why it has none.

| waits for | unblocked by | on time-out |
|---|---|---|
| a turn's tokens | the ticket's rollout worker | `generation_timeout`, after `generation_timeout_s` |
| a prompt's ids | a thread, which may wait for the renderer | `environment_error`, after the renderer's bounds |
| an environment call | a step thread | `step_timeout`, after `step_timeout_s` of running; the thread is abandoned |
| an episode | all three | `episode_timeout`, after `episode_timeout_s` |
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.formats.protocol import Format
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.agent_episode import AgentEpisodes, Bounds
from squelch.actors.play.attempt import Attempt, AttemptFailed
from squelch.actors.play.first_prompts import difference
from squelch.actors.play.generation import Generate, GenerationFailed, generate_within
from squelch.actors.play.hard_negatives import clusters_of
from squelch.actors.play.seeds import noise_seed, request_seed
from squelch.actors.play.step_pool import CallFailed, StepPool
from squelch.actors.play.turn_format import NextIds, TurnFormat, turn_format_of
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import AgentDriven, Environment, GroupReward, GroupRewarded, lacking, require
from squelch.envs.episode import Episode, Message, TurnOutcome
from squelch.envs.mixture import Mixture
from squelch.envs.registry import make
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Cluster, Group, Task, Ticket
from squelch.kit.untrusted.rewards import finite_reward

T = TypeVar("T")
MakeEnv = Callable[[Task], Environment]


def make_task(task: Task, mixture: Mixture) -> Environment:
    """An environment for a task, not yet reset, in the style of its entry and with its first training seed."""
    config = mixture.labelled(task.label).environment
    return make(task.environment, task.split, dict(task.options), config.prompt, config.train_seed)


class IdleEnvironments:
    """Environments that can be used again, by the tasks that can share them. Step threads may share it."""

    def __init__(self, make_env: MakeEnv) -> None:
        self._make_env = make_env
        self._idle: dict[tuple[str, ...], list[Environment]] = {}

    def take(self, task: Task) -> Environment:
        """An environment for a task, not yet reset."""
        try:
            return self._idle.get(_idle_key(task), []).pop()
        except IndexError:
            return self._make_env(task)

    def keep(self, task: Task, environment: Environment) -> None:
        """Takes back the environment of a task that has ended without an error."""
        self._idle.setdefault(_idle_key(task), []).append(environment)


class EnvironmentPlayer:
    """Plays tickets concurrently, of one environment or of several (`envs.mixture`). `generate(worker, request)`
    returns a completion or raises GenerationFailed."""

    def __init__(
        self,
        codec: Format,
        environment: EnvironmentConfig | Mixture,
        sampling: SamplingConfig,
        config: EnvironmentActorConfig,
        max_model_len: int,
        generate: Generate,
        make_env: MakeEnv | None = None,
    ) -> None:
        self._codec = codec
        self._mixture = Mixture.of(environment)
        self._max_tokens = sampling.max_tokens_per_turn
        self._config = config
        self._max_model_len = max_model_len
        self._generate = generate
        self._make_env = make_env or partial(make_task, mixture=self._mixture)
        self.steps = StepPool(config.step_timeout_s, config.step_threads)
        self._agents = AgentEpisodes(codec, config, max_model_len, generate)
        self._idle = IdleEnvironments(self._make_env)

    async def play(self, ticket: Ticket) -> Group:
        """Play a ticket's `group_size` trajectories concurrently; an error in one of them is not raised."""
        attempts = await asyncio.gather(*(self._play_one(ticket, index) for index in range(ticket.group_size)))
        await self._reward_group(ticket, [one for one in attempts if one.group_rewarded and one.failure is None])
        started = next((attempt for attempt in attempts if attempt.task_key), attempts[0])
        return Group(
            ticket=ticket,
            task_key=started.task_key,
            task_kind=started.task_kind,
            trajectories=[one.trajectory(index, ticket.worker) for index, one in enumerate(attempts)],
            seconds_environment=sum(one.seconds_environment for one in attempts) / len(attempts),
            seconds_generation=sum(one.seconds_generation for one in attempts) / len(attempts),
            endpoint_counts=tuple(sorted(sum((one.endpoint_counts for one in attempts), Counter()).items())),
            prompts_differ=self._prompts_differ(attempts),
        )

    async def clusters(self, tickets: Sequence[Ticket]) -> dict[str, Cluster]:
        """The clusters of the tickets' tasks, as `actors.play.hard_negatives.clusters_of`."""
        return await clusters_of(tickets, self._codec, self._mixture, self.steps, self._make_env)

    def close(self) -> None:
        """Let the step threads end."""
        self.steps.close()

    async def end_agents(self) -> None:
        """End what agents call, in the event loop in which they were played."""
        await self._agents.close()

    # --- one trajectory ---

    async def _play_one(self, ticket: Ticket, index: int) -> Attempt:
        attempt = Attempt()
        try:
            async with asyncio.timeout(self._config.episode_timeout_s):
                env, episode, messages = await self._call(attempt, lambda: self._begin(ticket, index))
                attempt.task_key, attempt.task_kind = episode.task_key, episode.task_kind
                driven = not lacking(env, AgentDriven)
                if not driven:
                    await self._episode(ticket, index, attempt, env, episode, messages)
            if driven:
                await self._agent(ticket, index, attempt, env)
        except TimeoutError:
            attempt.failure = Failure(FailureCause.EPISODE_TIMEOUT)
        except AttemptFailed as error:
            attempt.failure = error.failure
        else:
            self._idle.keep(ticket.task, env)
        return attempt

    async def _agent(self, ticket: Ticket, index: int, attempt: Attempt, env: Environment) -> None:
        """Plays a task whose agent calls the policy itself."""
        agent = require(ticket.task.environment, env, AgentDriven, "an agent")
        entry = self._mixture.labelled(ticket.task.label)
        chosen = entry.environment
        most_calls = chosen.format.max_turns or env.max_turns
        bounds = Bounds(entry.tokens(self._max_tokens), most_calls, chosen.reward_noise)
        task = ticket.task
        await self._agents.play(
            ticket, index, attempt, agent, (task.label, task.environment, task.options_json), bounds
        )

    async def _episode(
        self,
        ticket: Ticket,
        index: int,
        attempt: Attempt,
        env: Environment,
        episode: Episode,
        messages: list[Message],
    ) -> None:
        attempt.group_rewarded = not lacking(env, GroupRewarded)
        turns = turn_format_of(self._codec, env, ticket.task.environment, episode)
        feed = _fed(
            await _off_the_loop(lambda: _shown(lambda: turns.first(messages)), turns.quick(messages, first=True))
        )
        most = self._mixture.labelled(ticket.task.label).tokens(self._max_tokens)
        while self._fits(attempt, feed, most):
            attempt.feed(*feed)
            completion = await self._sample(ticket, index, attempt, most)
            outcome, following = await self._act(episode, attempt, completion, turns)
            attempt.success = outcome.success
            attempt.truncated = outcome.truncated
            attempt.bootstrap_last_state = outcome.bootstrap_last_state
            if following is None:
                break
            if attempt.num_turns == ticket.most_turns:
                attempt.truncated = True
                break
            feed = _fed(following)

    def _begin(self, ticket: Ticket, index: int) -> tuple[Environment, Episode, list[Message]]:
        """In a step thread: take or make an environment and start the task in it."""
        env = self._idle.take(ticket.task)
        noise = noise_seed(ticket, index, env.shared_noise)
        chosen = self._mixture.labelled(ticket.task.label).environment
        episode = Episode(env, ticket.task.seed, noise, chosen.format, chosen.reward_noise)
        return env, episode, episode.start()

    def _fits(self, attempt: Attempt, feed: NextIds, most: int) -> bool:
        """Whether the context has room for `feed` and a turn of `most` tokens. If not, the episode ends as
        truncated."""
        needed = (0 if feed.cause else attempt.segment.length) + len(feed.ids) + most
        if needed <= self._max_model_len:
            return True
        if not attempt.num_turns:
            raise AttemptFailed(
                FailureCause.CONTEXT_EXHAUSTED,
                f"the first prompt of {len(feed.ids)} tokens and a turn of {most} exceed "
                f"max_model_len={self._max_model_len}",
            )
        attempt.truncated = attempt.bootstrap_last_state = True
        return False

    async def _sample(self, ticket: Ticket, index: int, attempt: Attempt, most: int) -> Completion:
        turn = attempt.num_turns
        request = GenerationRequest(
            request_id=f"{ticket.ticket_id}/{index}/{turn}",
            prompt_ids=attempt.segment.token_ids(),
            max_tokens=most,
            temperature=ticket.temperature,
            seed=request_seed(ticket, index, turn),
            pictures=attempt.segment.pictures,
        )
        started = time.monotonic()
        try:
            return await generate_within(self._generate, ticket.worker, request, self._config.generation_timeout_s)
        except TimeoutError as error:
            raise AttemptFailed(FailureCause.GENERATION_TIMEOUT) from error
        except GenerationFailed as error:
            raise AttemptFailed(FailureCause.GENERATION_ERROR, error) from error
        finally:
            attempt.seconds_generation += time.monotonic() - started

    async def _act(
        self, episode: Episode, attempt: Attempt, completion: Completion, turns: TurnFormat
    ) -> tuple[TurnOutcome, NextIds | ValueError | None]:
        """Record a sampled turn and pass its text to the episode, with whether it was cut at its token limit; also
        returns what is fed next, None at the episode's end."""
        ids, codec, how = completion.token_ids, self._codec, completion.finish_reason
        attempt.segment.add_sampled(completion)
        outcome = await self._call(attempt, lambda: episode.act(codec.text(ids), how == "length"))
        message = outcome.next_message

        def read() -> tuple[tuple[int, int], NextIds | ValueError | None, str]:
            reasoning, following = turns.reasoning_of(ids), None
            if message is not None:
                following = _shown(lambda: turns.following(message, how == "stop"))
            return reasoning, following, codec.completion_text(ids)

        quick = turns.quick([] if message is None else [message])
        reasoning, following, attempt.last_text = await _off_the_loop(read, quick)
        attempt.segment.add_turn(
            completion,
            reasoning,
            outcome.format_valid,
            outcome.num_actions,
            float(outcome.reward),
            float(outcome.format_penalty),
        )
        return outcome, following

    # --- a group ---

    def _prompts_differ(self, attempts: Sequence[Attempt]) -> str | None:
        """As of the group. Only agents have counts of the endpoint."""
        prompts = [one.segments[0].parts[0] for one in attempts if one.endpoint_counts and one.num_turns]
        return difference(prompts, self._codec.text) if len(prompts) > 1 else None

    async def _reward_group(self, ticket: Ticket, ended: list[Attempt]) -> None:
        """Adds the rewards that the environment gives the group. `ended`: its trajectories without a failure."""
        if not ended:
            return
        texts, ids = [one.last_text for one in ended], [one.last_sampled.last_ids().tolist() for one in ended]
        shared = Attempt()
        try:
            rewards = await self._call(shared, lambda: self._group_rewards(ticket, texts, ids))
        except AttemptFailed as error:
            rewards = [error.failure] * len(ended)
        for one, reward in zip(ended, rewards, strict=True):
            one.seconds_environment += shared.seconds_environment / len(ended)
            if isinstance(reward, Failure):
                one.failure = reward
            elif isinstance(reward, str):
                one.failure = Failure(FailureCause.ENVIRONMENT_ERROR, reward)
            else:
                one.last_sampled.turns[-1].reward += reward[0]
                one.success = reward[1]

    def _group_rewards(self, ticket: Ticket, texts: list[str], ids: list[list[int]]) -> list[GroupReward]:
        """In a step thread: the group's rewards, in an environment in which its task was started."""
        env = self._idle.take(ticket.task)
        env.reset(seed=ticket.task.seed, options={"noise_seed": noise_seed(ticket, 0, env.shared_noise)})
        rewards = require(ticket.task.environment, env, GroupRewarded, "a group").group_rewards(texts, ids)
        if len(rewards) != len(texts):
            raise ValueError(f"group_rewards() returned {len(rewards)} rewards for {len(texts)} trajectories")
        rewards = [r if isinstance(r, str) else (finite_reward(r[0], "group_rewards"), bool(r[1])) for r in rewards]
        self._idle.keep(ticket.task, env)
        return rewards

    async def _call(self, attempt: Attempt, function: Callable[[], Any]) -> Any:
        """Run an environment call in a step thread. If it fails, the episode's environment is not used again."""
        started = time.monotonic()
        try:
            return await self.steps.run(function)
        except TimeoutError as error:
            raise AttemptFailed(FailureCause.STEP_TIMEOUT) from error
        except CallFailed as error:
            raise AttemptFailed(FailureCause.ENVIRONMENT_ERROR, error) from error
        finally:
            attempt.seconds_environment += time.monotonic() - started


async def _off_the_loop(read: Callable[[], T], quick: bool = False) -> T:
    """Runs work of the format in a thread, or at once if it is `quick`. If it fails, so does the trajectory."""
    try:
        return read() if quick else await asyncio.to_thread(read)
    except Exception as error:
        raise AttemptFailed(FailureCause.ENVIRONMENT_ERROR, f"{type(error).__name__}: {error}") from error


def _shown(show: Callable[[], NextIds]) -> NextIds | ValueError:
    """The ids of messages that the environment gave, or why the format cannot show them."""
    try:
        return show()
    except ValueError as error:
        return error


def _fed(shown: NextIds | ValueError) -> NextIds:
    if isinstance(shown, ValueError):
        raise AttemptFailed(FailureCause.ENVIRONMENT_ERROR, shown)
    return shown


def _idle_key(task: Task) -> tuple[str, ...]:
    """Key of the environments that can be reused for a task: tasks with the same key share them, one after another."""
    return task.label, task.environment, task.split, task.options_json
