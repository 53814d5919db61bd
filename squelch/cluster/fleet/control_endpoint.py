"""The control endpoint: a named Ray actor through which `squelch scale` reaches a run, and the command's client of it.

The driver cannot be called from outside; the endpoint can, by everyone with the cluster's token. It only passes
requests on: a request waits there until the run takes it, and its caller until the run answers. The endpoint's
namespace identifies the run, `squelch/NAME/DIGEST/JOB.NUMBER`: its name, a digest of the path of its folder, Ray's job,
and the endpoint's number. The highest counts: those before it were killed a moment ago, or hang.

    waits for                 unblocked by               on time-out
    `ask`: the answer         `cluster.loop.scaling`     ANSWER_S; UserError naming the run, which may well live
    `take`: a request         `ask`                      `timeout_s`; no requests
    `reached`: the cluster    Ray's token                Ray's own time-outs; UserError naming the address

A run that started its own Ray is found by its folder (`cluster.fleet.local_ray`). No address is read from a run's
folder, which may be someone else's: Ray's token would be sent there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray
from pydantic import TypeAdapter
from ray.exceptions import GetTimeoutError, RayError
from ray.util import list_named_actors

from squelch.cluster.control.scaling import Answer, Request, packed
from squelch.cluster.fleet import local_ray
from squelch.cluster.fleet.bootstrap import probe
from squelch.cluster.fleet.ray_internals import enable_token_auth_by_default
from squelch.cluster.fleet.ray_token import take_token
from squelch.cluster.runs.driver import is_driven
from squelch.kit.base.errors import UserError
from squelch.kit.process.progress_marks import IDLE, Progress

NAME = "squelch-control-endpoint"
ANSWER_S = 60.0
_ANSWER = TypeAdapter(Answer)


def namespace_of(run_dir: Path) -> str:
    """The namespace of a run's control endpoint, without the job."""
    digest = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:8]
    return f"squelch/{run_dir.absolute().name}/{digest}"


class ControlEndpoint:
    """The actor, all of whose calls run in one event loop. Requests and answers travel as plain data."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, Any]] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._came = asyncio.Event()
        self._number = 0

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Passes a request to the run; returns its answer. TimeoutError after ANSWER_S."""
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number], self._answers[number] = dict(request), answer
        self._came.set()
        try:
            return await asyncio.wait_for(answer, ANSWER_S)
        finally:
            self._waiting.pop(number, None)
            self._answers.pop(number, None)

    async def take(self, timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
        """The requests that came since the last call; waits up to `timeout_s` for the first."""
        if not self._waiting:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), timeout_s)
            except TimeoutError:
                return []
        taken, self._waiting = list(self._waiting.items()), {}
        return taken

    def progress(self) -> Progress:
        """Any answer counts: its calls are short."""
        return IDLE

    async def answer(self, number: int, answer: Mapping[str, Any]) -> None:
        """Answers a request; one that is no longer waited for is dropped."""
        asked = self._answers.get(number)
        if asked is not None and not asked.done():
            asked.set_result(dict(answer))


# -- the command's client ----------------------------------------------------------------------------------------------


def ask(run: str, requests: Sequence[Request], address: str, say: Callable[[str], None]) -> None:
    """Sends requests to a run, one after the other, and prints its answers.

    Args:
        run: the run's folder, or its name.
        address: the Ray cluster that the run joined; empty: found by the folder, else RAY_ADDRESS.

    Raises:
        UserError: no such run is up, it cannot be reached, or it refuses a request; later requests are not sent.
    """
    found = None if address else local_ray.running(run)
    where = found or address or os.environ.get("RAY_ADDRESS", "")
    if not where:
        raise UserError(_unknown(run, sorted(local_ray.all_running()), "on this machine"))
    with reached(where, loopback=found is not None):
        endpoint = _endpoint_of(Path(run), where)
        for request in requests:
            say(_put(endpoint, run, request))


@contextmanager
def reached(address: str, loopback: bool) -> Iterator[None]:
    """Connects to a cluster as a driver of its own. `loopback`: the cluster was started by `local_ray`."""
    try:
        probe(address)
    except OSError as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from error
    if loopback:
        enable_token_auth_by_default()  # as Ray does where it starts a cluster; the variable alone would come too late
    else:
        take_token(address)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with local_ray.away(), local_ray.settings() if loopback else nullcontext():
            ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        raise UserError(
            f"the Ray cluster at {address} was not joined: {str(error).splitlines()[0]}. The command must run on a "
            "node of the cluster"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _endpoint_of(run: Path, where: str) -> Any:
    """The handle of a run's endpoint."""
    endpoints = [one["namespace"] for one in list_named_actors(all_namespaces=True) if one["name"] == NAME]
    exact = [name for name in endpoints if name.startswith(f"{namespace_of(run)}/")]
    named = exact or [name for name in endpoints if name.split("/")[1] == run.absolute().name]
    if not named:
        up = sorted({name.split("/")[1] for name in endpoints})
        raise UserError(_unknown(str(run), up, f"on the cluster at {where}"))
    if len({name.rpartition("/")[0] for name in named}) > 1:
        raise UserError(
            f"several runs named {run.absolute().name} are up on the cluster at {where}: give the run's folder, as the "
            "driver's host names it"
        )
    return ray.get_actor(NAME, namespace=max(named))


def _put(endpoint: Any, run: str, request: Request) -> str:
    try:
        answer = _ANSWER.validate_python(ray.get(endpoint.ask.remote(packed(request)), timeout=ANSWER_S + 5.0))
    except (GetTimeoutError, TimeoutError) as error:
        late = f"{run} did not answer within {ANSWER_S:g} s: it may still be starting, or be at its end"
        raise UserError(late) from error
    except RayError as error:
        raise UserError(f"{run} did not answer: {_why_not(Path(run))} ({str(error).splitlines()[0]})") from error
    if not answer.accepted:
        raise UserError(f"{run}: {answer.text}")
    return answer.text


def _why_not(run: Path) -> str:
    """What is known of a run whose endpoint died or hangs."""
    driven = is_driven(run)
    if driven is False:
        return "no process drives it any more"
    lives = "The run goes on and" if driven else "If the run goes on, it"
    return f"its control endpoint died or hangs. {lives} replaces the endpoint within two minutes; ask again then"


def _unknown(run: str, others: Sequence[str], where: str) -> str:
    up = f"up there: {', '.join(others)}" if others else "no run is"
    return f"no run {run} is up {where}; {up}. Give a run's folder, and --address if it joined a Ray cluster"
