"""One trajectory at the endpoint: its calls, their answers, and its segments.

Invariants:

- Every completion is recorded in the segment of its call, whether or not a client ever saw it. A request that asks for
  what an earlier one did gets the earlier one's answer, still being sampled or not, if it says that it is a retry
  (`x-stainless-retry-count` above 0), or if the client of that one is gone without it. Equal requests of clients that
  are there are calls of their own.
- A call of a tool where none was offered is text, and so is every call under `tool_choice: none`; of several calls a
  client that takes one gets the first. What was sampled is recorded whole.
- What a client does next depends on what it saw alone: a reply that it never saw is in no history that it sends, and a
  further request of that history begins a segment beside it (`actors.endpoint.conversation`).
- A client that disconnects stops no sampling: the policy said what it said, and the trajectory is judged by what became
  of it.
- A call that is not trained on (`envs.contract.AgentDriven.untrained`) is answered as any other, from a conversation
  of its own. Nothing of the trained segments depends on it, neither ids, seeds, causes nor the limit of turns, but
  for its reply, where a client puts that into their history.
- The first call that cannot be sampled fails the trajectory, whatever its agent says: all later calls are refused.
- Nothing is sampled after `end`.
- Whatever may end an agent through no fault of the policy is kept as the `fault`: each refusal for the run's bounds or
  its load; a request or an answer that did not arrive whole; a refusal of any kind after which no answer came; a
  connection that the server had to end; a head that it could not read.
- A request's place and its ids are found in a thread: neither a template's process nor the encoding of a long message
  blocks another trajectory. A conversation is read there, or changed in the event loop, and never both at once
  (`_reading`).

| waits | for | unblocked by | bound |
|---|---|---|---|
| a call | the trajectory's earlier ones to be placed | their renderings | `script_process.WAIT_S` each |
| a call | its completion | `sample`, which the player bounds by `generation_timeout_s` | 503, the trajectory fails |
| a retry | the first answer | as the call | as the call |
| `end` | the calls in flight | their cancellation | none that `sample` does not set |

Calls of one trajectory are sampled beside each other. The player ends a trajectory after
`episode_timeout_s`; bounds on calls, tokens and bytes are settings (`EndpointConfig`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from squelch.actors.endpoint.canonical import (
    Begun,
    Earlier,
    Message,
    Reading,
    Refused,
    Reply,
    Request,
    ended,
    malformed,
    tool_use,
)
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.conversation import Conversation, Path, Placement
from squelch.actors.formats.protocol import Format, Parsed, ToolsRefused
from squelch.actors.formats.retention import message_of
from squelch.actors.messages import Completion
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.transcript import Transcript, untrained_of
from squelch.actors.rollout.stop_strings import behind_reasoning
from squelch.envs.contract import AgentCall
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Untrained
from squelch.kit.untrusted.files import Unreadable

log = logging.getLogger(__name__)
REQUESTS_OF_A_CALL = 16
"""Requests of a trajectory, refused ones too, for each call that it may make."""
GONE = "the client was gone before it had the answer to a request"
_WRONG, _NOT_WRONG = frozenset({400, 401, 404, 405, 415}), frozenset({"context_length_exceeded", "incomplete_request"})
"""Status codes of requests that are wrong themselves, and the codes among them that say something else."""


@dataclass(frozen=True)
class Call:
    """What a session has sampled. `number`: of the trajectory's calls, from 0, in order of arrival; `prompt_ids`: all
    ids before the turn, (num_tokens,) int32; `stop`: texts at whose end the turn ends, behind its reasoning; `inside`:
    as of `Format.begins_inside`, where there are some."""

    number: int
    prompt_ids: np.ndarray
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    inside: bool | None = None


Sample = Callable[[Call], Awaitable[Completion]]
"""Samples a turn. Raises GenerationFailed, or TimeoutError after the caller's bound."""
Seeds = Callable[[str, int, int], int]
"""The seed of a call by (digest of its segment's first prompt, empty for the trajectory's first segment; how often such
a segment was begun before; number of the call in the segment, from 0)."""


