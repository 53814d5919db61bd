"""Plays a client's program through the endpoint, and compares what it sent and saw with the trajectory.

A relay between client and endpoint keeps the requests as the client sent them; the program prints the replies that it
saw. Both are compared with the segments' ids: what was fed is decoded and taken apart, what was sampled is parsed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import warnings
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.server import Endpoint
from squelch.actors.endpoint.session import Call, Recorded
from squelch.actors.formats.protocol import Format
from squelch.actors.messages import Completion
from squelch.actors.play.codec import ChatCodec
from tests.kit.text.made import chatml_bpe, save_folder

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM_S = 120.0
MAX_MODEL_LEN = 16384
MOST_TOKENS = 400

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Every message in a form of its own, so that its text can be taken apart again."""


@cache
def codec() -> ChatCodec:
    """A ChatML codec with `TEMPLATE`."""
    return ChatCodec(save_folder(Path(mkdtemp()), chatml_bpe(), TEMPLATE))


Message = tuple[str, str, tuple[tuple[str, str], ...]]
"""(role, content, (name, canonical arguments) of each call)."""


def interpreter_of(name: str) -> Path:
    """The Python of the environment of `deploy/setup.sh NAME`; the test is skipped, loudly, where it is missing."""
    folder = ROOT / ".cache" / name
    if not (folder / "squelch-setup.txt").is_file():
        told = f"the environment {name} is not there: such clients are NOT TESTED; run deploy/setup.sh {name}"
        warnings.warn(told, stacklevel=2)
        pytest.skip(told)
    return folder / "bin" / "python"


@dataclass
class Played:
    """What a client sent and saw, and what the endpoint recorded."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the calls that were answered, in order."""
    paths: list[str] = field(default_factory=list)
    """Method and path of every request."""
    replies: list[dict[str, Any]] = field(default_factory=list)
    recorded: Recorded | None = None

    @property
    def segments_of_calls(self) -> list[int]:
        """The segment of each call."""
        assert self.recorded is not None
        return [segment for segment, _ in self.recorded.calls]


Sample = Callable[[Call], Awaitable[Completion]]


async def play(one: Format, program: str, calls: int, sample: Sample) -> Played:
    """Runs a program of `programs/` as an agent of one trajectory, at most `calls` calls of each of its loops."""
    python = interpreter_of("clients")
    endpoint = Endpoint(one, EndpointConfig(), MAX_MODEL_LEN)
    await endpoint.start()
    try:
        session = endpoint.open(sample, lambda *of: zlib.crc32(repr(of).encode()), MOST_TOKENS, None)
        played = Played()
        async with relay(session.base_url, played) as base_url:
            said = await said_by(python, PROGRAMS / f"{program}_agent.py", calls, base_url, session.token)
        played.replies = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        played.recorded = await session.end()
    finally:
        await endpoint.close()
    return played


async def said_by(python: Path, program: Path, calls: int, base_url: str, token: str) -> str:
    """What the program printed. It gets the variables that an agent gets, and none of ours."""
    names = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "HF_HUB_OFFLINE": "1"}
    for client, path in (("OPENAI", "/v1"), ("ANTHROPIC", "")):
        names |= {f"{client}_BASE_URL": base_url + path, f"{client}_API_KEY": token}
    process = await asyncio.create_subprocess_exec(
        str(python),
        *("-I", str(program), str(calls)),
        env=names,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, log = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    assert process.returncode == 0, f"{out.decode()[-2000:]}\n{log.decode()[-4000:]}"
    return out.decode()


class relay:
    """`async with relay(target, played) as base_url`: forwards every request, unchanged, and keeps it in `played`."""

    def __init__(self, target: str, played: Played) -> None:
        self._target, self._played = target, played

    async def __aenter__(self) -> str:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self._played.paths.append(f"{request.method} {request.path_qs}")
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        target = self._target + request.path_qs
        async with self._session.request(request.method, target, data=body, headers=headers) as answer:
            if answer.status == 200 and request.method == "POST":
                self._played.requests.append(json.loads(body))
            skipped = ("transfer-encoding", "content-length", "date", "server")
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in skipped}
            reply = web.StreamResponse(status=answer.status, headers=kept)
            await reply.prepare(request)
            async for chunk in answer.content.iter_any():
                await reply.write(chunk)
            await reply.write_eof()
            return reply


# --- what a client sent, in one form ---


def canonical(arguments: Any) -> str:
    """A call's arguments, as text or as an object, in one form; text that is no JSON as it is."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    return json.dumps(given, sort_keys=True)


def text_of(content: Any) -> str:
    """The text of a message's content: null, text, or blocks of text."""
    if isinstance(content, list):
        return "\n".join(block["text"] for block in content if block["type"].endswith("text"))
    return content or ""


