"""The client of all learner ranks together: makes the calls of `cluster.control.calls` to every rank, or to rank 0.

| the client waits for | unblocked by | on time-out |
|---|---|---|
| every rank's answer | all answers, or the first failure | TimeoutError naming the late ranks, the row's bound |
| a sign of each rank (`Signs`), every `poll_s` | the ranks | TimeoutError naming those that give none |
| other ranks, after one has failed | their failures | the first failure is named, `GRACE_S` |

All ranks get the collectives in the same order. After any error but `Refused` the ranks must be restarted: a rank's
shards are lost, or the ranks wait for one another. The error names the rank that died, failed or is late, with its
address where that is another host's: a rank may fail because another one died, whose death is reported later, so that
the client waits for the failures of the others before it names one. A collective that is given up goes on, because
ranks on which it was cancelled would leave the others waiting.

Ranks may run on other hosts than the caller: a folder of the caller's disk is then read through the object store
(`Transport.offer`) and written through the ranks' disks (`learner.staging`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar

from squelch.cluster.control.actor_errors import ActorError, Died, Failed, Refused
from squelch.cluster.control.calls import (
    GRACE_S,
    IDENTIFY,
    OPEN_ENDPOINT,
    START,
    STOP_RANKS,
    UNREACHABLE,
    Call,
    Folder,
    Signs,
    every,
)
from squelch.cluster.control.calls import seconds as constant
from squelch.cluster.control.client import Handle, Transport, answer, life, loop_time, nothing
from squelch.cluster.control.progress import Patience, ProgressWatch, poll_s
from squelch.learner import staging
from squelch.learner.network import failures_in_words

if TYPE_CHECKING:
    from pathlib import Path

    from squelch.cluster.config import RunConfig
    from squelch.kit.process.progress_marks import Progress
    from squelch.learner.network import RankProcess

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)
LEARNER = "learner"
"""The learner's name, in events and in what `Actors.leaving` returns."""
ANSWERS = 6
"""How often a silent rank is asked before its time-out: on a machine under load an answer takes seconds."""


class Watch(Protocol):
    """Takes the silence of the learner while a call is under way (`cluster.fleet.supervision.Watchdog`)."""

    def see(self, name: str, watch: ProgressWatch, now: float) -> None:
        """Takes the present silence."""

    def forget(self, name: str) -> None:
        """The call has ended."""