@dataclass(frozen=True)
class Recorded:
    """A trajectory's tokens. `causes`: why each segment was begun, that of the first empty; `calls`: (segment, turn in
    it) of each trained call that sampled, in order of arrival; `truncated`: whether a bound refused a request, but for
    calls that are not trained on; `failure`: why sampling failed; `text`: the content of the answer to the last of the
    calls; `counts`: of calls, of refused ones and of fields of requests, by name (`actors.endpoint.metrics`);
    `untrained`: the calls that are not trained on; `fault`: what else than the policy may have ended the agent, in
    words, empty if nothing."""

    segments: tuple[Transcript, ...]
    causes: tuple[str, ...]
    calls: tuple[tuple[int, int], ...]
    truncated: bool
    failure: Failure | None
    text: str
    counts: tuple[tuple[str, int], ...] = ()
    untrained: tuple[Untrained, ...] = ()
    fault: str = ""


@dataclass
class Answer:
    """An answer to come. `begun`: None until its turn is about to be sampled; `sent`: whether a client took all of it;
    `delivered`: whether none will ask for it again; `clients`: the connections that wait for it."""

    task: asyncio.Task[Reply] = field(init=False)
    begun: Begun | None = None
    sent: bool = False
    delivered: bool = False
    clients: set[asyncio.BaseTransport] = field(default_factory=set)

    @property
    def is_lost(self) -> bool:
        """Whether nobody got it, and nobody waits for it any more."""
        return not self.delivered and all(client.is_closing() for client in self.clients)


@dataclass(frozen=True)
class _Turn:
    """A sampled call that is trained on: its segment, and its turn there."""

    number: int
    path: Path
    turn: int
    content: str


@dataclass(frozen=True)
class _Replied:
    """What was answered, and to which of the messages of its segment: [start, end)."""

    path: Path
    start: int
    end: int
    said: Message


