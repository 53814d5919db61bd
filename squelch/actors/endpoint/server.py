"""The HTTP server of an environment actor, at which agents call the policy. No Ray, torch or vLLM.

| request | answer |
|---|---|
| `POST /v1/chat/completions`, `/v1/responses`, `/v1/messages` | a turn, whole or as events (`dialect`) |
| `POST /v1/messages/count_tokens` | the number of tokens that the same request would be sampled from |
| `GET /v1/models`, `GET /v1/models/NAME` | the one model, under any name |
| `HEAD /` | nothing: that the endpoint is there, whoever asks |

Each of them also under `/t/TOKEN`, and with a slash at its end. Headers of an answer: `x-squelch-adjusted` and
`x-squelch-unknown` name fields of the request that were taken otherwise than asked, and that are not known. Errors have
the form of the API that was called, and `x-should-retry`, which both packages' clients obey.

An answer is sent once its turn is complete, a stream too, so that an error always has its status. Only a stream whose
turn takes longer than `PULSE_S` is opened before, and an event each `PULSE_S` says that it lives; an error that comes
later is an event.

Invariants:

- A token belongs to one trajectory; a request is answered for the trajectory of its token alone. A request whose path
  and headers hold the tokens of two is refused. Tokens are found by their digest, and never logged.
- Nothing that a client sends makes the server connect to anything, or read a file.
- A request costs its own trajectory at most: an error in it is answered, logged and fails that trajectory.

| waits for | unblocked by | bound |
|---|---|---|
| a request's head | the client | `request_timeout_s` after the connection or the last answer; it is closed |
| a request's body | the client | `request_timeout_s`; 408 |
| an answer | `session` | the player's; a stream tells its client each `PULSE_S` |
| the client to take it | the client | `request_timeout_s`; the connection is aborted, a retry gets the answer |
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import ERROR, RequestHandler

from squelch.actors.endpoint import chat_api, messages_api, responses_api
from squelch.actors.endpoint.canonical import Refused, Reply, Request, ended, malformed, model_at
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.dialect import Dialect, Writer
from squelch.actors.endpoint.models import model, models
from squelch.actors.endpoint.session import GONE, Answer, Sample, Seeds, Session
from squelch.actors.formats.protocol import Format
from squelch.envs.contract import AgentCall
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
LARGE_BYTES, MOST_THREADS = 2**16, 64
"""Bytes from which a body is parsed in a thread; and the most threads, in which requests are placed, too."""
PULSE_S = 5.0
"""Seconds after which a stream is opened, and between two events of one that waits."""
_HEADERS = {"Cache-Control": "no-store", "Server": "squelch"}
DIALECTS = (chat_api.DIALECT, messages_api.DIALECT, responses_api.DIALECT)
_CALLS = {one.path: one for one in DIALECTS}
_COUNTS = {one.count_path: one for one in DIALECTS if one.count_path}


class _Http(web.Server):
    """The connections, at most so many. One too many ends the oldest that waits for a request, so that whoever holds
    connections keeps nobody out; if all are `busy` with one, it is ended itself. Refused requests go first."""

    def __init__(self, handler: Any, most: int, timeout_s: float, blame: Callable[[str], None]) -> None:
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
        self._most, self._blame = most, blame
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
            self._blame("the endpoint had too many connections, and ended one")

    def _make_request(self, message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        if message is ERROR:
            self._blame("the endpoint could not read the head of a request")
        return super()._make_request(message, *others)

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
        self._threads = ThreadPoolExecutor(MOST_THREADS, "endpoint")

    async def start(self) -> None:
        """Listens on a free port. OSError if the address is none of this machine."""
        loop = asyncio.get_running_loop()
        most, timeout_s = self._config.max_connections, self._config.request_timeout_s
        self._http = _Http(self._handle, most, timeout_s, self._blame_all)
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
        self._threads.shutdown(wait=False, cancel_futures=True)

    def open(
        self,
        sample: Sample,
        seeds: Seeds,
        most_tokens: int,
        most_calls: int | None = None,
        temperature: float = 1.0,
        untrained: Callable[[AgentCall], str] = lambda call: "",
    ) -> Session:
        """A trajectory whose calls are answered from now on, until its `end`.

        Args:
            most_tokens: most sampled tokens of one call; a request's own limit lowers it.
            most_calls: most calls, if fewer than `max_calls`.
            temperature: that of the run's sampling, which a request may name.
            untrained: the rule by which a call is not trained on, in words; empty if it is.
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
            untrained,
            self._threads,
        )
        self._sessions[_digest(token)] = session
        return session

    def _forget(self, session: Session) -> None:
        digest = _digest(session.token)
        del self._sessions[digest]
        self._ended[digest] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    def _blame_all(self, fault: str) -> None:
        """Whose connection or request it was is not known: its token was not read."""
        for session in self._sessions.values():
            session.blame(fault)

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
        if (request.method, path) == ("HEAD", "/"):
            return await self._send(request, {}, 200)
        dialect = next((one for one in DIALECTS if path.startswith(one.path)), DIALECTS[0])
        session: Session | None = None
        try:
            session = self._session(request, in_path)
            session.count_request()
            if path not in _CALLS and path not in _COUNTS:
                return await self._send(request, _models(request.method, path), 200)
            if request.method != "POST":
                raise Refused(405, "method_not_allowed", f"{path} takes POST, not {request.method}")
            return await self._call(request, session, dialect, path in _COUNTS)
        except Exception as error:  # the boundary of one request: whatever it meets costs its own trajectory alone
            return await self._refuse(request, dialect, _refusal(error, session), session)

    def _session(self, request: web.BaseRequest, in_path: str) -> Session:
        """The trajectory whose token the request holds."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        bearer = bearer if scheme.lower() == "bearer" else ""
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

    async def _call(
        self, request: web.BaseRequest, session: Session, dialect: Dialect, counts: bool
    ) -> web.StreamResponse:
        session.in_progress += 1
        try:
            if session.in_progress > self._config.max_parallel:
                most = self._config.max_parallel
                raise Refused(
                    429, "too_many_at_once", f"the trajectory makes more than {most} calls at once", retry=True
                )
            chat, writer, key, rule = await self._read(await self._body(request, session), request, dialect, session)
            if counts and dialect.count is not None:
                response = _response(dialect.count(await session.num_fed(chat, rule)), 200, _told(chat))
                if not await self._write(request, response, ends=True):
                    session.blame(GONE)
                return response
            answer = self._answer(request, session, chat, key, rule)
            client = request.transport
            answer.clients |= {client} if client is not None else set()
            try:
                return await self._deliver(request, session, dialect, writer, answer, _told(chat))
            finally:
                answer.clients.discard(client)
        finally:
            session.in_progress -= 1

    async def _read(
        self, data: bytes, request: web.BaseRequest, dialect: Dialect, session: Session
    ) -> tuple[Request, Writer, bytes, str]:
        """As `_read`."""
        if len(data) < LARGE_BYTES:
            return _read(data, request.headers, dialect, session)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _read, data, request.headers, dialect, session)

    def _answer(self, request: web.BaseRequest, session: Session, chat: Request, key: bytes, rule: str) -> Answer:
        retries = request.headers.get("x-stainless-retry-count", "0")
        if (found := session.earlier(key, retries.isdecimal() and int(retries[:9]) > 0)) is not None:
            session.counts["retries"] += 1
            return found
        return session.answer(chat, key, self._countable, rule)

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

    async def _deliver(
        self,
        request: web.BaseRequest,
        session: Session,
        dialect: Dialect,
        writer: Writer,
        answer: Answer,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        after = session.refused_last
        opened = await self._opened(request, writer, answer, headers) if writer.is_stream else None
        try:
            reply = await _outcome(answer)
        except Exception as error:
            if opened is None:
                raise
            await self._write(request, opened, writer.failure(_refusal(error, session)), ends=True)
            return opened
        if not writer.is_stream:
            response, last = _response(writer.whole(reply), 200, headers), b""
        elif opened is None:
            response, last = _events(headers), writer.opening(reply) + writer.rest(reply)
        else:
            response, last = opened, writer.rest(reply)
        sent = await self._write(request, response, last, ends=True)
        if sent:
            session.sent(answer, after)
        comes_again = writer.is_stream and dialect.repeats_cut and reply.finish == "length"
        answer.delivered = answer.delivered or (sent and not comes_again)
        return response

    async def _opened(
        self, request: web.BaseRequest, writer: Writer, answer: Answer, headers: Mapping[str, str]
    ) -> web.StreamResponse | None:
        """The stream, which is opened if its turn takes long; returns once the turn is over or the client is gone."""
        opened: web.StreamResponse | None = None
        while not (await asyncio.wait({answer.task}, timeout=PULSE_S))[0]:
            if answer.begun is None:  # it may still be refused
                continue
            if opened is None:
                opened, data = _events(headers), writer.opening(answer.begun)
            else:
                data = writer.pulse()
            if not await self._write(request, opened, data):
                break
        return opened

    async def _refuse(
        self, request: web.BaseRequest, dialect: Dialect, refused: Refused, session: Session | None
    ) -> web.StreamResponse:
        assert self._http is not None, "it listens"
        self._http.spare(request.protocol)  # else refusals that wait could keep all others out
        pause = STRANGERS_PAUSE_S if session is None else PAUSE_S * (session.counts["refused"] - 1)
        await asyncio.sleep(min(LONGEST_PAUSE_S, pause))
        headers = {"x-should-retry": "true" if refused.retry else "false"}
        return await self._send(request, dialect.error(refused), refused.status, headers)

    async def _send(
        self, request: web.BaseRequest, value: Any, status: int, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Sends JSON."""
        response = _response(value, status, headers or {})
        if status in (408, 413, 415):
            response.force_close()
        await self._write(request, response, ends=True)
        return response

    async def _write(
        self, request: web.BaseRequest, response: web.StreamResponse, data: bytes = b"", ends: bool = False
    ) -> bool:
        """Whether the client was still there, and took it within the bound; else its connection is ended."""
        transport = request.transport
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await response.prepare(request)
                await (response.write_eof(data) if ends else response.write(data))
        except TimeoutError:
            if transport is not None:
                transport.abort()
            return False
        except ConnectionError:
            log.debug("a client was gone before its answer")
            return False
        return transport is not None


