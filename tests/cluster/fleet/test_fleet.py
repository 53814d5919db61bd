"""How the fleet takes in the successor of a dead rollout worker, on fakes."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from cluster.config import load
from cluster.fleet.fleet import Fleet


class Worker:
    """A rollout worker whose start succeeds or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.ready = SimpleNamespace(remote=self._ready)

    async def _ready(self) -> None:
        if self.failure is not None:
            raise self.failure


class Watched(Fleet):
    """A fleet of two rollout workers, `spares` to come in turn; `killed` and `told` note what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_restarts: int, *spares: Worker) -> None:
        self.told: list[tuple[str, str]] = []
        self.killed: list[Worker] = []
        self.spares = list(spares)
        config = load("frozenlake", [f"cluster.max_restarts={max_restarts}"])
        super().__init__(config, Path("policy"), lambda actor, name, *_, **__: self.told.append((actor, name)))
        self.workers = {"rollout-0": Worker(), "rollout-1": Worker()}
        monkeypatch.setattr("ray.kill", self.killed.append)

    def _new_worker(self, name: str) -> Any:
        return self.spares.pop(0)

    def lose(self, name: str) -> None:
        self.lose_worker(name, self.workers[name], "killed")

    async def settle(self) -> None:
        """Until no successor is on its way."""
        while pending := [join for join in self._joins.values() if not join.done()]:
            await asyncio.wait(pending)


def test_a_successor_that_does_not_join_is_ended_and_told_and_another_is_tried(monkeypatch) -> None:
    broken, sound = Worker(RayActorError()), Worker()
    fleet = Watched(monkeypatch, 2, broken, sound)
    dead = fleet.workers["rollout-0"]

    async def lose() -> None:
        fleet.lose("rollout-0")
        await asyncio.wait_for(fleet.settle(), 5)

    asyncio.run(lose())
    assert fleet.workers["rollout-0"] is sound and fleet.killed == [dead, broken]
    assert fleet.told == [("rollout-0", event) for event in ("restart", "join_failed", "restart")]


def test_an_old_failure_ends_no_run_whose_other_successor_is_on_its_way(monkeypatch) -> None:
    sound = Worker()
    fleet = Watched(monkeypatch, 1, Worker(RayActorError()), sound)

    async def lose_both() -> None:
        fleet.lose("rollout-0")
        await asyncio.wait_for(fleet.settle(), 5)
        assert list(fleet.workers) == ["rollout-1"], "no restart is left: the run goes on with the other"
        fleet.lose("rollout-1")
        await asyncio.wait_for(fleet.need_worker(), 5)

    asyncio.run(lose_both())
    assert fleet.workers == {"rollout-1": sound}


def test_without_a_worker_or_a_successor_the_run_ends_with_the_cause(monkeypatch) -> None:
    fleet = Watched(monkeypatch, 1, Worker(RuntimeError("no port is free")), Worker(RuntimeError("no port is free")))

    async def lose_both() -> None:
        fleet.lose("rollout-0")
        fleet.lose("rollout-1")
        await asyncio.wait_for(fleet.need_worker(), 5)

    with pytest.raises(RuntimeError, match=r"^no rollout worker is left, and none is starting; .*no port is free"):
        asyncio.run(lose_both())


def test_a_successor_that_dies_while_it_is_introduced_leaves_the_join_after_it_alone(monkeypatch) -> None:
    second, third = Worker(), Worker()
    fleet = Watched(monkeypatch, 3, second, third)
    introduced: list[Worker] = []

    async def introduce() -> None:
        introduced.append(fleet.workers["rollout-0"])
        if len(introduced) == 1:
            fleet.lose("rollout-0")
            raise RuntimeError("set_workers: env-0 failed")

    monkeypatch.setattr(fleet, "_introduce_workers", introduce)

    async def lose() -> None:
        fleet.lose("rollout-0")
        await asyncio.wait_for(fleet.settle(), 5)

    asyncio.run(lose())
    assert introduced == [second, third] and fleet.workers["rollout-0"] is third
    assert fleet.restarts["rollout-0"] == 2 and third not in fleet.killed
