"""What is exported between two steps is the fleet's, the ledger's and the disk's present state; who left, leaves."""

import asyncio
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.cluster.config import load
from squelch.cluster.control.ledger import DROPPED, IN_FLIGHT, Ledger
from squelch.cluster.control.membership import WORKER_MOVES, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.fleet.fleet import UP
from squelch.cluster.loop import heartbeat
from squelch.cluster.loop.heartbeat import Heartbeat, beating, limits
from squelch.cluster.metrics import REGISTRY
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.series import MetricStore
from squelch.kit.metrics.settings import RecorderConfig

SINCE, FREE = "squelch_oldest_ticket_timestamp_seconds", "squelch_disk_free_bytes"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(RecorderConfig(port=0), REGISTRY)


def store(recorder: Recorder) -> MetricStore:
    return recorder._store


def two_workers() -> Membership:
    workers = Membership("rollout worker", WORKER_MOVES)
    for name in ("rollout-0", "rollout-1"):
        workers.join(name, None)
    return workers


def made(workers: Membership, recorder: Recorder, folder: Path, ledger: Ledger | None = None) -> Heartbeat:
    fleet = SimpleNamespace(members=workers.members, up=lambda: ups(workers))
    return Heartbeat(fleet, ledger or Ledger(), folder, recorder)


def ups(workers: Membership) -> dict[str, bool]:
    return {member.name: member.state in UP for member in workers.members() if member.state is not State.RETIRED}


def states(recorder: Recorder) -> dict[str, str]:
    """The state of each actor; exactly one of its series is 1."""
    series = store(recorder).scalars["squelch_actor_state"]
    assert {name for name, _ in series} == {name for (name, _), value in series.items() if value}
    return {name: state for (name, state), value in series.items() if value == 1}


def test_each_member_is_in_one_state(recorder: Recorder, tmp_path: Path) -> None:
    workers = two_workers()
    heartbeat = made(workers, recorder, tmp_path)
    heartbeat.beat()
    assert states(recorder) == {"rollout-0": "starting", "rollout-1": "starting"}
    for state in (State.STALE, State.HEALTHY):
        workers.move(workers.current("rollout-0"), state)
    heartbeat.beat()
    assert states(recorder) == {"rollout-0": "healthy", "rollout-1": "starting"}


def test_between_two_steps_an_actor_is_up_or_down_and_one_that_is_coming_is_neither(
    recorder: Recorder, tmp_path: Path
) -> None:
    workers = two_workers()
    heartbeat = made(workers, recorder, tmp_path)
    for state in (State.STALE, State.HEALTHY):
        workers.move(workers.current("rollout-0"), state)
    heartbeat.beat()
    assert store(recorder).scalars["squelch_actor_up"] == {("rollout-0",): 1.0}
    workers.move(workers.current("rollout-0"), State.DEAD)
    heartbeat.beat()
    assert store(recorder).scalars["squelch_actor_up"][("rollout-0",)] == 0.0, "within the step, not at its end"


def test_the_series_of_a_worker_that_left_end_and_those_of_a_dead_one_stay(recorder: Recorder, tmp_path: Path) -> None:
    workers = two_workers()
    for name in ("rollout-0", "rollout-1"):
        recorder.step(1, {f"weights/{name}/version": 1.0, f"up/{name}": 1.0, f"restarts/{name}": 1.0})
    workers.move(workers.current("rollout-0"), State.DEAD)
    workers.move(workers.current("rollout-1"), State.RETIRED)
    made(workers, recorder, tmp_path).beat()
    series = store(recorder).scalars
    for metric in ("squelch_worker_policy_version", "squelch_actor_up", "squelch_actor_restarts_total"):
        assert list(series[metric]) == [("rollout-0",)], metric
    assert states(recorder) == {"rollout-0": "dead"}


def test_a_queue_is_as_old_as_its_oldest_ticket(recorder: Recorder, tmp_path: Path) -> None:
    clock = iter([10.0, 20.0, 30.0])
    ledger = Ledger(lambda: next(clock))
    heartbeat = made(two_workers(), recorder, tmp_path, ledger)
    ledger.issue("a")
    ledger.issue("b")
    ledger.move("a", "buffered")
    heartbeat.beat()
    series = store(recorder).scalars[SINCE]
    assert (series[IN_FLIGHT,], series["buffered",]) == (20.0, 30.0)
    ledger.move("a", DROPPED, "zero")
    heartbeat.beat()
    series = store(recorder).scalars[SINCE]
    assert series["buffered",] != series["buffered",], "no ticket waits for the filter"
    assert ledger.oldest() == {IN_FLIGHT: 20.0, "buffered": None, "kept_waiting": None, "training": None}


def test_the_disk_is_that_of_the_runs_folder_and_unknown_while_it_does_not_answer(
    recorder: Recorder, tmp_path: Path
) -> None:
    made(two_workers(), recorder, tmp_path).beat()
    assert store(recorder).scalars["squelch_disk_size_bytes"][()] == shutil.disk_usage(tmp_path).total
    made(two_workers(), recorder, tmp_path / "gone").beat()
    free = store(recorder).scalars[FREE][()]
    assert free != free


def test_a_disk_that_hangs_keeps_no_beat_and_is_asked_again_once_it_has_answered(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, asked, plain = threading.Event(), list[Path](), shutil.disk_usage

    def hanging(folder: Path) -> Any:
        asked.append(folder)
        there.wait(60)
        return plain(folder)

    monkeypatch.setattr(shutil, "disk_usage", hanging)
    beats = made(two_workers(), recorder, tmp_path)
    for _ in range(3):
        beats.beat()
        free = store(recorder).scalars[FREE][()]
        assert free != free and len(asked) == 1
    there.set()
    end = time.monotonic() + 180
    while (free := store(recorder).scalars[FREE][()]) != free and time.monotonic() < end:
        beats.beat()
    assert free > 0


def test_it_beats_at_once_again_and_again_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)

    async def run() -> None:
        async with beating(SimpleNamespace(beat=lambda: beats.append("beat"))):
            assert len(beats) == 1
            while len(beats) < 3:
                await asyncio.sleep(0.005)
        assert len(beats) >= 4

    asyncio.run(asyncio.wait_for(run(), 180))


def test_a_fault_of_a_beat_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = iter([None, ValueError("unknown metric")])
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)

    def beat() -> None:
        if (fault := next(beats, None)) is not None:
            raise fault

    async def run() -> None:
        async with beating(SimpleNamespace(beat=beat)):
            await asyncio.sleep(0.05)

    with pytest.raises(ValueError, match="unknown metric"):
        asyncio.run(asyncio.wait_for(run(), 180))


def test_the_limits_of_the_settings_are_exported(recorder: Recorder) -> None:
    limits(load("frozenlake", ["loop.max_staleness=2", "rollout.dtype=bfloat16"]), recorder)
    series = store(recorder).scalars
    assert series["squelch_staleness_limit_versions"] == {(): 2.0}
    assert series["squelch_weight_parity_limit_nats"] == {(): 0.5}