def _read(
    data: bytes, headers: Mapping[str, str], dialect: Dialect, session: Session
) -> tuple[Request, Writer, bytes, str]:
    """(the request in a body, the writer of its answer, the key of its content, the rule by which it is not trained
    on). Raises Refused."""
    try:
        body = parse_object(data, "the request")
    except Unreadable as error:
        raise malformed(str(error)) from error
    chat, writer = dialect.read(body, session.reading())
    rule = session.untrained(AgentCall(model_at(body), headers, bool(chat.tools)))
    return chat, writer, f"{dialect.path} {rule}".encode() + dialect.fields.key(body), rule


def _response(value: Any, status: int, headers: Mapping[str, str]) -> web.Response:
    body = json.dumps(value).encode()
    return web.Response(status=status, body=body, headers={**_HEADERS, **headers}, content_type="application/json")


def _events(headers: Mapping[str, str]) -> web.StreamResponse:
    return web.StreamResponse(headers={**_HEADERS, **headers, "Content-Type": "text/event-stream"})


def _told(chat: Request) -> dict[str, str]:
    """The headers that name fields of a request."""
    names = {"x-squelch-adjusted": chat.adjusted, "x-squelch-unknown": chat.unknown}
    return {header: ", ".join(fields) for header, fields in names.items() if fields}


def _refusal(error: Exception, session: Session | None) -> Refused:
    """What the client is told of an error, which its trajectory takes."""
    if isinstance(error, Refused):
        if session is not None:
            session.refused(error)
        return error
    log.error("an agent's request could not be answered", exc_info=error)
    if session is not None:
        session.fail(error)
    return Refused(500, "internal_error", f"{type(error).__name__}: {error}")


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
        return models()
    name = path.removeprefix("/v1/models/")
    if method == "GET" and name != path and "/" not in name:
        return model(unquote(name)[:256])
    known = ", ".join((*_CALLS, *_COUNTS))
    raise Refused(404, "not_found", f"{method} {path[:100]} is not there; the endpoint has {known} and /v1/models")


def _split(path: str) -> tuple[str, str]:
    """(path, token) of `/t/TOKEN/PATH`, without slashes at its end; the token is empty where there is none."""
    token = ""
    if path.startswith("/t/"):
        token, _, rest = path[3:].partition("/")
        path = f"/{rest}"
    return path.rstrip("/") or "/", token


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