class LearnerClient:
    """All learner ranks. `processes`: the node and process of each rank, once they are up; `watch`: takes their silence
    in a call."""

    def __init__(
        self, handles: Sequence[Handle], transport: Transport, config: RunConfig, release: Callable[[], None] = nothing
    ) -> None:
        self.handles, self.transport, self.config, self.release = handles, transport, config, release
        self.processes: list[RankProcess] = []
        self.watch: Watch | None = None
        self._lives: list[asyncio.Future[None]] = []
        self._broken = self._ended = False

    @property
    def ranks(self) -> int:
        """Number of ranks, fewer than `learner.ranks` after a recovery without room for all."""
        return len(self.handles)

    @property
    def nodes(self) -> list[str]:
        """Ids of the ranks' nodes; empty before they are up and after their end."""
        return [] if self._ended else [process.node for process in self.processes]

    # -- calls -------------------------------------------------------------------------------------------------------

    async def call(self, row: Call[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Makes a call. `Died`, `Failed`, `Refused`, or TimeoutError, each with the ranks' numbers."""
        if row.signs is Signs.ANSWERS_BEFORE:
            await self._answered(row.method)
        if row.folder is not None and any(one.node != self.transport.own_node()[0] for one in self.processes):
            return await self._with_far_folder(row, arguments)
        ranks = self.handles if row.all_ranks else self.handles[:1]
        calls = [getattr(handle, row.method).remote(*arguments, **named) for handle in ranks]
        return row.reduce(await self._results(row, dict(enumerate(calls)), arguments))

    async def start(self, resumes: bool = False) -> None:
        """Forms the process group and loads the model on every rank; `resumes`: the caller loads a checkpoint next.
        `Failed` if ranks cannot connect to one another; it names them with their addresses."""
        self.processes = await self.call(IDENTIFY)
        endpoints = await self.call(OPEN_ENDPOINT, len({process.node for process in self.processes}) == 1)
        unreached = await self.call(UNREACHABLE, endpoints)
        if words := failures_in_words(endpoints, dict(enumerate(unreached))):
            raise Failed(words, ConnectionError(words))
        await self.call(START, endpoints, resumes)

    async def progress(self, timeout_s: float) -> list[Progress | None]:
        """The progress of each rank, also while another call is under way; None for a rank that does not answer within
        `timeout_s`. `Died` if a rank's process is gone."""
        asked = [asyncio.ensure_future(answer(self.transport, handle.progress.remote())) for handle in self.handles]
        try:
            await asyncio.wait(asked, timeout=timeout_s)
            for rank, question in enumerate(asked):
                if question.done() and isinstance(error := question.exception(), Died):
                    raise Died(f"learner rank {rank}{self._site(rank)} died: {error}") from error
            return [question.result() if question.done() else None for question in asked]
        finally:
            _drop(asked)

    async def lost(self) -> NoReturn:
        """Waits until a rank's process is gone, then raises `Died`; the ranks have been up."""
        self._lives = self._lives or [life(self.transport, handle) for handle in self.handles]
        await asyncio.wait(self._lives, return_when=asyncio.FIRST_COMPLETED)
        rank = next(rank for rank, ended in enumerate(self._lives) if ended.done())
        raise Died(f"learner rank {rank}{self._site(rank)} died: {self._lives[rank].exception()}")

    async def stop(self) -> None:
        """Lets the ranks leave the process group, unless one of them is lost, and ends them in any case."""
        try:
            if not self._broken:
                await self.call(STOP_RANKS)
        except (ActorError, TimeoutError) as error:
            log.info("the ranks did not leave their process group: %s", error)
        self.kill()

    def kill(self) -> None:
        """Ends every rank at once in any state, without waiting for the end. A second call does nothing."""
        self._ended = True
        for handle in self.handles:
            self.transport.kill(handle)
        self.release()

    # -- results -----------------------------------------------------------------------------------------------------

    async def _results(self, row: Call[..., Any], calls: Mapping[int, Any], arguments: Sequence[Any]) -> list[Any]:
        """Results by rank of calls that were just made. The first failure ends the wait: the other ranks may be stuck
        in a collective."""
        assert row.bound is not None, "every call to the learner has a bound of its own"
        answers = {rank: asyncio.ensure_future(answer(self.transport, call)) for rank, call in calls.items()}
        try:
            await self._finished(row, answers, row.bound(self.config, *arguments))
            return [answers[rank].result() for rank in sorted(answers)]
        except (Died, TimeoutError):
            self._broken = True
            raise
        finally:
            if self.watch is not None:
                self.watch.forget(LEARNER)
            _drop(answers.values())

    async def _finished(self, row: Call[..., Any], answers: Mapping[int, asyncio.Future[Any]], bound_s: float) -> None:
        """Returns once every rank has answered; raises the error that reports the first failure."""
        deadline = loop_time() + bound_s + GRACE_S * row.guarded
        watch = self._signs_of(row)
        waiting = set(answers.values())
        while waiting:
            pause = min(poll_s(self.config.learner.hung_after_s), deadline - loop_time())
            done, waiting = await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_EXCEPTION)
            if any(answer.exception() for answer in done):
                raise await self._named(row.method, answers)
            if waiting and loop_time() >= deadline:
                late = ", ".join(f"{rank}{self._site(rank)}" for rank, one in answers.items() if not one.done())
                raise TimeoutError(f"learner rank {late} did not finish {row.method} {row.within(bound_s)}")
            if waiting and watch is not None and (hung := await self._look(waiting, watch)):
                raise TimeoutError(f"{row.method}: {hung}")

    async def _named(self, method: str, answers: Mapping[int, asyncio.Future[Any]]) -> BaseException:
        """The error to raise: bad input unchanged, else one that names the rank that died or failed, and those that
        have not answered either."""
        failures = _failures(answers)
        waiting = [one for one in answers.values() if not one.done()]
        first = next(iter(failures.values()))
        if waiting and not isinstance(first, Died):
            await asyncio.wait(waiting, timeout=GRACE_S)
        if isinstance(first, Refused) or not isinstance(first, ActorError):
            return first
        failures = failures | _failures(answers)
        rank = next((rank for rank, error in failures.items() if isinstance(error, Died)), next(iter(failures)))
        error = failures[rank]
        silent = ", ".join(f"{other}{self._site(other)}" for other, one in answers.items() if not one.done())
        unheard = f"; without an answer within another {GRACE_S:g} s: rank {silent}" if silent else ""
        self._broken = True
        if isinstance(error, Died):
            return Died(
                f"learner rank {rank} died in {method}{self._site(rank)}: {error}{'' if error is first else unheard}"
            )
        cause = error.cause if isinstance(error, Failed) else error
        return Failed(f"learner rank {rank} failed in {method}{self._site(rank)}: {cause}{unheard}", cause)

    def _site(self, rank: int) -> str:
        """The address of a rank, and of its caller, for a message; empty if they share a node."""
        node, address = self.transport.own_node() if self.processes else ("", "")
        if not self.processes or self.processes[rank].node == node:
            return ""
        return f" (on {self.processes[rank].address}, called from {address})"

    # -- signs that a call is not hung -------------------------------------------------------------------------------

    def _signs_of(self, row: Call[..., Any]) -> ProgressWatch | None:
        """The watch of a call's progress; None if only its bound counts."""
        if row.signs not in (Signs.MARKS, Signs.ANSWERS):
            return None
        return self._progress_watch(row.signs is Signs.ANSWERS or self.config.learner.compile)

    def _progress_watch(self, answers_count: bool) -> ProgressWatch:
        patience = Patience(self.config.learner.hung_after_s, "micro-batch", "learner.hung_after_s")
        names = [f"learner rank {rank}{self._site(rank)}" for rank in range(self.ranks)]
        return ProgressWatch(names, patience, loop_time(), answers_count)

    async def _look(self, waiting: set[asyncio.Future[Any]], watch: ProgressWatch) -> str | None:
        """Asks the ranks for their progress, unless an answer comes before; the message if the call hangs."""
        question = asyncio.ensure_future(self._ask(watch))
        await asyncio.wait({*waiting, question}, return_when=asyncio.FIRST_COMPLETED)
        if not question.done():
            question.cancel()
            return None
        question.result()
        return watch.hung(loop_time())

    async def _ask(self, watch: ProgressWatch) -> list[Progress | None]:
        """Asks the ranks for their progress, which `watch` takes."""
        found = await self.progress(self.config.learner.hung_after_s / ANSWERS)
        watch.see(found, loop_time())
        if self.watch is not None:
            self.watch.see(LEARNER, watch, loop_time())
        return found

    async def _answered(self, method: str) -> None:
        """Returns once every rank has answered. Detects a rank that froze since its last call; the call itself would
        only time out. `method`: the call that follows."""
        watch = self._progress_watch(True)
        try:
            while None in await self._ask(watch):
                if hung := watch.hung(loop_time()):
                    raise TimeoutError(f"{method}: {hung}")
        finally:
            if self.watch is not None:
                self.watch.forget(LEARNER)

    # -- folders of the caller's disk --------------------------------------------------------------------------------

    async def _with_far_folder(self, row: Call[..., Any], arguments: Sequence[Any]) -> Any:
        """As `call`, where a rank may not see the folder, the first argument."""
        assert row.bound is not None
        path, *others = arguments
        ranks, bound_s = _Blocking(self, asyncio.get_running_loop()), row.bound(self.config)
        try:
            if row.folder is Folder.WRITTEN:
                method = row.apart or row.method
                write = (ranks, [process.node for process in self.processes], path, method, bound_s, *others)
                return row.reduce(await asyncio.to_thread(staging.write, *write))
            folders = await asyncio.to_thread(self._readable, ranks, path)
        except ValueError as error:  # a disk that refuses
            raise Refused(str(error), error) from error
        try:
            return row.reduce(await self.each(row.method, bound_s, [(folder, *others) for folder in folders]))
        finally:
            await self.notify("forget", next((folder for folder in folders if folder is not path), path))

    def _readable(self, ranks: _Blocking, path: Path) -> list[Any]:
        """The folder for each rank: its path if the rank sees this disk, else through the object store."""
        try:
            sees = staging.seen(ranks, self.ranks, path.parent)
        except TimeoutError:  # a late rank, which the error names
            raise
        except OSError:  # a disk that takes no mark, such as one that is only read
            sees = [False] * self.ranks
        if all(sees) or not path.is_dir():
            return [path] * self.ranks
        offered = self.transport.offer(path)
        return [path if own else offered for own in sees]

    async def each(self, method: str, timeout_s: float, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank, each with its own arguments; the results by rank."""
        calls = [getattr(h, method).remote(*own) for h, own in zip(self.handles, arguments, strict=True)]
        return await self._results(_adhoc(method, timeout_s), dict(enumerate(calls)), ())

    async def ask(self, rank: int, method: str, timeout_s: float, *arguments: Any) -> Any:
        """Calls a method of one rank."""
        call = getattr(self.handles[rank], method).remote(*arguments)
        return (await self._results(_adhoc(method, timeout_s), {rank: call}, ()))[0]

    async def notify(self, method: str, *arguments: Any) -> None:
        """Calls a method of every rank; waits at most `GRACE_S`, and passes over ranks that do not answer."""
        calls = [getattr(handle, method).remote(*arguments) for handle in self.handles]
        answers = [asyncio.ensure_future(answer(self.transport, call)) for call in calls]
        await asyncio.wait(answers, timeout=GRACE_S)
        _drop(answers)


class _Blocking:
    """The ranks for `learner.staging`, which works in a thread of its own, because it reads and writes files."""

    def __init__(self, client: LearnerClient, loop: asyncio.AbstractEventLoop) -> None:
        self.client, self.loop = client, loop

    def each(self, method: str, timeout_s: float, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """As `LearnerClient.each`."""
        return self._wait(self.client.each(method, timeout_s, arguments))

    def ask(self, rank: int, method: str, timeout_s: float, *arguments: Any) -> Any:
        """As `LearnerClient.ask`."""
        return self._wait(self.client.ask(rank, method, timeout_s, *arguments))

    def notify(self, method: str, *arguments: Any) -> None:
        """As `LearnerClient.notify`."""
        self._wait(self.client.notify(method, *arguments))

    def _wait(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result()


def _adhoc(method: str, timeout_s: float) -> Call[..., Any]:
    return Call(method, constant(timeout_s), guarded=True, all_ranks=True, reduce=every)


def _failures(answers: Mapping[int, asyncio.Future[Any]]) -> dict[int, BaseException]:
    """The error of each rank that has failed."""
    found = {rank: one.exception() for rank, one in answers.items() if one.done()}
    return {rank: error for rank, error in found.items() if error is not None}


def _drop(calls: Any) -> None:
    """Waits no longer for calls; one may have failed meanwhile."""
    for call in calls:
        if not call.cancel() and not call.cancelled():
            call.exception()
