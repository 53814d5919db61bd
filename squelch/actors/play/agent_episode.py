"""Plays one trajectory of an agent: a session of the endpoint, the agent's run, and what it reports.

The endpoint answers the agent's calls with turns that are sampled here, and records them as segments. The agent says
at its end what each call, or the whole, has earned. It depends on neither Ray nor vLLM.

| waits for | unblocked by | on time-out |
|---|---|---|
| its turn, where the environment bounds how many run at once | another trajectory's end | that one's bounds |
| the agent | the agent; its failure | `agent_error`, after `episode_timeout_s`; its processes are ended |
| a call's tokens | the ticket's rollout worker | `generation_timeout`, after `generation_timeout_s` |
| its clean-up | the environment | none: it is no time of the agent's |

Invariants:

- A trajectory that fails keeps its segments. Failed sampling comes before whatever the agent makes of it.
- Who decides: the environment knows how the agent ended, and what the user wants that to earn; the session knows
  whether something else than the policy may have ended it. The reward counts only if nothing else may, and a trained
  call can take it; then the trajectory is no failure, and its row says how the agent ended.
- Calls that are not trained on earn nothing, and no reward is counted for them.
- A trajectory is interrupted, and begins again without its calls, at most `MOST_BEGINS` - 1 times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.endpoint.server import Endpoint
from squelch.actors.endpoint.session import Call, Recorded
from squelch.actors.formats.choice import squelch_turns
from squelch.actors.formats.protocol import Format
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.attempt import Attempt, AttemptFailed
from squelch.actors.play.generation import Generate, generate_within
from squelch.actors.play.seeds import derive_seed, noise_seed, request_seed
from squelch.actors.play.squelch_format import SquelchFormat
from squelch.envs.contract import Access, AgentDriven, AgentFailed, AgentInterrupted, AgentResult
from squelch.envs.reward_noise import RewardNoise
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Ticket

log = logging.getLogger(__name__)
MOST_BEGINS = 3


@dataclass(frozen=True)
class Bounds:
    """Of one trajectory. `most_tokens`: sampled in one call; `most_calls`: None for no limit of the environment's."""

    most_tokens: int
    most_calls: int | None
    reward_noise: RewardNoise


@dataclass
class AgentEpisodes:
    """The agents of one environment actor, and their endpoints: one for each way in which turns are written."""

    one: Format
    config: EnvironmentActorConfig
    max_model_len: int
    generate: Generate
    _endpoints: dict[str, Endpoint] = field(default_factory=dict)
    _slots: dict[tuple[str, ...], asyncio.Semaphore] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def play(
        self, ticket: Ticket, index: int, attempt: Attempt, env: AgentDriven, key: tuple[str, ...], bounds: Bounds
    ) -> None:
        """Plays the task that was started in `env`. `key`: of the environments that share their bound on how many run
        at once. Raises AttemptFailed."""
        async with self._slot(env, key):
            started = time.monotonic()
            try:
                result, recorded, rewarded = await self._run(ticket, index, attempt, env, bounds)
            finally:
                attempt.seconds_environment += max(0.0, time.monotonic() - started - attempt.seconds_generation)
        attempt.success, attempt.truncated = result.success, recorded.truncated
        if rewarded:
            attempt.failure_rewarded = rewarded
            attempt.endpoint_counts["failures_rewarded"] += 1
        attempt.group_rewarded, attempt.last_text = result.answer is not None, result.answer or ""
        _pay(recorded, result)
        noise = noise_seed(ticket, index, shared=False)
        attempt.last_sampled.turns[-1].reward += bounds.reward_noise.draw(noise)

    async def close(self) -> None:
        """Ends the endpoints."""
        for endpoint in self._endpoints.values():
            await endpoint.close()
        self._endpoints.clear()

    async def _run(
        self, ticket: Ticket, index: int, attempt: Attempt, env: AgentDriven, bounds: Bounds
    ) -> tuple[AgentResult, Recorded, str]:
        """(the result, the tokens, how the agent failed if that is rewarded)."""
        endpoint, failure = await self._endpoint(env, ticket), ""
        most = min((n for n in (ticket.most_turns, bounds.most_calls) if n is not None), default=None)
        for _ in range(MOST_BEGINS):
            turns = _Sampling(self, ticket, index, attempt)
            session = endpoint.open(
                turns.sample, turns.seed, bounds.most_tokens, most, ticket.temperature, env.untrained
            )
            try:
                found = await self._result(env, Access(session.base_url, session.token))
            except AgentInterrupted as error:
                failure = str(error)
                continue
            finally:
                recorded = await session.end()
                await _clean_up(env)
            attempt.record(recorded.segments, recorded.causes)
            attempt.untrained = recorded.untrained
            attempt.endpoint_counts.update(dict(recorded.counts))
            result, rewarded = _ended(found, recorded)
            return result, recorded, rewarded
        raise AttemptFailed(FailureCause.AGENT_ERROR, f"the agent was interrupted {MOST_BEGINS} times: {failure}")

    async def _result(self, env: AgentDriven, access: Access) -> AgentResult | AgentFailed:
        """What the agent reports, or why there is nothing."""
        bound = asyncio.timeout(self.config.episode_timeout_s)
        try:
            async with bound:
                return await env.run(access)
        except (AgentInterrupted, asyncio.CancelledError):
            raise
        except AgentFailed as error:
            return error
        except Exception as error:  # an environment of somebody's own may raise anything
            if bound.expired():
                return AgentFailed(
                    f"the agent still ran after environment_actor.episode_timeout_s={self.config.episode_timeout_s:g}"
                )
            return AgentFailed(f"the agent's run raised {type(error).__name__}: {error}")

    @asynccontextmanager
    async def _slot(self, env: AgentDriven, key: tuple[str, ...]) -> AsyncIterator[None]:
        if env.most_at_once is None:
            yield
            return
        async with self._slots.setdefault(key, asyncio.Semaphore(env.most_at_once)):
            yield

    async def _endpoint(self, env: AgentDriven, ticket: Ticket) -> Endpoint:
        async with self._starting:
            if env.turns not in self._endpoints:
                one = self.one
                if env.turns == "squelch":
                    one = SquelchFormat(squelch_turns(one, ticket.task.environment))
                endpoint = Endpoint(one, self.config.endpoint, self.max_model_len)
                await endpoint.start()
                self._endpoints[env.turns] = endpoint
            return self._endpoints[env.turns]


