"""Supervision on fakes: who is noticed, how soon, who is named, and that a slow actor is never taken for a hung one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import benchmarks.faults
from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.control.membership import MemberState, at_work
from squelch.cluster.control.scaling import Kind, Request
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import SILENCE, Supervisor, Watchdog
from squelch.kit.process.progress_marks import Progress
from tests.fakes import clock
from tests.fakes.actors import FakeActors, World
from tests.fakes.run import settings as configured
from tests.fakes.transport import behind

HALF_AN_HOUR_S = 1800.0
DELAYS = Path(benchmarks.faults.__file__).parent / "delays.json"
"""Recorded on a machine under load, by a benchmark that stood beside it up to commit cefe9a3c."""


class Seen:
    """Events with their time and cause, and the largest value of each gauge by actor."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str, str]] = []
        self.silence: dict[str, float] = {}

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        self.events.append((asyncio.get_running_loop().time(), actor, name, facts.get("cause", "")))

    def show(self, name: str, value: float, actor: str) -> None:
        assert name == SILENCE
        self.silence[actor] = max(self.silence.get(actor, 0.0), value)


def supervised(
    tmp_path: Path, work: Callable[[Fleet], Awaitable[Any]], *words: str, before: Callable[[Fleet], None] = lambda _: 0
) -> Seen:
    """Starts a fleet, and does the work while the fleet is supervised."""
    seen = Seen()

    async def main() -> None:
        config = configured(tmp_path, *words)
        fleet = Fleet(config, FakeActors(World(config, pace=lambda kind: 0.0)), seen.event)
        try:
            await fleet.start()
            before(fleet)
            await Supervisor(fleet, Watchdog(seen.event, seen.show)).beside(work(fleet))
        finally:
            await fleet.stop()

    clock.run(main())
    return seen


def actor_of(fleet: Fleet, name: str) -> Any:
    services = {"filter": fleet.filter, "scorer": fleet.scorer}
    member = fleet.players.current(name) or fleet.workers.current(name)
    return behind(services[name] if member is None else member.actor)


@pytest.mark.parametrize("name", ["env-0", "rollout-1", "filter", "scorer"])
def test_an_idle_actor_that_dies_is_noticed_at_once(tmp_path: Path, name: str) -> None:
    async def kill(fleet: Fleet) -> None:
        await asyncio.sleep(100.0)
        actor_of(fleet, name).kill()
        await asyncio.sleep(1.0)

    events = supervised(tmp_path, kill).events
    assert [(when, actor) for when, actor, what, _ in events if what != "joined"] == [(100.0, name)]


@pytest.mark.parametrize("name", ["env-0", "rollout-1", "filter", "scorer"])
def test_an_actor_that_freezes_is_named_at_a_fifth_of_the_limit_and_ended_at_the_limit(
    tmp_path: Path, name: str
) -> None:
    async def freeze(fleet: Fleet) -> None:
        await asyncio.sleep(100.0)
        frozen = actor_of(fleet, name)
        frozen.frozen = True
        await asyncio.sleep(80.0)
        assert not frozen.alive

    seen = supervised(tmp_path, freeze)
    ((late_s, who, late, said), (ended_s, actor, _, cause)) = seen.events[:2]
    assert (who, late, actor) == (name, "late", name) and 110 <= late_s <= 118 and 155 <= ended_s <= 170
    assert said.endswith("it counts as hung after 60 s") and cause.endswith("(cluster.hung_after_s)")
    assert 60 <= seen.silence[name] < 75 and all(value <= 15 for who, value in seen.silence.items() if who != name)


def test_a_driver_that_was_stopped_for_minutes_takes_no_actor_for_hung_when_it_goes_on(tmp_path: Path) -> None:
    async def stop(fleet: Fleet) -> None:
        for name in ("env-0", "rollout-1", "scorer"):
            actor = actor_of(fleet, name)

            async def progress(answer: Callable[[], Awaitable[Progress]] = actor.progress) -> Progress:
                for _ in range(9):
                    await asyncio.sleep(0.5)
                return await answer()

            actor.progress = progress
        loop = asyncio.get_running_loop()
        assert isinstance(loop, clock.VirtualLoop)
        for _ in range(3):
            await asyncio.sleep(31.7)
            loop.now += 600.0  # Ctrl-Z, and `fg` ten minutes later
        await asyncio.sleep(30.0)

    assert supervised(tmp_path, stop).events == []


