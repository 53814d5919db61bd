"""The HTTP server of an environment actor, at which agents call the policy. No Ray, torch or vLLM.

| request | answer |
|---|---|
| `POST /v1/chat/completions` | a `ChatCompletion`, or its chunks as server-sent events |
| `POST /v1/messages` | a `Message`, or its events |
| `GET /v1/models`, `GET /v1/models/NAME` | the one model, `policy` |

Each of them also under `/t/TOKEN`. An answer is sent once its turn is complete, a stream too, so that an error always
has its status. Headers of an answer: `x-squelch-adjusted` and `x-squelch-unknown` name fields of the request that were
taken otherwise than asked, and that are not known. Errors have the form of the API that was called, and
`x-should-retry`, which both packages' clients obey.

Invariants:

- A token belongs to one trajectory; a request is answered for the trajectory of its token alone. A request whose path
  and headers hold the tokens of two is refused. Tokens are found by their digest, and never logged.
- Nothing that a client sends makes the server connect to anything, or read a file.
- A request costs its own trajectory at most: an error in it is answered, logged and fails that trajectory.

| waits for | unblocked by | bound |
|---|---|---|
| a request's head | the client | `request_timeout_s` after the connection or the last answer; it is closed |
| a request's body | the client | `request_timeout_s`; 408 |
| an answer | `session` | the player's |
| the client to take it | the client | `request_timeout_s`; the connection is aborted, a retry gets the answer |
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from squelch.actors.endpoint import anthropic_api, openai_api
from squelch.actors.endpoint.canonical import Refused, Reply, Request, ended, malformed
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.session import Answer, Sample, Seeds, Session
from squelch.actors.formats.protocol import Format
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.text import parse_object

log = logging.getLogger(__name__)
_QUIET = logging.getLogger(f"{__name__}.http")
_QUIET.disabled = True  # aiohttp would log a traceback for every request that is no HTTP
MOST_ENDED = 4096
"""Ended trajectories whose tokens are told that they have ended; those of earlier ones are unknown."""
MOST_UNKNOWN_NAMES = 32
"""Names of unknown fields that are counted by name; any further ones are counted as `other`."""
MAX_FIELD_BYTES, MAX_FIELDS = 8190, 64
"""Of a request's head: bytes of the first line and of each field, and number of fields."""
PAUSE_S, LONGEST_PAUSE_S, STRANGERS_PAUSE_S = 0.005, 1.0, 0.2
"""Seconds before a refusal is sent: for each that the trajectory got before, at most, and to a request without a
trajectory. An agent that floods so costs the others little."""
LINGER_S, SHUTDOWN_S = 2.0, 5.0
"""Seconds in which the rest of a refused body is read; and in which requests are answered when the server ends."""


@dataclass(frozen=True)
class _Api:
    """How one of the two APIs reads requests and writes answers."""

    request: Callable[[Mapping[str, Any], int, float, bool], Request]
    answer: Callable[[Reply, Request, int], dict[str, Any]]
    events: Callable[[Reply, Request, int], Iterator[bytes]]
    error: Callable[[Refused], dict[str, Any]]


_OPENAI = _Api(openai_api.request, openai_api.answer, openai_api.events, openai_api.error)
_ANTHROPIC = _Api(anthropic_api.request, anthropic_api.answer, anthropic_api.events, anthropic_api.error)
_CALLS = {openai_api.PATH: _OPENAI, anthropic_api.PATH: _ANTHROPIC}