def sent(request: dict[str, Any]) -> list[Message]:
    """A request's messages, in any of the APIs."""
    if "input" in request:
        return [("system", request["instructions"], ()), *_of_items(request["input"])]
    opening = [{"role": "system", "content": request["system"]}] if request.get("system") else []
    return [part for message in (*opening, *request["messages"]) for part in _parts(message)]


def _of_items(items: list[dict[str, Any]]) -> list[Message]:
    """The messages of items: those of a turn are one."""
    found, in_turn = list[Message](), False
    for item in items:
        kind = item.get("type", "message")
        is_turn = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if is_turn and not in_turn:
            found.append(("assistant", "", ()))
        if kind == "function_call":
            role, content, calls = found[-1]
            found[-1] = (role, content, (*calls, (item["name"], canonical(item["arguments"]))))
        elif kind == "message" and is_turn:
            found[-1] = ("assistant", text_of(item["content"]).strip(), ())
        elif kind == "function_call_output":
            found.append(("tool", item["output"].strip(), ()))
        elif kind == "message":
            found.append((item["role"], text_of(item["content"]).strip(), ()))
        in_turn = is_turn
    return found


def _parts(message: dict[str, Any]) -> Iterator[Message]:
    role, content = message["role"], message.get("content")
    blocks = content if isinstance(content, list) else []
    results = [block for block in blocks if block["type"] == "tool_result"]
    for result in results:
        yield "tool", text_of(result["content"]).strip(), ()
    if results:
        return
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    calls += [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    yield role, text_of(content).strip(), tuple((name, canonical(given)) for name, given in calls)


def tools_of(request: dict[str, Any]) -> list[Any]:
    """(name, schema of the arguments) of a request's tools, in any of the APIs."""
    found = [tool.get("function", tool) for tool in request.get("tools") or []]
    return [[tool["name"], tool.get("parameters") or tool["input_schema"]] for tool in found]


# --- what the segments hold, in the same form ---


def fed_messages(text: str) -> tuple[list[Message], list[Any]]:
    """The messages that a fed part's text shows, and its tools. The part ends with the opening of a turn."""
    *blocks, last = re.split(r"<\|im_start\|>", text)
    assert last == "assistant\n" and blocks[0] in ("", "\n", "<|im_end|>\n"), text
    found, tools = list[Message](), list[Any]()
    for block in blocks[1:]:
        role, _, body = block.partition("\n")
        assert body.endswith("<|im_end|>\n"), block
        body = body.removesuffix("<|im_end|>\n")
        if role == "tools":
            tools = [tools_of({"tools": [json.loads(line)]})[0] for line in body.splitlines()]
            continue
        content, *calls = body.split("<tool_call>")
        parsed = [json.loads(call.removesuffix("</tool_call>")) for call in calls]
        shown = tuple((call["name"], canonical(call["arguments"])) for call in parsed)
        found.append((role, content.strip(), shown))
    return found, tools


def assert_decodes(one: Format, played: Played) -> None:
    """The trajectory's ids say exactly what the client sent and saw, call by call."""
    recorded, backend = played.recorded, one.backend  # type: ignore[attr-defined]
    assert recorded is not None and recorded.failure is None
    assert len(recorded.calls) == len(played.requests) == len(played.replies) > 0
    for number, (request, reply) in enumerate(zip(played.requests, played.replies, strict=True)):
        segment, turn = recorded.calls[number]
        transcript, stops = recorded.segments[segment], request.get("stop") or request.get("stop_sequences") or []
        ids, shown, tools, position = transcript.token_ids().tolist(), list[Message](), list[Any](), 0
        for earlier in transcript.turns[: turn + 1]:
            messages, named = fed_messages(
                backend.decode(ids[position : earlier.sample_start], skip_special_tokens=False)
            )
            tools = named or tools
            shown += [*messages, spoken(one, ids, earlier.sample_start, earlier.sample_end, stops)]
            position = earlier.sample_end
        fed = [(role, content.strip(), calls) for role, content, calls in shown[:-1]]
        assert fed == sent(request), f"call {number} was fed other messages than the client sent"
        assert tools == tools_of(request), f"call {number} was fed other tools than the client sent"
        calls = tuple((name, canonical(given)) for name, given in reply["calls"])
        assert shown[-1] == ("assistant", text_of(reply["content"]), calls), (
            f"call {number}: the client saw another reply"
        )


def spoken(one: Format, ids: list[int], start: int, end: int, stops: list[str]) -> Message:
    """What was sampled, as a message. What is no call is shown as text, and the text from a `stop` string on is not."""
    said = one.parse(ids[start:end], ids[:start])
    content = "\n".join(filter(None, (said.content, *(call.raw for call in said.tool_calls if call.error))))
    for stop in stops:
        content = content.partition(stop)[0]
    calls = [(call.name, canonical(call.arguments)) for call in said.tool_calls if not call.error]
    return "assistant", content, tuple(calls)
