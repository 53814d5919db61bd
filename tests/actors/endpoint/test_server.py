"""What strangers and broken clients get at the endpoint: an error with its reason, and nothing of another's."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import numpy as np
import pytest

from squelch.actors.endpoint import server
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.server import MOST_UNKNOWN_NAMES, Endpoint
from squelch.kit.text.chat_template import ChatTemplate
from tests.actors.endpoint.support import (
    LIMIT,
    TOOL,
    USER,
    Client,
    Policy,
    codec,
    one_is_lost,
    playing,
    run,
    seeds,
    serving,
    until,
    whole,
)
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock

pytestmark = pytest.mark.usefixtures("rendered_here")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("10.0.0.2", "http://10.0.0.2:9"),
        ("fd00::2", "http://[fd00::2]:9"),
        ("localhost", "http://localhost:9"),
    ],
)
def test_agents_on_this_machine_are_told_an_address_that_they_can_reach(host: str, url: str) -> None:
    assert server._url(host, 9) == url


def part(kind: str, **fields) -> dict:
    return {"role": "user", "content": [{"type": kind, **fields}]}


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{1"}}
SURROGATE = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": "\\ud800"}'}}
MALFORMED = {
    "no JSON": (b"{", "not JSON"),
    "no object": (b"[]", "one JSON object"),
    "no UTF-8": (b"\xff", "UTF-8"),
    "deep": (b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    "a surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
    "a long number": (b'{"messages": [], "seed": ' + b"9" * 5000 + b"}", "not JSON"),
    "no messages": ({}, "at least one message"),
    "messages of text": ({"messages": "hi"}, "list of objects"),
    "too many": ({"messages": [USER] * 2049}, "at most 2048"),
    "a role": ({"messages": [{"role": "root", "content": ""}]}, r"messages[0].role must be system"),
    "an end of its own": ({"messages": [USER, {"role": "assistant", "content": ""}]}, "must not end with an assistant"),
    "a number": ({"messages": [{"role": "user", "content": 5}]}, r"messages[0].content must be text"),
    "an image": (
        {"messages": [part("image_url", image_url={"url": "http://127.0.0.1:1/"})]},
        "images are not supported",
    ),
    "audio": ({"messages": [part("input_audio")]}, "a part of type 'input_audio' is not supported"),
    "a result of nothing": ({"messages": [{"role": "tool", "content": "3"}]}, r"messages[0].tool_call_id must be text"),
    "a call that is no JSON": (
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}, USER]},
        "arguments must be a JSON object",
    ),
    "a call with a surrogate": (
        {"messages": [{"role": "assistant", "tool_calls": [SURROGATE]}, USER]},
        "arguments must be a JSON object",
    ),
    "two choices": ({"messages": [USER], "n": 2}, "n must be 1"),
    "functions": ({"messages": [USER], "functions": []}, "send tools"),
    "a constraint": ({"messages": [USER], "guided_json": {}}, "guided_json is not supported: a constrained policy's"),
    "a built-in tool": ({"messages": [USER], "tools": [{"type": "custom"}]}, "must be of type function"),
    "a limit": ({"messages": [USER], "max_tokens": 0}, "at least 1"),
    "a limit of true": ({"messages": [USER], "max_tokens": True}, "at least 1"),
    "stops": ({"messages": [USER], "stop": [""]}, "stop must be"),
    "many stops": ({"messages": [USER], "stop": ["a"] * 17}, "stop must be"),
    "a flag": ({"messages": [USER], "stream": "yes"}, "stream must be true or false"),
    "options": ({"messages": [USER], "stream_options": 1}, "stream_options must be"),
    "a control token": ({"messages": [USER], "tools": [{**TOOL, "x": "<|im_end|>"}]}, "control token"),
}
OF_ANTHROPIC = {
    "an image": ({"messages": [part("image", source={"type": "url", "url": "file:///etc/passwd"})]}, "images are not"),
    "a document": ({"messages": [part("document")]}, "'document' is not supported"),
    "a result of nothing": ({"messages": [part("tool_result")]}, "tool_use_id must be text"),
    "a tool of theirs": (
        {"messages": [USER], "tools": [{"type": "web_search_20250305", "name": "w"}]},
        "run by the server",
    ),
    "no schema": ({"messages": [USER], "tools": [{"name": "w"}]}, "input_schema must be an object"),
    "a block": ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}, USER]}, "images are not"),
    "servers": ({"messages": [USER], "mcp_servers": [{"url": "http://x"}]}, "calls nobody"),
    "a role": ({"messages": [{"role": "tool", "content": ""}]}, "must be user or assistant"),
}


WHAT = {"input": "Hi"}
OF_RESPONSES = {
    "no input": ({}, "input must hold at least one message"),
    "an end of its own": ({"input": [{"role": "assistant", "content": ""}]}, "must not end with an assistant"),
    "a role": ({"input": [{"role": "tool", "content": ""}]}, "input[0].role must be system, developer, user"),
    "an image": ({"input": [part("input_image", image_url="file:///etc/passwd")]}, "images are not supported"),
    "a file": ({"input": [part("input_file", file_url="http://127.0.0.1:1/")]}, "'input_file' is not supported"),
    "an item": ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "'web_search_call' is not supported"),
    "a call that is no JSON": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "add", "arguments": "{1"}, USER]},
        "arguments must be a JSON object",
    ),
    "an output of nothing": ({"input": [{"type": "function_call_output", "output": "3"}]}, "call_id must be text"),
    "another's answer": ({**WHAT, "previous_response_id": f"resp_{7:016x}"}, "is of no answer of this trajectory"),
    "another's item": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "is of no answer of this trajectory"),
    "another's token": (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, USER]},
        "input[0].encrypted_content is of no answer",
    ),
    "a grammar": (
        {**WHAT, "tools": [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]},
        "tools[0] ('apply_patch') is a custom tool",
    ),
    "tools in an item": ({"input": [{"type": "additional_tools", "tools": []}, USER]}, "Codex: -m policy"),
    "its switch": ({**WHAT, "tools": [{"type": "custom", "name": "p"}]}, "Codex: -m policy"),
    "a tool of theirs": ({**WHAT, "tools": [{"type": "mcp", "server_url": "http://x"}]}, "run by the server"),
    "one name of two": (
        {
            **WHAT,
            "tools": [
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
                {"type": "function", "name": "n__f"},
            ],
        },
        "is shown as n__f, which another function is",
    ),
    "background": ({**WHAT, "background": True}, "background is not supported"),
    "a conversation": ({**WHAT, "conversation": "conv_1"}, "send input, or previous_response_id"),
    "a prompt": ({**WHAT, "prompt": {"id": "pmpt_1"}}, "send instructions and input"),
    "a limit": ({**WHAT, "max_output_tokens": 0}, "at least 1"),
    "include": ({**WHAT, "include": "all"}, "include must be a list"),
}
CASES = {"/v1/chat/completions": MALFORMED, "/v1/messages": OF_ANTHROPIC, "/v1/responses": OF_RESPONSES}


@pytest.mark.parametrize("path", CASES)
def test_malformed_requests_are_refused_with_the_field_at_fault(path: str) -> None:
    cases = CASES[path]

    async def play():
        async with playing(Policy("Yes.")) as (session, client):
            found = {}
            for name, (body, _) in cases.items():
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                found[name] = await client.post(path, content=content)
            alive = await client.ask(USER)
            return found, alive, await session.end()

    found, alive, recorded = run(play())
    for name, (_, said) in cases.items():
        answer = found[name]
        assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false", (name, answer.text)
        assert said in answer.json()["error"]["message"], (name, answer.text)
        assert (answer.json().get("type") == "error") == (path == "/v1/messages")
    if "a control token" in found:
        assert found["a control token"].json()["error"]["param"] == "tools"
    assert alive.status_code == 200 and len(recorded.calls) == 1 and recorded.failure is None
    assert dict(recorded.counts)["refused"] == len(cases)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens"])
def test_a_template_that_the_load_kept_from_rendering_is_asked_for_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {"error": "no answer within 60 s", "index": 0, "by_chance": True}
    tool = {**TOOL, "function": {**TOOL["function"], "description": f"New, for {path}."}}
    body = {"max_tokens": 9, "messages": [USER], "tools": [tool]}
    if path != "/v1/chat/completions":
        body["tools"] = [{"name": "add", "description": f"New, for {path}.", "input_schema": {"type": "object"}}]

    async def play():
        async with playing(Policy("Yes.")) as (session, client):
            with monkeypatch.context() as patch:
                patch.setattr(ChatTemplate, "_in_a_child", lambda *asked: late)
                refused = await client.post(path, json=body)
            return refused, await client.post(path, json=body), await session.end()

    refused, answered, recorded = run(play())
    assert refused.status_code == 503 and refused.headers["x-should-retry"] == "true"
    assert "short of time or memory" in refused.json()["error"]["message"]
    assert answered.status_code == 200 and recorded.failure is None
    assert recorded.fault == "a request was refused (rendering_failed)"


def test_a_token_opens_its_own_trajectory_alone() -> None:
    async def play():
        async with serving() as endpoint:
            policies = [Policy("I am A."), Policy("I am B.")]
            one, two = (endpoint.open(policy, seeds, LIMIT) for policy in policies)
            async with Client(one) as client:
                own = (await client.ask(USER)).json()["choices"][0]["message"]["content"]
                address = f"{one.base_url}/t/{two.token}/v1/chat/completions"
                body = {"messages": [USER]}
                mixed = [
                    await client.post(address, json=body),
                    await client.post("/v1/chat/completions", json=body, headers={"x-api-key": two.token}),
                ]
                in_path = await client.post(address, json=body, headers={"authorization": "Bearer EMPTY"})
                as_key = await client.post(
                    "/v1/chat/completions", json=body, headers={"authorization": "", "x-api-key": two.token}
                )
                wrong = [
                    await client.post("/v1/chat/completions", json=body, headers={"authorization": value})
                    for value in ("", "Bearer x", f"Bearer {one.token[:-1]}", f"Basic {one.token}")
                ]
            return own, mixed, in_path, as_key, wrong, [await one.end(), await two.end()], policies

    own, mixed, in_path, as_key, wrong, recorded, policies = run(play())
    assert own == "I am A." and [one.status_code for one in mixed] == [401, 401]
    assert all("two trajectories" in one.text for one in mixed)
    assert (
        in_path.json()["choices"][0]["message"]["content"]
        == as_key.json()["choices"][0]["message"]["content"]
        == "I am B."
    )
    assert [answer.status_code for answer in wrong] == [401] * 4
    for one, policy in zip(recorded, policies, strict=True):
        joint = whole(one)
        np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))


def test_other_addresses_and_methods_are_told_what_is_there() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (_, client):
            return {
                (method, path): await client.request(method, path)
                for method, path in (
                    ("GET", "/"),
                    ("GET", "/v1/chat/completions"),
                    ("POST", "/v1/embeddings"),
                    ("GET", "/v1/models"),
                    ("GET", "/v1/models/"),
                    ("GET", "/v1/models/policy"),
                    ("GET", "/v1/models/gpt-4o"),
                    ("GET", "/v1/models/../../etc/passwd"),
                    ("HEAD", "/"),
                )
            }

    found = run(play())
    assert [answer.status_code for answer in found.values()] == [404, 405, 404, 200, 200, 200, 200, 404, 200]
    assert found["GET", "/v1/models/gpt-4o"].json()["id"] == "gpt-4o" and not found["HEAD", "/"].content
    assert "/v1/responses" in found["POST", "/v1/embeddings"].json()["error"]["message"]


def test_an_address_ends_with_a_slash_or_not_and_bearer_is_spelled_in_any_case() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (session, client):
            found = [
                await client.post(
                    "/v1/chat/completions/",
                    json={"messages": [USER]},
                    headers={"authorization": f"{scheme} {session.token}"},
                )
                for scheme in ("bearer", "BEARER")
            ]
            async with httpx.AsyncClient(base_url=session.base_url, trust_env=False) as stranger:
                return found, await stranger.head("/"), await stranger.get("/")

    found, there, stranger = run(play())
    assert [answer.status_code for answer in (*found, there, stranger)] == [200, 200, 200, 401]


def test_bounds_on_bytes_and_parallel_calls_cost_the_request_alone() -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("Yes.", wait=gate.wait)
        async with playing(policy, max_parallel=2, max_request_bytes=4096, max_bytes=20_000) as (session, client):
            waiting = [asyncio.create_task(client.ask({"role": "user", "content": str(k)})) for k in range(3)]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            gate.set()
            await asyncio.wait(waiting)
            large = await client.ask({"role": "user", "content": "x" * 5000})
            chunked = await client.post("/v1/chat/completions", content=pieces())
            zipped = await client.post("/v1/chat/completions", content=b"{}", headers={"content-encoding": "gzip"})
            many = [await client.ask({"role": "user", "content": f"{k}" * 1500}) for k in range(15)]
            return next(iter(done)).result(), large, chunked, zipped, many[-1], await session.end()

    async def pieces():
        for _ in range(64):
            yield b" " * 1024

    parallel, large, chunked, zipped, total, recorded = run(play())
    assert parallel.status_code == 429 and parallel.headers["x-should-retry"] == "true"
    assert large.status_code == chunked.status_code == total.status_code == 413 and zipped.status_code == 415
    assert "max_request_bytes" in large.json()["error"]["message"] and "max_bytes" in total.json()["error"]["message"]
    assert recorded.truncated and recorded.failure is None


async def raw(session, data: bytes, wait_s: float) -> bytes:
    """What the server answers to these bytes, until it ends the connection or the time is up."""
    reader, writer = await asyncio.open_connection(*session.base_url.removeprefix("http://").split(":"))
    writer.write(data)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), wait_s)
    except TimeoutError:
        return b"still open"
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_slow_and_broken_clients_are_let_go_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slow = MovedClock(monkeypatch), ("nothing", "half a head", "half a body")

    async def play():
        async with playing(Policy("Yes."), request_timeout_s=BOUND_S) as (session, client):
            auth = f"authorization: Bearer {session.token}\r\n"
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{auth}"
            cases = {
                "nothing": b"",
                "half a head": head.encode(),
                "half a body": f"{head}content-length: 100\r\n\r\n{{".encode(),
                "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
                "a long field": f"{head}x: {'y' * 9000}\r\n\r\n".encode(),
                "many fields": (head + "".join(f"x{k}: y\r\n" for k in range(200)) + "\r\n").encode(),
                "two lengths": f"{head}content-length: 2\r\ncontent-length: 30\r\n\r\n{{}}".encode(),
                "length and chunks": f"{head}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{{}}".encode(),
                "a bare line feed": f"{head}x: y\n\n: z\r\n\r\n".encode(),
            }
            asked = {name: asyncio.create_task(raw(session, data, 60)) for name, data in cases.items()}
            await asyncio.gather(*(asked[name] for name in cases if name not in slow))
            clock.move(PAST_IT_S)
            found = {name: await task for name, task in asked.items()}
            return found, await client.ask(USER), await session.end()

    found, alive, recorded = clock.run(asyncio.wait_for(play(), 90))
    assert b"still open" not in found.values()
    assert found["nothing"] == found["half a head"] == b"" and b" 408 " in found["half a body"]
    for name in ("no HTTP", "a long field", "many fields", "two lengths", "length and chunks"):
        assert found[name].startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")), (name, found[name][:200])
    assert alive.status_code == 200 and len(recorded.calls) == 1


def test_a_client_that_leaves_within_its_request_costs_that_request_alone() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (session, client):
            host, port = session.base_url.removeprefix("http://").split(":")
            auth = f"authorization: Bearer {session.token}\r\n"
            for rest in ("content-length: 100\r\n\r\n{", "transfer-encoding: chunked\r\n\r\n5\r\n{"):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{auth}{rest}".encode())
                while not session.in_progress:
                    await asyncio.sleep(0.005)
                writer.close()
                while session.in_progress:
                    await asyncio.sleep(0.005)
            return await client.ask(USER), await session.end()

    alive, recorded = run(play())
    assert alive.status_code == 200, alive.text
    assert recorded.failure is None and len(recorded.calls) == 1 and dict(recorded.counts)["refused"] == 2


def test_a_client_that_takes_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovedClock(monkeypatch)

    async def long(call):
        return Policy().complete(call, [codec().stop_ids[0] + 1] * 60_000)

    async def play():
        endpoint = Endpoint(codec(), EndpointConfig(request_timeout_s=BOUND_S), 100_000)
        await endpoint.start()
        session = endpoint.open(long, seeds, 60_000)
        body = json.dumps({"messages": [USER], "logprobs": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.token}\r\n"
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = session.base_url.removeprefix("http://").split(":")
            stuck.connect((host, int(port)))
            stuck.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            http = endpoint._http
            assert http is not None
            await until(lambda: any(one.get_write_buffer_size() for one in http._open.values()))
            clock.move(PAST_IT_S)
            await until(lambda: not http.connections)
        await endpoint.close()

    clock.run(asyncio.wait_for(play(), 90))


def test_connections_that_are_held_keep_nobody_out_and_those_with_a_request_stay() -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("Yes.", wait=gate.wait)
        async with playing(policy, max_connections=3) as (session, client):
            host, port = session.base_url.removeprefix("http://").split(":")
            waiting = asyncio.create_task(client.ask(USER))
            while not policy.calls:
                await asyncio.sleep(0)
            held = [await asyncio.open_connection(host, int(port)) for _ in range(9)]
            others = []
            for number in (2, 3, 3):  # the last one finds all connections with a request
                others.append(asyncio.create_task(client.ask({"role": "user", "content": str(len(others))})))
                while len(policy.calls) < number or (len(others) == 3 and not others[2].done()):
                    await asyncio.sleep(0.005)
            gate.set()
            found = await asyncio.gather(waiting, *others, return_exceptions=True)
            for _, writer in held:
                writer.close()
            return found

    first, *others = run(play())
    assert first.status_code == 200
    assert [isinstance(one, httpx.HTTPError) for one in others] == [False, False, True]


def test_refusals_that_wait_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STRANGERS_PAUSE_S", 90.0)
    refused, spare = [], server._Http.spare
    monkeypatch.setattr(server._Http, "spare", lambda *given: refused.append(spare(*given)))

    async def play():
        async with playing(Policy("Yes."), max_connections=3) as (session, client):
            host, port = session.base_url.removeprefix("http://").split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            for _, writer in held:
                writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: len(refused) == 3)
            answer = await client.ask(USER)
            for _, writer in held:
                writer.close()
            return answer

    assert run(play()).status_code == 200


def test_an_agent_that_floods_waits_ever_longer_and_is_refused_in_the_end() -> None:
    async def play():
        async with serving(max_calls=2) as endpoint:
            flooding, other = (endpoint.open(Policy("Yes."), seeds, LIMIT) for _ in range(2))
            async with Client(flooding) as client, Client(other) as served:
                found = await asyncio.gather(*(client.get("/v1/models") for _ in range(40)))
                started = asyncio.get_running_loop().time()
                await client.get("/v1/models")
                waited = asyncio.get_running_loop().time() - started
                assert (await served.ask(USER)).status_code == 200
            return found, waited, await flooding.end()

    found, waited, recorded = run(play())
    codes = [answer.status_code for answer in found]
    assert codes.count(200) == 32 and codes.count(429) == 8 and waited > 0.03 and recorded.truncated


def test_an_answer_that_was_not_taken_is_there_for_the_retry_without_a_header() -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("One.", "Two.", wait=gate.wait)
        async with playing(policy) as (session, client):
            host, port = session.base_url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps({"model": "m", "messages": [USER]}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.token}\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            while not policy.calls:
                await asyncio.sleep(0)
            writer.transport.abort()
            await until(lambda: one_is_lost(session))
            gate.set()
            await until(lambda: policy.answers)
            again = await client.post("/v1/chat/completions", content=body)
            return again.json()["choices"][0]["message"]["content"], len(policy.calls)

    assert run(play()) == ("One.", 1)


def test_names_of_unknown_fields_are_bounded_over_all_trajectories() -> None:
    async def play():
        async with serving() as endpoint:
            names = set()
            for number in range(5):
                session = endpoint.open(Policy("Yes."), seeds, LIMIT)
                async with Client(session) as client:
                    await client.ask(USER, **{f"field{number}-{k}": 1 for k in range(40)})
                names |= {name for name, _ in (await session.end()).counts}
            return names

    assert len([name for name in run(play()) if name.startswith("unknown/")]) <= MOST_UNKNOWN_NAMES + 1


def test_the_token_is_in_no_text_of_a_trajectory() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (session, _):
            return session.token in repr(session)

    assert not run(play())


def test_the_end_of_the_endpoint_ends_its_trajectories_and_closes_its_port() -> None:
    async def play():
        policy = Policy("Yes.", wait=asyncio.Event().wait)
        async with serving() as endpoint:
            session = endpoint.open(policy, seeds, LIMIT)
            client = Client(session)
            waiting = asyncio.create_task(client.ask(USER))
            while not policy.calls:
                await asyncio.sleep(0)
        found = (await waiting).status_code
        with pytest.raises(httpx.ConnectError):
            await client.ask(USER)
        await client.aclose()
        return found, session.is_open

    assert run(play()) == (410, False)