class _Http(web.Server):
    """The connections, at most so many. One too many ends the oldest that waits for a request, so that whoever holds
    connections keeps nobody out; if all are `busy` with one, it is ended itself. Refused requests go first."""

    def __init__(self, handler: Any, most: int, timeout_s: float) -> None:
        super().__init__(
            handler,
            keepalive_timeout=timeout_s,
            lingering_time=LINGER_S,
            auto_decompress=False,
            access_log=None,
            logger=_QUIET,
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
        )
        self._most = most
        self._open: OrderedDict[RequestHandler, asyncio.Transport] = OrderedDict()
        self.busy: set[RequestHandler] = set()
        """Connections with a request that is being answered."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Takes a connection, and ends one if there are too many."""
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if len(self._open) > self._most:
            ended = next((one for one in self._open if one not in self.busy), handler)
            self._open.pop(ended).abort()

    def spare(self, handler: RequestHandler) -> None:
        """Makes a connection, whose request is refused, the first to be ended."""
        self.busy.discard(handler)
        if handler in self._open:
            self._open.move_to_end(handler, last=False)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forgets a connection."""
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)


class Endpoint:
    """The server for the trajectories that an environment actor plays in one format."""

    def __init__(self, one: Format, config: EndpointConfig, max_model_len: int) -> None:
        self._format, self._config, self._max_model_len = one, config, max_model_len
        self._sessions: dict[bytes, Session] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._unknown_names: set[str] = set()
        self._http: _Http | None = None
        self._listening: asyncio.Server | None = None
        self._base_url = ""

    async def start(self) -> None:
        """Listens on a free port. OSError if the address is none of this machine."""
        loop = asyncio.get_running_loop()
        self._http = _Http(self._handle, self._config.max_connections, self._config.request_timeout_s)
        self._listening = await loop.create_server(self._http, self._config.host, 0, backlog=1024)
        self._base_url = _url(self._config.host, self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends all trajectories, and the server."""
        for session in list(self._sessions.values()):
            await session.end()
        if self._listening is not None and self._http is not None:
            self._listening.close()
            self._http.pre_shutdown()  # else it would wait for the next request of every idle connection
            await self._http.shutdown(SHUTDOWN_S)

    def open(
        self,
        sample: Sample,
        seeds: Seeds,
        most_tokens: int,
        most_calls: int | None = None,
        temperature: float = 1.0,
    ) -> Session:
        """A trajectory whose calls are answered from now on, until its `end`.

        Args:
            most_tokens: most sampled tokens of one call; a request's own limit lowers it.
            most_calls: most calls, if fewer than `max_calls`.
            temperature: that of the run's sampling, which a request may name.
        """
        token = secrets.token_urlsafe(32)
        session = Session(
            self._base_url,
            token,
            self._format,
            self._config,
            self._max_model_len,
            sample,
            seeds,
            most_tokens,
            most_calls,
            temperature,
            self._forget,
        )
        self._sessions[_digest(token)] = session
        return session

    def _forget(self, session: Session) -> None:
        digest = _digest(session.token)
        del self._sessions[digest]
        self._ended[digest] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    # --- one request ---

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._http is not None, "it listens"
        self._http.busy.add(request.protocol)
        try:
            return await self._answered(request)
        finally:
            self._http.busy.discard(request.protocol)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        path, in_path = _split(request.rel_url.raw_path)
        api = _ANTHROPIC if path.startswith(anthropic_api.PATH) else _OPENAI
        session: Session | None = None
        try:
            session = self._session(request, in_path)
            session.count_request()
            if path not in _CALLS:
                return await self._send(request, _models(request.method, path), 200)
            if request.method != "POST":
                raise Refused(405, "method_not_allowed", f"{path} takes POST, not {request.method}")
            return await self._call(request, session, api, path)
        except Refused as refused:
            if session is not None:
                session.counts["refused"] += 1
            return await self._refuse(request, api, refused, session)
        except Exception as error:  # the boundary of one request: whatever it meets costs its own trajectory alone
            log.exception("an agent's request could not be answered")
            if session is not None:
                session.fail(error)
            unforeseen = Refused(500, "internal_error", f"{type(error).__name__}: {error}")
            return await self._refuse(request, api, unforeseen, session)

    def _session(self, request: web.BaseRequest, in_path: str) -> Session:
        """The trajectory whose token the request holds."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = [_digest(one) for one in (in_path, request.headers.get("x-api-key"), bearer) if one]
        digest = given[0] if given else b""
        if digest in self._ended:
            raise ended()
        if digest not in self._sessions:
            raise Refused(
                401, "invalid_api_key", "the API key is the token of no trajectory; use the one that the agent got"
            )
        if any(other != digest and other in self._sessions for other in given):
            raise Refused(401, "invalid_api_key", "path and headers hold the tokens of two trajectories")
        return self._sessions[digest]

    async def _call(self, request: web.BaseRequest, session: Session, api: _Api, path: str) -> web.StreamResponse:
        session.in_progress += 1
        try:
            if session.in_progress > self._config.max_parallel:
                most = self._config.max_parallel
                raise Refused(
                    429, "too_many_at_once", f"the trajectory makes more than {most} calls at once", retry=True
                )
            body = await self._body(request, session)
            answer = self._answer(request, session, api, path, body)
            answer.clients += [request.transport] if request.transport is not None else []
            reply = await _outcome(answer)
        finally:
            session.in_progress -= 1
        return await self._deliver(request, api, answer, reply)

    def _answer(self, request: web.BaseRequest, session: Session, api: _Api, path: str, body: bytes) -> Answer:
        key = sha256(path.encode() + b"\0" + body).digest()
        retries = request.headers.get("x-stainless-retry-count", "0")
        if (found := session.earlier(key, retries.isdecimal() and int(retries[:9]) > 0)) is not None:
            session.counts["retries"] += 1
            return found
        try:
            parsed = parse_object(body, "the request")
        except Unreadable as error:
            raise malformed(str(error)) from error
        config = self._config
        chat = api.request(parsed, config.max_messages, session.temperature, config.sampling == "override")
        return session.answer(chat, key, self._countable)

    def _countable(self, name: str) -> str:
        """The name under which an unknown field is counted."""
        if name not in self._unknown_names:
            if len(self._unknown_names) >= MOST_UNKNOWN_NAMES:
                return "other"
            self._unknown_names.add(name)
        return name

    async def _body(self, request: web.BaseRequest, session: Session) -> bytes:
        most, found = self._config.max_request_bytes, bytearray()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "unsupported_encoding", "the body must be sent without a Content-Encoding")
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                if (request.content_length or 0) <= most:
                    async for chunk in request.content.iter_any():
                        found += chunk
                        session.take_bytes(len(chunk))
                        if len(found) > most:
                            break
                    else:
                        return bytes(found)
        except TimeoutError:
            raise Refused(
                408, "request_timeout", f"the request was not whole after {self._config.request_timeout_s:g} s"
            ) from None
        except ConnectionError:
            raise Refused(400, "incomplete_request", "the client was gone before its request was whole") from None
        raise Refused(
            413,
            "request_too_large",
            f"the request has more than {most} bytes (environment_actor.endpoint.max_request_bytes)",
        )

    # --- answers ---

    async def _deliver(self, request: web.BaseRequest, api: _Api, answer: Answer, reply: Reply) -> web.StreamResponse:
        chat, now = answer.request, int(time.time())
        headers = {
            f"x-squelch-{name}": ", ".join(fields)
            for name, fields in (("adjusted", chat.adjusted), ("unknown", chat.unknown))
            if fields
        }
        if chat.stream:
            body: Any = b"".join(api.events(reply, chat, now))
        else:
            body = api.answer(reply, chat, now)
        response = await self._send(request, body, 200, headers)
        answer.delivered = answer.delivered or response.sent
        return response

    async def _refuse(
        self, request: web.BaseRequest, api: _Api, refused: Refused, session: Session | None
    ) -> web.StreamResponse:
        assert self._http is not None, "it listens"
        self._http.spare(request.protocol)  # else refusals that wait could keep all others out
        pause = STRANGERS_PAUSE_S if session is None else PAUSE_S * (session.counts["refused"] - 1)
        await asyncio.sleep(min(LONGEST_PAUSE_S, pause))
        headers = {"x-should-retry": "true" if refused.retry else "false"}
        return await self._send(request, api.error(refused), refused.status, headers)

    async def _send(
        self, request: web.BaseRequest, body: Any, status: int, headers: Mapping[str, str] | None = None
    ) -> _Sent:
        """Sends JSON, or events given as bytes, within the bound."""
        is_stream = isinstance(body, bytes)
        response = _Sent(
            status=status,
            body=body if is_stream else json.dumps(body).encode(),
            headers={"Cache-Control": "no-store", "Server": "squelch", **(headers or {})},
            content_type="text/event-stream" if is_stream else "application/json",
        )
        if status in (408, 413, 415):
            response.force_close()
        transport = request.transport
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if transport is not None:
                transport.abort()
        except ConnectionError:
            log.debug("a client was gone before its answer")
        else:
            response.sent = transport is not None
        return response


class _Sent(web.Response):
    """An answer. `sent`: whether its client was still there when it was written."""

    sent = False


async def _outcome(answer: Answer) -> Reply:
    """The reply; sampling goes on if the client that waits for it is gone."""
    try:
        return await asyncio.shield(answer.task)
    except asyncio.CancelledError:
        if answer.task.cancelled():
            raise Refused(410, "trajectory_ended", "the trajectory has ended while the policy answered") from None
        raise


def _models(method: str, path: str) -> dict[str, Any]:
    if method == "GET" and path == "/v1/models":
        return openai_api.models()
    if method == "GET" and path == f"/v1/models/{openai_api.MODEL}":
        return openai_api.model()
    known = ", ".join(_CALLS)
    raise Refused(404, "not_found", f"{method} {path[:100]} is not there; the endpoint has {known} and /v1/models")


def _split(path: str) -> tuple[str, str]:
    """(path, token) of `/t/TOKEN/PATH`; the token is empty where there is none."""
    if path.startswith("/t/"):
        token, _, rest = path[3:].partition("/")
        return f"/{rest}", token
    return path, ""


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="replace")).digest()


def _url(host: str, port: int) -> str:
    """The address for agents on this machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://127.0.0.1:{port}" if address.version == 4 else f"http://[::1]:{port}"
    return f"http://{host}:{port}" if address.version == 4 else f"http://[{host}]:{port}"
