"""An environment in another process or on another host, behind the HTTP contract of `envs.remote.server`.

    environment.name=Http
    environment.options='{url: "http://127.0.0.1:8801"}'

A lost answer costs one trajectory, with its reason: every attempt has a deadline, a request is repeated under its id,
so that nothing is played twice, and an answer of the wrong form is refused. Beyond loopback a token is needed, in the
variable that `token_variable` names, on every host that runs environment actors.

A request waits for the server at most (retries + 3) x timeout_s and the back-off (`longest_wait_s` in
`kit.untrusted.http`); then the trajectory fails. Where the server does not keep the splits apart, a reset asks for one
task after the other until one belongs to the split: on average for eight in validation. Which seed that was, and which
others were tried, is remembered, so that a reset that ends too late is continued by the next attempt.
"""

from __future__ import annotations

import random
import uuid
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from squelch.envs.contract import Environment
from squelch.envs.text import legible
from squelch.kit.base.settings import Settings
from squelch.kit.records.picture_files import shown_of_json
from squelch.kit.records.pictures import Shown
from squelch.kit.records.splits import Split, no_task, split_of, task_key_of
from squelch.kit.untrusted.files import Unreadable, brief, shortened
from squelch.kit.untrusted.http import JsonClient, NoAnswer, longest_wait_s
from squelch.kit.untrusted.secrets import bearer, masked
from squelch.kit.untrusted.text import parse_object

CONTRACT = 1
MAX_ACTION = 20_000
MAX_OBSERVATION = 20_000
MAX_KIND = 200
MAX_VERSION = 1_000
MAX_DRAWS = 200
"""Seeds drawn, where the server does not keep the splits apart, before the split counts as empty."""
MAX_REMEMBERED = 1_000_000
"""Tasks of which is remembered which drawn seeds are the other split's."""
MAX_COMPLAINT = 500
UNAVAILABLE = (429, 502, 503)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Answer = TypeVar("Answer", bound=BaseModel)


class HttpOptions(Settings):
    """The server and the bounds of a request."""

    url: str
    """Address of the server, such as `http://127.0.0.1:8801`; `https` where the network is not trusted."""
    timeout_s: float = Field(2.0, gt=0)
    """Seconds of one attempt. Keep (retries + 3) x timeout_s below `environment_actor.step_timeout_s`."""
    retries: int = Field(1, ge=0, le=10)
    """Attempts after the first one."""
    token_variable: str = Field("SQUELCH_ENVIRONMENT_TOKEN", pattern=r"^SQUELCH_ENVIRONMENT_\w+$")
    """Name of the variable that holds the token, `SQUELCH_ENVIRONMENT_...`: a recipe from elsewhere must not have
    another secret of this host sent to its server. The token itself is never part of a configuration."""
    version: str = Field("", max_length=MAX_VERSION)
    """The version that the server must serve, else trajectories fail. Unset: the one that it describes when the run
    starts, which the run's `config.yaml` then has; a resumed run takes the present one and says that it changed."""


class _Described(BaseModel):
    contract: int
    name: str
    version: str = Field(max_length=MAX_VERSION)
    rules: str
    stochastic: bool
    shared_noise: bool = False
    task_key: bool
    splits: bool
    pictures: bool = False
    max_turns: int = Field(ge=1)
    max_actions_per_turn: int = Field(1, ge=1)


class _Reset(BaseModel):
    observation: str | list[Any]
    task_key: str | None = Field(None, min_length=8, max_length=64, pattern="^[0-9a-f]+$")
    task_kind: str | None = None
    version: str


class _Step(BaseModel):
    observation: str | list[Any]
    reward: float
    terminated: bool
    truncated: bool
    success: bool


class RemoteError(RuntimeError):
    """The server gave no valid answer; the text names the server and the call."""