def test_a_worker_whose_engine_has_died_says_so_itself(tmp_path: Path) -> None:
    async def engine_dies(fleet: Fleet) -> None:
        async def progress() -> Progress:
            raise Failed("a long trace", RuntimeError("rollout-0: its vLLM engine has died"))

        actor_of(fleet, "rollout-0").progress = progress
        await asyncio.sleep(20.0)

    (_, actor, name, cause), *_ = supervised(tmp_path, engine_dies).events
    assert (actor, name, cause) == ("rollout-0", "restart", "rollout-0: its vLLM engine has died")


def test_a_worker_that_stops_because_it_was_asked_to_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its engine ends first, and the worker says so, on a machine under load for many seconds."""

    async def drain(fleet: Fleet) -> None:
        worker = actor_of(fleet, "rollout-1")

        async def progress() -> Progress:
            raise Failed("a long trace", RuntimeError("rollout-1: its vLLM engine has died"))

        async def stop() -> None:
            worker.progress = progress
            await asyncio.sleep(25.0)

        worker.stop = stop
        fleet.worker_pool.scale(Request(Kind.ROLLOUT, 1))
        await asyncio.sleep(40.0)
        member = fleet.workers.current("rollout-1")
        assert member is not None and member.state is MemberState.RETIRED

    events = supervised(tmp_path, drain).events
    assert [(actor, name) for _, actor, name, _ in events] == [("fleet", "scale"), ("rollout-1", "left")]


def test_a_worker_that_dies_while_it_drains_has_left_all_the_same(tmp_path: Path) -> None:
    async def die(fleet: Fleet) -> None:
        member = fleet.workers.current("rollout-1")
        assert member is not None
        call = asyncio.ensure_future(at_work(asyncio.sleep(30.0), member))
        await asyncio.sleep(0)
        fleet.worker_pool.scale(Request(Kind.ROLLOUT, 1))
        actor_of(fleet, "rollout-1").kill()
        await call

    events = supervised(tmp_path, die).events
    assert [(actor, name) for _, actor, name, _ in events] == [("fleet", "scale"), ("rollout-1", "left")]


def test_a_budget_that_supervision_uses_up_ends_the_work_with_the_cause(tmp_path: Path) -> None:
    async def freeze_all(fleet: Fleet) -> None:
        for name in ("rollout-0", "rollout-1"):
            actor_of(fleet, name).frozen = True
        await asyncio.sleep(HALF_AN_HOUR_S)

    cause = r"^rollout-0 died 1 times within .*last cause: rollout-0 did not answer for 6\d s \(cluster.hung_after_s\)$"
    with pytest.raises(RuntimeError, match=cause):
        supervised(tmp_path, freeze_all, "cluster.max_restarts=0")


def test_an_environment_call_may_take_its_own_time_out_before_its_actor_counts_as_hung(tmp_path: Path) -> None:
    async def freeze(fleet: Fleet) -> None:
        await asyncio.sleep(100.0)
        frozen = actor_of(fleet, "env-0")
        frozen.frozen = True
        await asyncio.sleep(95.0)
        assert frozen.alive
        await asyncio.sleep(30.0)
        assert not frozen.alive

    supervised(tmp_path, freeze, "environment_actor.step_timeout_s=90", "environment_actor.episode_timeout_s=900")


class Loaded:
    """An actor's progress on a machine under load: answers and marks come late by recorded delays."""

    def __init__(self, chance: random.Random, answers: list[float], marks: list[float]) -> None:
        self.chance, self.answers, self.marks = chance, answers, marks
        self.count, self.next = 1, 0.0

    async def progress(self) -> Progress:
        await asyncio.sleep(self.chance.choice(self.answers))
        now = asyncio.get_running_loop().time()
        while self.next <= now:
            self.count, self.next = self.count + 1, self.next + self.chance.choice(self.marks)
        return Progress(self.count, sorted(self.marks)[len(self.marks) // 2])


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_no_actor_is_taken_for_dead_in_half_an_hour_on_a_machine_under_load(tmp_path: Path, slow: float) -> None:
    """`slow`: how much slower than when the delays were recorded, with most of the longest among them."""
    chance, recorded = random.Random(0), json.loads(DELAYS.read_text())

    def load(fleet: Fleet) -> None:
        for name in ("env-0", "env-1", "rollout-0", "rollout-1", "filter", "scorer"):
            delays = [[slow * s for s in recorded[kind]] for kind in ("answer_s", "mark_s")]
            actor_of(fleet, name).progress = Loaded(chance, *delays).progress

    async def wait(_: Fleet) -> None:
        await asyncio.sleep(HALF_AN_HOUR_S)

    events = supervised(tmp_path, wait, "cluster.start_timeout_s=300", before=load).events
    assert {name for _, _, name, _ in events} <= {"late"}, "named at most, and not ended"