@dataclass
class Session:
    """One trajectory. Agents get `base_url` and `token`: OpenAI's clients `base_url` + `/v1`, Anthropic's `base_url`.
    Whoever cannot send a token takes `base_url` + `/t/` + `token` in its place."""

    base_url: str
    token: str = field(repr=False)
    one: Format
    config: EndpointConfig
    max_model_len: int
    sample: Sample
    seeds: Seeds
    most_tokens: int
    """Most sampled tokens of one call; a request may ask for fewer."""
    most_calls: int | None = None
    temperature: float = 1.0
    """That of the run's sampling."""
    on_end: Callable[[Session], None] = lambda session: None
    """Called when the session ends."""
    untrained: Callable[[AgentCall], str] = lambda call: ""
    """The rule by which a call is not trained on, in words; empty if it is."""
    threads: Executor | None = None
    """In which requests are placed; None: the event loop's."""
    is_open: bool = field(default=True, init=False)
    in_progress: int = field(default=0, init=False)
    """Requests that are being answered."""
    counts: Counter[str] = field(default_factory=Counter, init=False)
    refused_last: Refused | None = field(default=None, init=False)
    """The last refusal, if no request was answered that was made after it."""

    def __post_init__(self) -> None:
        self._trained, self._reading = Conversation(self.one), asyncio.Lock()
        self._untrained = Conversation(self.one, self._trained)
        self._rules: dict[int, str] = {}
        self._answers: dict[bytes, list[Answer]] = {}
        self._turns: list[_Turn] = []
        self._replied: dict[str, _Replied] = {}
        self._num_requests = self._num_calls = self._num_trained = self._num_bytes = self._num_reserved = 0
        self._truncated = False
        self._failure: Failure | None = None
        self._fault = ""

    # --- requests ---

    def count_request(self) -> None:
        """Counts a request. Raises Refused if the trajectory has made too many, whatever became of them."""
        self._num_requests += 1
        if self._num_requests > (most := REQUESTS_OF_A_CALL * self._most_calls):
            self._truncated = True
            raise Refused(429, "too_many_requests", f"the trajectory has made {most} requests; end it")

    def take_bytes(self, number: int) -> None:
        """Counts the bytes of a request. Raises Refused if the trajectory has sent too many."""
        self.require_open()
        self._num_bytes += number
        if self._num_bytes > self.config.max_bytes:
            self._truncated = True
            raise Refused(
                413,
                "too_many_bytes",
                f"the trajectory's requests have more than {self.config.max_bytes} bytes together "
                "(environment_actor.endpoint.max_bytes)",
            )

    def earlier(self, key: bytes, is_retry: bool) -> Answer | None:
        """The answer of an earlier request of the same content, `key`, if this one is to get it."""
        found = self._answers.get(key, [])
        lost = [one for one in found if one.is_lost]
        return lost[-1] if lost else found[-1] if found and is_retry else None

    def answer(self, request: Request, key: bytes, countable: Callable[[str], str], rule: str = "") -> Answer:
        """Begins to answer a request; the answer's task raises Refused if it gets no completion. `countable`: the name
        under which an unknown field is counted; `rule`: by which it is not trained on, if any."""
        answer = Answer()
        answer.task = asyncio.create_task(self._answered(request, answer, countable, rule))
        answer.task.add_done_callback(partial(self._settle, key, answer))
        self._answers.setdefault(key, []).append(answer)
        return answer

    async def _answered(self, request: Request, answer: Answer, countable: Callable[[str], str], rule: str) -> Reply:
        async with self._reading:
            self._require_room(rule)
            self._require_short(request, rule)
            placed = await self._placed(request, rule)
            self._require_room(rule)
            limit = min(self.most_tokens, request.max_tokens or self.most_tokens)
            self._require_fitting(placed, limit, rule)
            path = self._conversation(rule).begin(placed)
            if rule:
                self._rules.setdefault(path.number, rule)
                digest = f"untrained {path.digest}"
            else:
                digest = path.digest if path.number else ""
            seed = self.seeds(digest, path.occurrence, len(path.transcript.turns))
            inside = self.one.begins_inside(placed.prompt) if request.stop else None
            call = Call(self._num_calls, placed.prompt, limit, seed, request.stop, inside)
            self._num_calls += 1
            self._num_trained += not rule
            self.counts.update(["untrained" if rule else "calls", *(f"adjusted/{name}" for name in request.adjusted)])
            self.counts.update(f"unknown/{countable(name)}" for name in request.unknown)
            self._num_reserved += len(placed.prompt) - placed.num_kept + limit
            answer.begun = Begun(f"{seed:016x}", len(placed.prompt))
        return await self._sampled(call, placed, path, rule)

    def reading(self) -> Reading:
        """How the trajectory's requests are read."""
        return Reading(
            self.config.max_messages,
            self.most_tokens,
            self.temperature,
            self.config.sampling == "override",
            self._recall,
            int(time.time()),
        )

    async def num_fed(self, request: Request, rule: str = "") -> int:
        """Number of tokens that the request would be sampled from. Raises Refused as an answer's task."""
        async with self._reading:
            self.require_open()
            return len((await self._placed(request, rule)).prompt)

    def _recall(self, reply_id: str) -> Earlier | None:
        if (found := self._replied.get(reply_id)) is None:
            return None
        # the segment has gone on since, but still begins with these
        return Earlier(tuple(found.path.messages[found.start : found.end]), found.said)

    def _conversation(self, rule: str) -> Conversation:
        return self._untrained if rule else self._trained

    async def _placed(self, request: Request, rule: str) -> Placement:
        """Where the request belongs, found in a thread. Needs `_reading`."""
        place = self._conversation(rule).place
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, place, request)
        except Unreadable as error:
            raise Refused(503, "rendering_failed", str(error), retry=True) from error
        except ValueError as error:
            what = "tools" if isinstance(error, ToolsRefused) else "messages"
            raise malformed(f"the model's format cannot show these {what}: {error}", what) from error

    def require_open(self) -> None:
        """Raises Refused if the trajectory has ended."""
        if not self.is_open:
            raise ended()

    @property
    def _most_calls(self) -> int:
        return min(self.config.max_calls, self.most_calls or self.config.max_calls)

    def _require_room(self, rule: str) -> None:
        self.require_open()
        if self._failure is not None:
            raise self._unavailable()
        if self._num_calls >= self.config.max_calls or (not rule and self._num_trained >= self._most_calls):
            self._truncated |= not rule
            made = self._num_calls if rule else self._num_trained
            raise Refused(429, "too_many_calls", f"the trajectory has made its {made} calls; end it")

    def _require_short(self, request: Request, rule: str) -> None:
        """Raises Refused for messages that exceed the context however they are encoded, before they are."""
        most = self.max_model_len * self.one.most_characters
        given = [one.content for one in request.messages if one.role != "assistant"]  # templates leave parts of it out
        if sum(map(len, given)) > most and (number := sum(len("".join(text.split())) for text in given)) > most:
            raise self._exceeding(f"the messages have {number} characters, which are more tokens than", rule)

    def _exceeding(self, what: str, rule: str) -> Refused:
        self._truncated |= not rule
        return Refused(
            400,
            "context_length_exceeded",
            f"{what} the model's context length of {self.max_model_len} tokens; send less, or lower max_tokens",
            "messages",
        )

    def _require_fitting(self, placed: Placement, limit: int, rule: str) -> None:
        needed = len(placed.prompt) + limit
        if needed > self.max_model_len:
            raise self._exceeding(
                f"the messages have {len(placed.prompt)} tokens, and with {limit} for the answer they exceed", rule
            )
        if self._num_reserved + len(placed.prompt) - placed.num_kept + limit > self.config.max_tokens:
            self._truncated |= not rule
            raise Refused(
                429,
                "too_many_tokens",
                f"the trajectory would exceed its {self.config.max_tokens} tokens "
                "(environment_actor.endpoint.max_tokens); end it",
            )

    # --- sampling ---

    async def _sampled(self, call: Call, placed: Placement, path: Path, rule: str) -> Reply:
        try:
            completion = await self._completion(call)
            self._num_reserved -= call.max_tokens - len(completion.token_ids)
            record = partial(self._record, call, placed, path, completion, rule)
            try:
                async with self._reading:
                    return record()
            except asyncio.CancelledError:  # at the `end`: what is being placed meanwhile is dropped
                record()
                raise
        finally:
            path.busy = False  # not before its reply is recorded: else another call could continue it without

    async def _completion(self, call: Call) -> Completion:
        try:
            return await self.sample(call)
        except (GenerationFailed, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            cause = FailureCause.GENERATION_TIMEOUT if late else FailureCause.GENERATION_ERROR
            self._failure = self._failure or Failure(cause, str(error))
            raise self._unavailable() from error

    def _unavailable(self) -> Refused:
        return Refused(
            503, "sampling_failed", f"the policy cannot be sampled ({self._failure}), so the trajectory has failed"
        )

    def _record(self, call: Call, placed: Placement, path: Path, completion: Completion, rule: str) -> Reply:
        """Appends a completion to its segment; returns what its client sees."""
        request = placed.request
        parsed = self.one.parse(completion.token_ids, placed.prompt, request.tools)
        reply = self._reply(call, request, completion, parsed if request.may_call else _without_calls(parsed))
        said = Message("assistant", reply.content, reply.calls, reply.reasoning)
        self._conversation(rule).answered(placed, path, completion, said, reply.stop)
        self._replied[reply.id] = _Replied(path, request.num_instructions, len(request.messages), said)
        well_formed = completion.finish_reason == "stop" and not any(one.error for one in parsed.tool_calls)
        path.transcript.add_turn(
            completion, self.one.reasoning_of(completion.token_ids, parsed), well_formed, max(1, len(reply.calls))
        )
        if not rule:
            self._turns.append(_Turn(call.number, path, len(path.transcript.turns) - 1, reply.content))
        return reply

    def _reply(self, call: Call, request: Request, completion: Completion, parsed: Parsed) -> Reply:
        ids, broken = completion.token_ids, any(one.error for one in parsed.tool_calls)
        message = message_of(self.one, ids, parsed)
        content, reasoning = message["content"], message.get("reasoning_content", "")
        closed = completion.finish_reason == "stop"
        stop = ""
        if closed and request.stop and (not len(ids) or int(ids[-1]) not in self.one.stop_ids):
            behind = behind_reasoning(self.one.text(ids), call.inside)
            stop = _earliest(behind, request.stop)
            start = len(content) - len(behind) if self.one.whole_content else 0
            content = content[:start] + _before(content[start:], stop)
        calls = tuple(
            tool_use(f"call_{call.seed:016x}_{number}", one.name, one.arguments, "arguments")
            for number, one in enumerate(() if broken else parsed.tool_calls[: request.most_calls])
        )
        finish = "length" if not closed else "tool_calls" if calls else "stop_string" if stop else "stop"
        spelled = [self.one.text([index]) for index in ids.tolist()] if request.log_probs else []
        return Reply(
            f"{call.seed:016x}",
            len(call.prompt_ids),
            content,
            calls,
            reasoning,
            finish,
            stop,
            len(ids),
            parsed.reasoning[1] - parsed.reasoning[0],
            tuple(zip(spelled, completion.log_probs.tolist(), strict=False)),
        )

    def sent(self, answer: Answer, after: Refused | None) -> None:
        """Notes that a client took all of an answer. `after`: `refused_last` when it asked for it."""
        answer.sent = True
        if self.refused_last is after:
            self.refused_last = None

    def refused(self, refused: Refused) -> None:
        """Notes what a request got in place of an answer."""
        self.counts["refused"] += 1
        self.refused_last = refused
        if refused.status not in _WRONG or refused.code in _NOT_WRONG:
            self.blame(f"a request was refused ({refused.code})")

    def blame(self, fault: str) -> None:
        """Notes what may end the agent through no fault of the policy; the first counts."""
        self._fault = self._fault or fault

    def fail(self, error: BaseException) -> None:
        """Fails the trajectory for an error that is no fault of its agent."""
        self._failure = self._failure or Failure(FailureCause.ENVIRONMENT_ERROR, f"{type(error).__name__}: {error}")

    def _settle(self, key: bytes, answer: Answer, task: asyncio.Task[Reply]) -> None:
        """Takes the error of a call, for which perhaps nobody waits any more. What was refused before it was sampled is
        no answer to a retry."""
        if answer.begun is None:
            self._answers[key].remove(answer)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Refused):
            log.error("a call could not be answered", exc_info=error)
            self.fail(error)

    # --- the end ---

    async def end(self) -> Recorded:
        """Ends the trajectory: calls in flight are cancelled, and later ones are refused. May be called again."""
        if self.is_open:
            self.is_open = False
            self.on_end(self)
        answers = [one for found in self._answers.values() for one in found]
        if self.in_progress or not all(one.sent for one in answers):
            self.blame(GONE)
        if self.refused_last is not None:
            self.blame(f"the last request was refused ({self.refused_last.code})")
        tasks = [one.task for one in answers if not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._recorded()

    def _recorded(self) -> Recorded:
        paths = [path for path in self._trained.paths if path.transcript.turns]
        place = {path.number: index for index, path in enumerate(paths)}
        turns = sorted(self._turns, key=lambda turn: turn.number)
        return Recorded(
            tuple(path.transcript for path in paths),
            ("", *(path.cause for path in paths[1:])) if paths else (),
            tuple((place[turn.path.number], turn.turn) for turn in turns),
            self._truncated,
            self._failure,
            turns[-1].content if turns else "",
            tuple(sorted(self.counts.items())),
            tuple(
                untrained_of(path.transcript, self._rules[path.number])
                for path in self._untrained.paths
                if path.transcript.turns
            ),
            self._fault if self._failure is None else str(self._failure),
        )


def _without_calls(parsed: Parsed) -> Parsed:
    """The same with all calls as text."""
    calls = tuple(replace(call, error=call.error or "no tool was offered") for call in parsed.tool_calls)
    return replace(parsed, tool_calls=calls)


def _earliest(text: str, stops: tuple[str, ...]) -> str:
    """The stop string that ends first in a text; empty if it holds none."""
    ends = [(text.find(one) + len(one), text.find(one), one) for one in stops if one in text]
    return min(ends)[2] if ends else ""


def _before(text: str, stop: str) -> str:
    """The text before a stop string."""
    return text.partition(stop)[0] if stop else text