class _Server:
    """One server, shared by the environments of this process that have the same options."""

    def __init__(self, options: HttpOptions) -> None:
        self._url, self._client = options.url.rstrip("/"), JsonClient(options.timeout_s, options.retries, UNAVAILABLE)
        self._headers = _authorization(options)
        self._abandoned = _abandoned.setdefault(options, [])
        self.tried: dict[tuple[str, int], int] = {}
        """Number of seeds drawn from a task that belong to the other split, by the task's split and seed."""
        self.described = self.call("describe", {}, _Described)
        if self.described.contract != CONTRACT:
            raise RemoteError(
                f"environment server {masked(self._url)} speaks version {self.described.contract} of the contract; "
                f"version {CONTRACT} is needed (squelch/envs/remote/server.py)"
            )

    def call(self, name: str, body: dict[str, Any], answer: type[Answer]) -> Answer:
        """The checked answer. Raises RemoteError."""
        try:
            status, content = self._client.post(f"{self._url}/v1/{name}", body, self._headers)
        except NoAnswer as error:
            raise self._error(name, str(error)) from error
        where = "its answer"
        try:
            found = parse_object(content, where)
            if status != 200:
                raise self._error(name, f"status {status}: {shortened(str(found.get('error', found)), MAX_COMPLAINT)}")
            return answer.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']} (got {brief(first['input'])})"
            raise self._error(name, f"nonsense: {problem}") from error
        except Unreadable as error:
            raise self._error(name, f"status {status}, {error}") from error

    def close_abandoned(self) -> None:
        """Closes sessions that no environment uses; the server drops idle ones itself, so a failure changes nothing."""
        with suppress(RemoteError):
            while session := _taken(self._abandoned):
                self.call("close", {"session": session}, _Closed)

    def _error(self, name: str, what: str) -> RemoteError:
        return RemoteError(masked(f"environment server {self._url}, {name}: {shortened(what, MAX_COMPLAINT)}"))


def _taken(sessions: list[str]) -> str:
    """The last session, which leaves the list; empty if none is left, because another thread may have taken it."""
    try:
        return sessions.pop()
    except IndexError:
        return ""


class _Closed(BaseModel):
    pass