@dataclass
class _Sampling:
    """What a session asks the player for."""

    episodes: AgentEpisodes
    ticket: Ticket
    index: int
    attempt: Attempt

    async def sample(self, call: Call) -> Completion:
        """The turn of a call. Raises TimeoutError or GenerationFailed."""
        request = GenerationRequest(
            request_id=f"{self.ticket.ticket_id}/{self.index}/{call.number}",
            prompt_ids=call.prompt_ids,
            max_tokens=call.max_tokens,
            temperature=self.ticket.temperature,
            seed=call.seed,
            stop=call.stop,
            inside=call.inside,
        )
        started = time.monotonic()
        timeout_s = self.episodes.config.generation_timeout_s
        try:
            return await generate_within(self.episodes.generate, self.ticket.worker, request, timeout_s)
        finally:
            self.attempt.seconds_generation += time.monotonic() - started

    def seed(self, prompt: str, occurrence: int, call: int) -> int:
        """The seed of a call: as of a turn in the first segment, whose `prompt` is empty; elsewhere by the digest of
        the segment's first prompt and how often it has occurred, so that the order of parallel calls does not count."""
        if not prompt:
            return request_seed(self.ticket, self.index, call)
        return derive_seed("sample", self.ticket.seed, self.ticket.ticket_id, self.index, prompt, occurrence, call)


async def _clean_up(env: AgentDriven) -> None:
    """The trajectory counts, whatever becomes of what it left."""
    try:
        await env.clean_up()
    except Exception as error:  # an environment of somebody's own may raise anything
        log.error("an agent's environment could not clean up", exc_info=error)


def _ended(found: AgentResult | AgentFailed, recorded: Recorded) -> tuple[AgentResult, str]:
    """(the agent's result, how it failed if that is rewarded). Raises AttemptFailed if there is none that counts."""
    if recorded.failure is not None:
        raise AttemptFailed(recorded.failure.cause, recorded.failure.detail)
    if not recorded.calls and isinstance(found, AgentResult):
        counted = " and is trained on" if recorded.untrained else ""
        found = AgentFailed(f"the agent ended without a call that was answered{counted}")
    if isinstance(found, AgentFailed):
        fault = recorded.fault or ("" if recorded.calls else "no call that is trained on was answered")
        if found.reward is not None and not fault:
            return AgentResult(False, found.reward), str(found)
        if found.reward is not None:
            why = f" (failure_reward does not count: {fault})"
        else:
            why = " (a call was refused before: a bound, or the context)" if recorded.truncated else ""
        raise AttemptFailed(FailureCause.AGENT_ERROR, f"{found}{why}")
    for name, values in (("rewards", found.rewards), ("penalties", found.penalties)):
        if values is not None and len(values) != len(recorded.calls):
            trained = " and are trained on" if recorded.untrained else ""
            raise AttemptFailed(
                FailureCause.AGENT_ERROR,
                f"the agent reported {len(values)} {name}, and {len(recorded.calls)} of its calls were "
                f"answered{trained}; one for each is needed",
            )
    return found, ""


def _pay(recorded: Recorded, result: AgentResult) -> None:
    """Writes the rewards and penalties into the turns of the calls; the reward of the whole is the last call's."""
    turns = [recorded.segments[segment].turns[turn] for segment, turn in recorded.calls]
    for number, turn in enumerate(turns):
        turn.reward = result.rewards[number] if result.rewards is not None else 0.0
        turn.format_penalty = result.penalties[number] if result.penalties is not None else 0.0
    turns[-1].reward += result.reward
