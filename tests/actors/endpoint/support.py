"""A policy that says what a test has it say, and an endpoint on loopback at which it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from typing import Any

import httpx
import numpy as np

from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.server import Endpoint
from squelch.actors.endpoint.session import Call, Recorded, Session
from squelch.actors.messages import Completion
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.transcript import Joined, joined
from squelch.actors.rollout.stop_strings import StopStrings
from squelch.envs.contract import AgentCall
from tests.actors.formats.test_own import SHOWS_TOOLS
from tests.actors.formats.test_own import codec as tools_codec

CONTEXT, LIMIT = 4096, 160
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}
CALLING = 'I add.<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'
THINKING = "<think>one and two</think>It is 3."
SYSTEM, USER = {"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 1 + 2?"}


@cache
def codec() -> ChatCodec:
    return tools_codec(SHOWS_TOOLS)


def seeds(digest: str, occurrence: int, number: int) -> int:
    return int.from_bytes(sha256(f"{digest}/{occurrence}/{number}".encode()).digest()[:8], "big") >> 1


class Policy:
    """Says the texts in turn, the last one again and again. `wait`: what each call waits for."""

    def __init__(self, *texts: str, wait: Callable[[], Any] | None = None) -> None:
        self.texts, self.wait = texts or ("Yes.",), wait
        self.calls: list[Call] = []
        self.answers: list[np.ndarray] = []

    async def __call__(self, call: Call) -> Completion:
        self.calls.append(call)
        text = self.texts[min(len(self.calls), len(self.texts)) - 1]
        if self.wait is not None:
            await self.wait()
        return self.complete(call, [*codec().encode(text).tolist(), codec().stop_ids[0]])

    def complete(self, call: Call, ids: Sequence[int]) -> Completion:
        watch = StopStrings(call.stop, codec().token_bytes, call.inside)
        watch.see(ids)
        kept = list(ids)[: watch.end][: call.max_tokens]
        self.answers.append(np.array(kept, dtype=np.int32))
        cut = watch.end is None and kept[-1:] != [codec().stop_ids[0]]
        log_probs = -np.linspace(0.1, 1.0, len(kept), dtype=np.float32)
        return Completion("", self.answers[-1], log_probs, "length" if cut else "stop", 3, 3)


@asynccontextmanager
async def serving(one: ChatCodec | None = None, **settings: Any) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(one or codec(), EndpointConfig(**settings), CONTEXT)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.close()


@asynccontextmanager
async def playing(
    policy: Any,
    most_calls: int | None = None,
    one: ChatCodec | None = None,
    untrained: Callable[[AgentCall], str] = lambda call: "",
    **settings: Any,
) -> AsyncIterator[tuple[Session, Client]]:
    """A trajectory, and a client with its token."""
    async with serving(one, **settings) as endpoint:
        session = endpoint.open(policy, seeds, LIMIT, most_calls, untrained=untrained)
        async with Client(session) as client:
            yield session, client


class Client(httpx.AsyncClient):
    """A plain client with a trajectory's token."""

    def __init__(self, session: Session, **others: Any) -> None:
        super().__init__(
            base_url=session.base_url,
            headers={"authorization": f"Bearer {session.token}"},
            timeout=60,
            trust_env=False,
            **others,
        )

    async def ask(
        self, *messages: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": "m", "messages": list(messages), **fields}
        return await self.post("/v1/chat/completions", json=body, headers=headers)

    async def said(self, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """The assistant's message."""
        response = await self.ask(*messages, **fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]


def whole(recorded: Recorded) -> Joined:
    return joined(recorded.segments, recorded.causes)


def shown(ids: Sequence[int] | np.ndarray) -> str:
    return codec().backend.decode([int(index) for index in ids], skip_special_tokens=False)


async def until(holds: Callable[[], Any]) -> None:
    """Lets the loop run until something holds; `run` bounds it."""
    while not holds():
        await asyncio.sleep(0.001)


def one_is_lost(session: Session) -> bool:
    """Whether the endpoint has noticed that the client of an answer is gone."""
    return any(answer.is_lost for answers in session._answers.values() for answer in answers)


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 120))