class Http(Environment):
    """One session of the server, which is asked for the first time by `notes` or `reset`: a run's configuration can be
    read where the server is not there."""

    Options = HttpOptions
    options: HttpOptions
    max_turns = 10

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        _authorization(self.options)
        self._begin_session()

    @property
    def _server(self) -> _Server:
        return _server(self.options)

    @property
    def _described(self) -> _Described:
        return self._server.described

    @property
    def _version(self) -> str:
        return self.options.version or self._described.version

    def pinned(self) -> dict[str, Any]:
        """The version that the run begins with, for actors that ask the server later."""
        return {"version": self._version}

    def longest_call(self) -> tuple[float, str]:
        """The longest time of a request with all its attempts."""
        options = self.options
        return longest_wait_s(options.timeout_s, options.retries), "(retries + 3) x timeout_s, and the back-off"

    @property
    def stochastic(self) -> bool:
        """As the server declares."""
        return self._described.stochastic

    @property
    def shows_pictures(self) -> bool:
        """As the server declares; false if it does not."""
        return self._described.pictures

    @property
    def shared_noise(self) -> bool:
        """As the server declares; false if it does not."""
        return self._described.shared_noise

    def notes(self) -> list[str]:
        """The environment that the server declares. Raises ValueError if its answer breaks the contract."""
        try:
            about = self._described
        except RemoteError as error:
            raise ValueError(f"environment.options.url: {error}") from error
        noise = "episodes depend on the noise seed" if about.stochastic else "episodes declare no noise"
        return [f"environment server {masked(self.options.url)}: {about.name}, version {about.version}; {noise}"]

    def rules(self) -> str:
        """The server's rules."""
        return legible(self._described.rules, MAX_OBSERVATION)

    def read_action(self, text: str) -> str | None:
        """The text without white space around it; the server judges actions. None if it is empty or too long."""
        said = text.encode(errors="replace").decode().strip() if len(text) <= 2 * MAX_ACTION else ""
        return said if 0 < len(said) <= MAX_ACTION else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str | Shown, dict[str, Any]]:
        """Starts the task of `seed`; where the server does not keep the splits apart, draws from it until one belongs
        to the split."""
        self._server.close_abandoned()
        try:
            tried, task = self._server.tried, (self.split, seed)
            for number, drawn in enumerate(self._seeds(seed)):
                if number < tried.get(task, 0):
                    continue
                body = {"split": self.split, "seed": drawn, "noise_seed": options["noise_seed"]}
                answer = self._call("reset", body, _Reset)
                if answer.version != self._version:
                    raise RemoteError(
                        f"{masked(self.options.url)} serves version {answer.version}, and the run began with "
                        f"{self._version}; serve that one, or set environment.options.version"
                    )
                shown = self._shown(answer.observation, "reset")
                key = answer.task_key or task_key_of(f"Http {self._described.name}", _content(shown))
                if self._described.splits or split_of(key) == self.split:
                    return shown, {"task_key": key, "task_kind": answer.task_kind and answer.task_kind[:MAX_KIND]}
                if len(tried) < MAX_REMEMBERED:
                    tried[task] = number + 1
        except RemoteError:
            self._begin_session()
            raise
        raise no_task(f"Http {self._described.name}", self.options, MAX_DRAWS)

    def step(self, action: str) -> tuple[str | Shown, float, bool, bool, dict[str, Any]]:
        """Plays an action. Raises RemoteError if there is no valid answer."""
        answer = self._call("step", {"action": action}, _Step)
        shown = self._shown(answer.observation, "step")
        return shown, answer.reward, answer.terminated, answer.truncated, {"success": answer.success}

    def _shown(self, observation: str | list[Any], call: str) -> str | Shown:
        """The observation with legible text. Raises RemoteError for pictures that the server did not declare, or that
        are out of bounds."""
        if isinstance(observation, str):
            return legible(observation, MAX_OBSERVATION)
        try:
            if not self._described.pictures:
                raise Unreadable('observation: parts, but `describe` does not say "pictures": true')
            shown = shown_of_json(observation, "observation")
        except Unreadable as error:
            raise RemoteError(masked(f"environment server {self.options.url}, {call}: {error}")) from error
        parts = shown.parts if isinstance(shown, Shown) else (shown,)
        return Shown.of(*(legible(part, MAX_OBSERVATION) if isinstance(part, str) else part for part in parts))

    def _begin_session(self) -> None:
        """A new session; the server closes it once the environment is no longer used."""
        self._session, self._requests = uuid.uuid4().hex, 0
        weakref.finalize(self, _abandoned.setdefault(self.options, []).append, self._session)

    def _call(self, name: str, body: dict[str, Any], answer: type[Answer]) -> Answer:
        self._requests += 1
        session = {"session": self._session, "request_id": f"{self._session}/{self._requests}"}
        return self._server.call(name, {**session, **body}, answer)

    def _seeds(self, seed: int) -> Iterator[int]:
        yield seed
        if not self._described.splits:
            rng = random.Random(f"Http {seed}")
            yield from (rng.getrandbits(31) for _ in range(MAX_DRAWS - 1))


def _content(shown: str | Shown) -> str:
    """What tells two tasks apart: the text, and the pictures by their pixels."""
    if isinstance(shown, str):
        return shown
    return "\n".join(part if isinstance(part, str) else f"picture {part.identity}" for part in shown.parts)


_abandoned: dict[HttpOptions, list[str]] = {}
"""The sessions that no environment uses any more, by server."""


@lru_cache(maxsize=64)
def _server(options: HttpOptions) -> _Server:
    return _Server(options)


def _authorization(options: HttpOptions) -> dict[str, str]:
    """The header with the token. Raises ValueError for no address, for one beyond loopback without a token, and for a
    token that cannot be sent."""
    parts = urlsplit(options.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        wrong = f"{brief(options.url)} is no address of a server; one looks like http://127.0.0.1:8801"
        raise ValueError(f"environment.options.url: {wrong}")
    try:
        header = bearer(options.token_variable)
    except ValueError as error:
        raise ValueError(f"environment.options.token_variable: {error}") from error
    if not header and parts.hostname not in LOOPBACK:
        wrong = f"{parts.hostname} is not this machine: a token in the variable {options.token_variable} is needed"
        raise ValueError(f"environment.options.url: {wrong}")
    return header
