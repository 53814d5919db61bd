"""The two ways out of the environment actor's event loop: batched generation and batched environment steps."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play import step_pool
from squelch.actors.play.generation import GenerationClient, GenerationFailed
from squelch.actors.play.step_pool import CallFailed, StepPool
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, np.arange(3, dtype=np.int32), 4, 1.0, 1)


def named(request_id: str) -> str:
    """The id that the caller gave to a request."""
    return request_id.partition("#")[0]


class Worker:
    """A port to a worker that finishes what it is given at the next collect; counts calls."""

    def __init__(self, deaf: bool = False) -> None:
        self.submitted: list[list[str]] = []
        self.aborted: list[str] = []
        self.collects = 0
        self.most_collects = 0
        self.deaf = deaf
        self.dead: Exception | None = None
        self._ready: list[Completion] = []

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        if self.dead:
            raise self.dead
        self.submitted.append([named(one.request_id) for one in requests])
        none = np.zeros(1)
        self._ready += [Completion(one.request_id, none, none, "stop", 0, 0) for one in requests]

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        self.collects += 1
        self.most_collects = max(self.most_collects, self.collects)
        try:
            await asyncio.sleep(0.01 if not self.deaf else 30)
        finally:
            self.collects -= 1
        if self.dead:
            raise self.dead
        ready, self._ready = self._ready, []
        return ready

    async def abort(self, client: str, request_ids: list[str]) -> None:
        self.aborted += [named(one) for one in request_ids]
        self._ready = [one for one in self._ready if one.request_id not in request_ids]


async def until(holds):
    """Lets the loop run until something holds; at most a minute."""
    async with asyncio.timeout(180):
        while not holds():
            await asyncio.sleep(0.001)


async def gather(client: GenerationClient, names: list[str], worker: str = "w"):
    return await asyncio.gather(*(client.generate(worker, request(name)) for name in names), return_exceptions=True)


def test_requests_of_one_tick_leave_in_one_call_a_worker():
    workers = {"w": Worker(), "v": Worker()}
    client = GenerationClient("env-0", workers.__getitem__)

    async def two_rounds():
        for _ in range(2):
            await asyncio.gather(gather(client, ["a", "b", "c"], "w"), gather(client, ["d", "e"], "v"))

    asyncio.run(two_rounds())
    assert workers["w"].submitted == [["a", "b", "c"]] * 2 and workers["v"].submitted == [["d", "e"]] * 2
    assert workers["w"].most_collects == 1


def test_a_worker_that_dies_fails_every_request_by_name_and_serves_again_when_replaced():
    workers = {"w": Worker()}
    client = GenerationClient("env-0", lambda name: workers[name])

    async def die_and_come_back():
        workers["w"].dead = RuntimeError("Traceback ...\n  File x\nRuntimeError: its vLLM engine has died")
        failed = await gather(client, ["a", "b"])
        workers["w"] = Worker()
        return failed, await gather(client, ["c"])

    failed, served = asyncio.run(die_and_come_back())
    assert all(isinstance(one, GenerationFailed) for one in failed)
    assert str(failed[0]) == "rollout worker w: RuntimeError: its vLLM engine has died"
    assert named(served[0].request_id) == "c"


def test_a_worker_that_does_not_answer_fails_its_requests_within_the_bound():
    client = GenerationClient("env-0", {"w": Worker(deaf=True)}.__getitem__, poll_s=0.1, grace_s=0.2)
    (failed,) = asyncio.run(gather(client, ["a"]))
    assert str(failed) == "rollout worker w: did not answer a collect call within 0.3 s"


def test_an_unknown_worker_is_a_failure_and_not_a_wait():
    def port(name: str) -> Worker:
        raise GenerationFailed(f"{name} is not known here")

    (failed,) = asyncio.run(gather(GenerationClient("env-0", port), ["a"]))
    assert "w is not known here" in str(failed)


def test_a_completion_that_carries_an_error_is_a_failure():
    class Refuses(Worker):
        async def collect(self, client, timeout_s):
            return [
                Completion(c.request_id, c.token_ids, c.log_probs, "error", 0, 0, "too long")
                for c in await super().collect(client, timeout_s)
            ]

    (failed,) = asyncio.run(gather(GenerationClient("env-0", {"w": Refuses()}.__getitem__), ["a"]))
    assert str(failed) == "rollout worker w: too long"


def test_giving_up_a_request_tells_the_worker():
    worker = Worker(deaf=True)
    client = GenerationClient("env-0", {"w": worker}.__getitem__)

    async def give_up():
        task = asyncio.create_task(client.generate("w", request("a")))
        await until(lambda: worker.submitted)
        task.cancel()
        await until(lambda: worker.aborted)

    asyncio.run(give_up())
    assert worker.submitted == [["a"]] and worker.aborted == ["a"]


def test_giving_up_a_request_leaves_a_later_one_of_the_same_name_alone():
    worker = Worker()
    client = GenerationClient("env-0", {"w": worker}.__getitem__)

    async def play_again():
        old = asyncio.create_task(client.generate("w", request("a")))
        await until(lambda: worker.submitted)
        new = asyncio.create_task(client.generate("w", request("a")))
        old.cancel()
        return await asyncio.wait_for(new, 60)

    assert named(asyncio.run(play_again()).request_id) == "a"
    assert worker.submitted == [["a"], ["a"]] and worker.aborted == ["a"]


def test_what_answers_a_call_that_was_given_up_takes_nothing_from_later_requests():
    """A worker that was frozen answers, once it runs again, also the collect calls that nobody waits for any more."""
    late: list[asyncio.Task[list[Completion]]] = []

    class Freezes(Worker):
        """Keeps completions by client, and its first collect call stays with it after its caller has gone."""

        def __init__(self) -> None:
            super().__init__()
            self.finished: dict[str, list[Completion]] = {}
            self.runs = asyncio.Event()

        async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
            self.finished.setdefault(client, [])
            if self.runs.is_set():
                await super().submit(client, requests)
                asyncio.get_running_loop().call_later(0.02, lambda: self.finished[client].extend(self._ready))

        async def collect(self, client: str, timeout_s: float) -> list[Completion]:
            late.append(asyncio.create_task(self._take(client)))
            return await asyncio.shield(late[-1])

        async def _take(self, client: str) -> list[Completion]:
            await self.runs.wait()
            while not self.finished[client]:
                await asyncio.sleep(0.001)
            taken, self.finished[client] = self.finished[client], []
            return taken

    async def freeze_and_go_on():
        worker = Freezes()
        client = GenerationClient("env-0", {"w": worker}.__getitem__, poll_s=0.05, grace_s=0.05)
        (failed,) = await gather(client, ["a"])
        worker.runs.set()
        client._grace_s = 20.0  # a busy machine may hold up this call
        (served,) = await gather(client, ["b"])
        late[0].cancel()
        return failed, served, worker.aborted

    failed, served, aborted = asyncio.run(freeze_and_go_on())
    assert "did not answer a collect call" in str(failed) and named(served.request_id) == "b"
    assert aborted == ["a"]


def test_requests_that_a_frozen_worker_did_not_take_in_time_are_given_up_there():
    """It takes them once it runs again, and would sample turns that nobody waits for."""

    class Frozen(Worker):
        async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
            await super().submit(client, requests)
            await asyncio.sleep(30)

    async def submit() -> Worker:
        worker = Frozen()
        client = GenerationClient("env-0", {"w": worker}.__getitem__, poll_s=20.0, grace_s=0.05)
        worker.deaf = True
        failed = await gather(client, ["a", "b"])
        assert all("did not answer a submit call" in str(error) for error in failed)
        async with asyncio.timeout(180):
            while not worker.aborted:
                await asyncio.sleep(0.01)
        return worker

    assert asyncio.run(submit()).aborted == ["a", "b"]


# --- step pool ---


def run(pool: StepPool, *functions, clock: MovedClock | None = None):
    async def together():
        async with asyncio.timeout(180):
            return await asyncio.gather(*(pool.run(function) for function in functions), return_exceptions=True)

    try:
        return (clock.run if clock else asyncio.run)(together())
    finally:
        pool.close()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_call_gets_its_own_value(num_threads):
    assert run(StepPool(60.0, num_threads), *(lambda i=i: i * i for i in range(50))) == [i * i for i in range(50)]


def test_a_call_that_raises_anything_reports_it_and_the_others_go_on():
    def raises(error):
        raise error

    values = run(StepPool(60.0), lambda: 1, lambda: raises(StopIteration(4)), lambda: raises(SystemExit(3)), lambda: 2)
    assert [values[0], values[3]] == [1, 2]
    assert [str(one) for one in values[1:3]] == ["StopIteration: 4", "SystemExit: 3"]
    assert all(isinstance(one, CallFailed) for one in values[1:3])


def test_a_hung_call_is_given_up_and_those_before_and_behind_it_are_not(monkeypatch):
    clock, release = MovedClock(monkeypatch, step_pool), threading.Event()
    pool = StepPool(BOUND_S)

    def hang() -> None:
        clock.move(PAST_IT_S)
        release.wait(60)

    try:
        values = run(pool, lambda: 1, hang, lambda: 2, hang, lambda: 3, clock=clock)
    finally:
        release.set()
    assert [values[0], values[2], values[4]] == [1, 2, 3]
    assert [type(values[1]), type(values[3])] == [TimeoutError, TimeoutError] and pool.num_abandoned == 2


def test_slow_neighbours_are_not_a_time_out(monkeypatch):
    clock, pool = MovedClock(monkeypatch, step_pool), StepPool(BOUND_S)
    assert run(pool, *(lambda i=i: clock.move(0.6 * BOUND_S) or i for i in range(6)), clock=clock) == list(range(6))
    assert pool.num_abandoned == 0


@pytest.mark.parametrize("num_threads", [1, 3])
def test_each_call_that_ends_is_a_mark_also_while_its_neighbours_still_run(num_threads):
    """Otherwise an actor whose calls are each in time counts as hung while it works through those of one tick."""
    done, release = threading.Semaphore(0), threading.Event()
    pool = StepPool(20.0, num_threads)

    async def look() -> tuple[int, int]:
        calls = [asyncio.ensure_future(pool.run(done.release)) for _ in range(2 * num_threads)]
        calls += [asyncio.ensure_future(pool.run(lambda: release.wait(20))) for _ in range(num_threads)]
        for _ in range(2 * num_threads):
            assert await asyncio.to_thread(done.acquire, timeout=180)
        async with asyncio.timeout(180):
            while (before := pool.progress()).marks < 2 * num_threads:
                await asyncio.sleep(0.01)
        assert before.busy
        release.set()
        await asyncio.gather(*calls)
        return before.marks, pool.progress().marks

    try:
        assert asyncio.run(look()) == (2 * num_threads, 3 * num_threads)
    finally:
        release.set()
        pool.close()


def test_a_call_whose_caller_has_gone_is_not_made():
    """The calls of a trajectory that ran out of time would hold up those of others, one after another."""
    made, release = [], threading.Event()
    pool = StepPool(20.0)

    async def give_up() -> str:
        first = asyncio.ensure_future(pool.run(lambda: release.wait(20)))
        gone = asyncio.ensure_future(pool.run(lambda: made.append("gone")))
        last = asyncio.ensure_future(pool.run(lambda: "last"))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0)
        release.set()
        await first
        return await last

    try:
        assert asyncio.run(give_up()) == "last" and made == []
    finally:
        release.set()
        pool.close()


def test_a_call_that_is_given_up_is_one_mark():
    release = threading.Event()
    pool = StepPool(0.1)
    try:
        run(pool, lambda: release.wait(20), lambda: 1)
        assert pool.progress().marks == 2
    finally:
        release.set()


def test_a_successor_of_a_dead_actor_gets_no_completion_of_its_predecessor():
    """Found by a reviewer: both sent the id `T/0/0#1`, and the worker answered with the tokens of another prompt."""
    ids: list[tuple[str, str]] = []

    class Listens(Worker):
        async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
            ids.extend((client, one.request_id) for one in requests)
            await super().submit(client, requests)

    worker = Listens()
    for _ in range(2):
        asyncio.run(gather(GenerationClient("env-0", {"w": worker}.__getitem__), ["T/0/0"]))
    (first, one), (second, other) = ids
    assert first != second and one != other and named(one) == named(other) == "T/0/0"
