"""The HTTP contract of remote environments, version 1, and its reference server.

This file needs Starlette and uvicorn, and no other part of Squelch: copy it, or import it, to serve an environment that
cannot be installed beside Squelch. `python -m squelch.envs.remote` serves Squelch's own environments with it, and
`squelch/envs/remote/openenv_bridge.py` those of OpenEnv. Every call is `POST /v1/NAME` with a JSON object:

| call | request | answer |
|---|---|---|
| `describe` | `{}` | the fields of `Description`, and `contract`: 1 |
| `reset` | `session`, `request_id`, `split`, `seed`, `noise_seed` | `observation`, `version`, `task_key`, `task_kind` |
| `step` | `session`, `request_id`, `action` | `observation`, `reward`, `terminated`, `truncated`, `success` |
| `close` | `session` | `{}` |

- `describe.task_key` says whether `reset` returns a digest of the task's content; if not, the client takes one of the
  first observation. `splits` says whether the environment keeps the tasks of `train` and `validation` apart itself; if
  not, the client draws seeds until a task's digest belongs to the split. `stochastic` says whether an episode depends
  on `noise_seed`; `shared_noise` (optional, false) asks that all trajectories of a group get one `noise_seed`;
  `pictures` (optional, false) says that an observation may be a list of parts, `{"text": TEXT}` and `{"png": BASE64}`,
  of 8-bit RGB, each at most 1 MiB, and in all within the 4 MiB of an answer. `version` must change with whatever
  changes tasks or rewards.
- The client chooses the session's name. A session is one environment; `reset` makes it, or starts another task in it.
- `request_id` makes retries harmless: a request with the id of the session's last request gets that request's answer,
  and no action is executed twice. While the first one is still being answered, the second one waits for it. A copy that
  arrives after a later request, for example from a slow proxy, is refused.
- Errors have the form `{"error": "..."}`: 400 the request is wrong, 401 the token, 409 the request was answered before
  a later one, 410 the session is unknown, over or expired, 421 the `Host` (below), 422 the environment raised an error
  or returned something wrong, 503 there are too many sessions, 504 the environment did not answer within `timeout_s`.
  After 422 and 504 the session is over, until its next `reset`.

| waits for | unblocked by | bound, and what then |
|---|---|---|
| a call of the environment | the environment, in a thread of its own | `timeout_s`; 504, the thread is left behind |
| another request of the session | that request | its own bound |
| the environment's `close()` | the call under way, also one left behind | `timeout_s`; 504, and it is closed later |
| the client's next request | the client | `idle_s`; the session is closed |

A session that is expired or replaced is closed in a thread that nobody waits for, and so is an environment whose
constructor returns too late.

Without a token the server listens on loopback addresses only, and answers only requests whose `Host` is one.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

log = logging.getLogger(__name__)
CONTRACT = 1
MAX_BODY = 2**20
MAX_TEXT = 100_000
"""Characters of an observation."""
MAX_NAME = 200
MAX_ANSWERED = 1024
"""Request ids that a session remembers, far more than a client has under way."""
TOKEN_VARIABLE = "SQUELCH_ENVIRONMENT_TOKEN"
"""The variable that holds the token on both ends, unless the client's settings name another."""
Observation = str | list[dict[str, str]]
"""Text, or parts in the order in which the policy sees them."""
T = TypeVar("T")


@dataclass(frozen=True)
class Description:
    """What `describe` says of an environment."""

    name: str
    version: str
    rules: str
    stochastic: bool = False
    shared_noise: bool = False
    task_key: bool = False
    splits: bool = False
    pictures: bool = False
    max_turns: int = 10
    max_actions_per_turn: int = 1


class Served(Protocol):
    """One environment, for one session; its methods are called one at a time, from changing threads."""

    def reset(self, split: str, seed: int, noise_seed: int) -> tuple[Observation, str | None, str | None]:
        """Start a task; returns (observation, digest of the task's content or None, kind of task or None)."""

    def step(self, action: str) -> tuple[Observation, float, bool, bool, bool]:
        """Play an action; returns (observation, reward, terminated, truncated, success)."""

    def close(self) -> None:
        """Free what the environment holds."""


class Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class _Session:
    environment: Served
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One request at a time."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """One call of the environment at a time, also of those that are late."""
    answered: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_ANSWERED))
    last_answer: tuple[int, dict[str, Any]] = (200, {})
    is_over: bool = False
    used: float = field(default_factory=time.monotonic)


class EnvironmentServer:
    """The sessions of one environment; `make()` makes an environment for a new one."""

    def __init__(
        self,
        description: Description,
        make: Callable[[], Served],
        token: str | None = None,
        timeout_s: float = 10.0,
        max_sessions: int = 1024,
        idle_s: float = 3600.0,
    ) -> None:
        self.description, self._make, self._token = description, make, (token or "").strip() or None
        self._timeout_s, self._max_sessions, self._idle_s = timeout_s, max_sessions, idle_s
        self._sessions: dict[str, _Session] = {}
        calls = {"describe": self.describe, "reset": self.reset, "step": self.step, "close": self.close}
        routes = [Route(f"/v1/{name}", self._answering(call), methods=["POST"]) for name, call in calls.items()]
        self.app = Starlette(routes=routes)

    async def describe(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """What is served."""
        return 200, {"contract": CONTRACT, **asdict(self.description)}

    async def reset(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Starts a task in a new or known session."""
        split, seed, noise_seed = _text(body, "split"), _number(body, "seed"), _number(body, "noise_seed")
        if split not in ("train", "validation"):
            raise Refused(400, f"split must be train or validation (got {split!r})")
        name, request_id = _text(body, "session"), _text(body, "request_id")
        known = self._sessions.get(name)
        if known is None or (known.is_over and request_id not in known.answered):
            await self._open(name)

        def play(environment: Served) -> dict[str, Any]:
            observation, key, kind = environment.reset(split, seed, noise_seed)
            labels = {"task_key": _label(key, "task_key"), "task_kind": _label(kind, "task_kind")}
            return {"observation": _shown(observation), **labels, "version": self.description.version}

        return await self._once(name, request_id, play, "reset")

    async def step(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Plays an action."""
        action = _text(body, "action", MAX_TEXT)

        def play(environment: Served) -> dict[str, Any]:
            observation, reward, terminated, truncated, success = environment.step(action)
            if not math.isfinite(reward):
                raise ValueError(f"step() returned the reward {reward!r}; a finite number is needed")
            ends = {"terminated": bool(terminated), "truncated": bool(truncated), "success": bool(success)}
            return {"observation": _shown(observation), "reward": float(reward), **ends}

        return await self._once(_text(body, "session"), _text(body, "request_id"), play, "step")

    async def close(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ends a session; one that is unknown has ended already."""
        session = self._sessions.pop(_text(body, "session"), None)
        if session is not None:
            await self._bounded(session.environment.close, "close", session.busy)
        return 200, {}

    async def _open(self, name: str) -> None:
        """Makes a new environment for the session, in the place of one whose last call failed."""
        self._expire()
        self._require_room(name)
        made = await self._bounded(lambda: _Session(self._make()), "make", late=_drop)
        present = self._sessions.get(name)
        try:
            self._require_room(name)  # again: others were opened meanwhile
        except Refused:
            _drop(made)
            raise
        if present is not None and not present.is_over:  # a repeated request was faster
            _drop(made)
            return
        if present is not None:
            made.answered, made.last_answer = present.answered, present.last_answer
            _drop(present)
        self._sessions[name] = made

    def _require_room(self, name: str) -> None:
        if len(self._sessions) >= self._max_sessions and name not in self._sessions:
            raise Refused(503, f"there are {self._max_sessions} sessions; close some, or raise the limit")

    async def _once(
        self, name: str, request_id: str, play: Callable[[Served], dict[str, Any]], method: str
    ) -> tuple[int, dict[str, Any]]:
        """The answer to a request: the kept one if the session's last request had the same id."""
        session = self._sessions.get(name)
        if session is None:
            raise Refused(410, f"session {name!r} is unknown or has expired; begin with reset")
        async with session.lock:
            session.used = time.monotonic()
            if request_id in session.answered:
                if request_id == session.answered[-1]:
                    return session.last_answer
                raise Refused(409, f"request {request_id!r} was answered before a later one, and is not executed again")
            if session.is_over:
                raise Refused(410, f"session {name!r} is over, because its last call failed; begin with reset")
            try:
                answer = 200, await self._bounded(lambda: play(session.environment), method, session.busy)
            except Refused as refused:
                answer = refused.status, {"error": str(refused)}
                session.is_over = True
            session.answered.append(request_id)
            session.last_answer = answer
            return answer

    async def _bounded(
        self,
        function: Callable[[], T],
        method: str,
        busy: AbstractContextManager[Any] | None = None,
        late: Callable[[T], None] | None = None,
    ) -> T:
        """The function's result, from a thread of its own that holds `busy`, if given. Raises Refused; `late` then gets
        a result that still comes."""
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                with busy or nullcontext():
                    result, error = function(), None
            except BaseException as raised:  # whatever foreign code raises becomes the answer
                result, error = None, raised
            with suppress(RuntimeError):  # the server has stopped, so nobody waits
                loop.call_soon_threadsafe(_settle, future, result, error, late)

        threading.Thread(target=run, daemon=True, name=f"environment-{method}").start()
        try:
            return await asyncio.wait_for(future, self._timeout_s)
        except TimeoutError:
            raise Refused(504, f"{method}() did not return within {self._timeout_s:g} s") from None

    def _expire(self) -> None:
        oldest = time.monotonic() - self._idle_s
        for name in [name for name, session in self._sessions.items() if session.used < oldest]:
            _drop(self._sessions.pop(name))

    def _answering(
        self, call: Callable[[dict[str, Any]], Awaitable[tuple[int, dict[str, Any]]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._check_access(request)
                status, body = await call(await _body(request))
            except Refused as refused:
                status, body = refused.status, {"error": str(refused)}
            return JSONResponse(body, status_code=status)

        return answer

    def _check_access(self, request: Request) -> None:
        """Refuses a wrong token, and without one a `Host` that is not this machine: a web page can have a name of its
        own resolve to 127.0.0.1 (DNS rebinding), but cannot know a token."""
        host = request.headers.get("host", "").lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
        if self._token is None and not is_loopback(name):
            raise Refused(421, f"without a token only names of this machine are answered (not {name[:MAX_NAME]!r})")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused(401, "the token is missing or wrong (Authorization: Bearer ...)")

    def serve(self, host: str, port: int) -> None:
        """Serves until the process is stopped. Raises ValueError for an open address without a token."""
        if self._token is None and not is_loopback(host):
            raise ValueError(f"{host} can be reached from other machines: a token is needed")
        uvicorn.run(self.app, host=host, port=port, log_level="warning", access_log=False)


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine alone. Defined here, because this file is copied alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _drop(session: _Session) -> None:
    """Closes an environment that no session holds any more, in a thread of its own."""

    def close() -> None:
        try:
            with session.busy:
                session.environment.close()
        except Exception:
            log.warning("an environment that was dropped could not be closed", exc_info=True)

    threading.Thread(target=close, daemon=True, name="environment-drop").start()


def _settle(
    future: asyncio.Future[Any], result: Any, error: BaseException | None, late: Callable[[Any], None] | None
) -> None:
    if future.done():  # the call was late
        if error is None and late is not None:
            late(result)
    elif error is None:
        future.set_result(result)
    else:
        text = _unicode(f"{type(error).__name__}: {error}"[:1000])
        future.set_exception(Refused(422, text))


async def _body(request: Request) -> dict[str, Any]:
    """The request's object. JSON is asked for by its type, which a page of another site cannot send unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(400, "the content type must be application/json")
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise Refused(400, f"the request has more than {MAX_BODY} bytes")
    try:
        found = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, "the request must be a JSON object")
    return found


def _text(body: dict[str, Any], name: str, most: int = MAX_NAME) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise Refused(400, f"{name} must be text of at most {most} characters")
    return value


def _number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise Refused(400, f"{name} must be an integer from 0 to 2^63 - 1")
    return value


def _shown(observation: Any) -> Observation:
    if isinstance(observation, list):
        return [_part(part) for part in observation]
    if not isinstance(observation, str):
        raise TypeError(f"the observation is a {type(observation).__name__}; text, or a list of parts, is needed")
    return _unicode(observation)[:MAX_TEXT]


def _part(part: Any) -> dict[str, str]:
    if isinstance(part, dict) and len(part) == 1 and isinstance(part.get("text", part.get("png")), str):
        return {"text": _unicode(part["text"])[:MAX_TEXT]} if "text" in part else part
    raise TypeError(f'a part of the observation is {repr(part)[:80]}; {{"text": TEXT}} or {{"png": BASE64}} is needed')


def _label(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"reset() returned the {name} {value!r}; text or None is needed")
    return None if value is None else _unicode(value)


def _unicode(text: str) -> str:
    """The text with a question mark for each lone surrogate, which no answer can hold."""
    return text.encode(errors="replace").decode()
