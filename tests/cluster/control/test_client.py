"""The clients of remote actors, on actors of this process: who is named when a call fails, how long it may take, and
what a call costs a reader."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from squelch.actors.process import shell
from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.calls import GRACE_S, LEARNER_RANK, LOAD, SAVE, TRAIN_STEP, WRITE, Call, setting
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.loop.coordinator import Coordinator
from squelch.learner.network import RankProcess
from squelch.learner.rank import LearnerRank
from tests.fakes import clock
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import drive, settings
from tests.fakes.transport import LOOPBACK, NODE, TRANSPORT, Handle, InProcess, RankHandle

BOUND_S = 60.0
TRY: Call[[str], list[str]] = Call("attempt", setting("learner.step_timeout_s"), all_ranks=True, reduce=list)


class Rank:
    """A rank that does as it is told, after a while."""

    def __init__(self, outcome: Any = "done", after_s: float = 1.0) -> None:
        self.outcome, self.after_s = outcome, after_s

    async def attempt(self, word: str) -> str:
        await asyncio.sleep(self.after_s)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return f"{word} {self.outcome}"

    async def live(self) -> None:
        await self.attempt("live")

    def kill(self) -> None:
        self.outcome = Died("killed")


def config() -> RunConfig:
    return load("frozenlake", [f"learner.step_timeout_s={BOUND_S}"])


def learner_of(*ranks: Any, nodes: tuple[str, ...] = ()) -> LearnerClient:
    learner = LearnerClient([Handle(rank) for rank in ranks], TRANSPORT, config())
    learner.processes = [RankProcess(node, f"10.0.0.{rank}", rank) for rank, node in enumerate(nodes)]
    return learner


def tried(*ranks: Rank, nodes: tuple[str, ...] = ()) -> tuple[Any, float]:
    """The result of a call to all ranks, or its error, and the seconds that it took."""

    async def attempt() -> tuple[Any, float]:
        (found,) = await asyncio.gather(learner_of(*ranks, nodes=nodes).call(TRY, "all"), return_exceptions=True)
        return found, asyncio.get_running_loop().time()

    return clock.run(attempt())


def test_all_ranks_get_the_call_and_the_row_reduces_their_results() -> None:
    assert tried(Rank("one"), Rank("two", 5.0)) == (["all one", "all two"], 5.0)


def test_a_rank_that_fails_because_another_died_does_not_hide_the_death() -> None:
    failed = Failed("a trace", RuntimeError("connection closed by peer"))
    found, took = tried(Rank(failed), Rank(Died("killed by a signal"), 2.0), Rank(after_s=1e6))
    assert type(found) is Died and took == 2.0 + GRACE_S - 1.0
    assert (
        str(found) == "learner rank 1 died in attempt: killed by a signal; without an answer within another 5 s: rank 2"
    )


def test_without_a_death_the_first_failure_is_named_with_its_cause_and_address() -> None:
    failed = Failed("a trace", RuntimeError("no space on the device"))
    found, _ = tried(Rank(after_s=1e6), Rank(failed), nodes=(NODE, "far"))
    where = f"(on 10.0.0.1, called from {LOOPBACK})"
    assert str(found).startswith(f"learner rank 1 failed in attempt {where}: no space on the device; without an answer")
    assert type(found) is Failed and found.cause is failed.cause


def test_bad_input_is_reported_unchanged() -> None:
    refused = Refused("a trace", ValueError("a loss is not finite"))
    assert tried(Rank(refused), Rank(refused))[0] is refused


def test_late_ranks_are_named_at_the_bound() -> None:
    found, took = tried(Rank(), Rank(after_s=1e6), Rank(after_s=1e6))
    assert (
        str(found) == "learner rank 1, 2 did not finish attempt within 60 s (learner.step_timeout_s)"
        and took == BOUND_S
    )


def test_the_first_rank_to_die_is_named_while_nothing_is_asked_of_it() -> None:
    ranks = (Rank(after_s=1e6), Rank(after_s=1e6), Rank(Died("out of memory"), 3.0))
    with pytest.raises(Died, match=r"^learner rank 2 \(on 10\.0\.0\.2, called from .*\) died: out of memory$"):
        clock.run(asyncio.wait_for(_lost(learner_of(*ranks, nodes=(NODE, NODE, "far"))), 10.0))


async def _lost(learner: LearnerClient) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(learner.lost(), 1.0)
    await learner.lost()


class Disk(Rank):
    """A rank that sees the driver's disk though it is on another node."""

    async def progress(self) -> Any:
        return SimpleNamespace(marks=0, busy=False, waited_s=0.0, median_s=0.0)

    async def sees(self, folder: str, token: str) -> bool:
        return True

    async def save(self, path: Any, loop: dict[str, int]) -> None:
        Path(path).write_text(str(loop))

    async def load(self, path: Any) -> str:
        return Path(path).read_text()

    async def forget(self, path: Any) -> None:
        self.outcome = "forgotten"


def test_ranks_on_other_nodes_write_and_read_the_drivers_folder(tmp_path: Path) -> None:
    ranks = Disk(), Disk()

    async def both() -> Any:
        learner = learner_of(*ranks, nodes=(NODE, "far"))
        for row in (SAVE, WRITE):  # the driver does not see whether such a rank's files are on the disk: the rank seals
            await learner.call(row, tmp_path / "new" / "step-1", {"step": 1})
        return await learner.call(LOAD, tmp_path / "new" / "step-1")

    assert asyncio.run(both()) == "{'step': 1}" and [rank.outcome for rank in ranks] == ["forgotten"] * 2


def test_a_rank_that_sees_the_drivers_disk_reads_it_there_and_only_another_through_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader(Disk):
        def __init__(self, near: bool) -> None:
            super().__init__()
            self.near = near

        async def sees(self, folder: str, token: str) -> bool:
            return self.near

        async def load(self, path: Any) -> str:
            self.read = path
            return ""

    (tmp_path / "step-1").mkdir()
    offered: list[Path] = []
    monkeypatch.setattr(InProcess, "offer", lambda _, path: offered.append(path) or "offered")
    for near in ((True, True), (True, False)):
        ranks = [Reader(one) for one in near]
        asyncio.run(learner_of(*ranks, nodes=(NODE, "far")).call(LOAD, tmp_path / "step-1"))
        assert [rank.read for rank in ranks] == [tmp_path / "step-1" if one else "offered" for one in near]
        assert len(offered) == near.count(False)


# -- what a call costs a reader --------------------------------------------------------------------------------------


def test_a_new_call_to_the_learner_is_a_function_and_a_row() -> None:
    class Norms(Rank):
        async def norm(self, step: int) -> float:
            return step * float(self.outcome)

    largest: Call[[int], float] = Call("norm", setting("learner.step_timeout_s"), all_ranks=True, reduce=max)
    assert clock.run(learner_of(Norms(2.0), Norms(3.0)).call(largest, 10)) == 30.0


def test_at_most_five_of_our_functions_are_between_the_coordinator_and_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of `train_step` through client, shell and rank, on a transport that makes the call at once."""
    seen: list[list[str]] = []
    made = shell.threaded("LearnerRank", LEARNER_RANK.target, LEARNER_RANK.methods).__ray_metadata__.modified_class
    rank = object.__new__(LearnerRank)
    rank.config, rank._copies = settings(tmp_path).learner, None
    rank.trainer = SimpleNamespace(train_step=lambda *_: seen.append(own_functions(sys._getframe(1))) or 1 / 0)
    monkeypatch.setattr(rank, "_fetch", lambda *_: [], raising=False)

    class Through(RankHandle):
        def _send(self, method: str, arguments: Any) -> Any:
            if method == TRAIN_STEP.method and not seen:
                with pytest.raises(ZeroDivisionError):
                    made.train_step(SimpleNamespace(held=rank), *arguments)
            return super()._send(method, arguments)

    def prepare(coordinator: Coordinator) -> None:
        learner = coordinator.fleet.learner
        assert learner is not None
        learner.handles = [Through(handle.actor, handle.rank) for handle in learner.handles]

    mixed = World(settings(tmp_path, "loop.steps=1"), rewards=lambda ticket, index: float(index % 2))
    drive(mixed, FakeArchive(), prepare)
    (way,) = seen
    assert way[-2:] == ["call", "train_step"] and way[0] == "train" and len(way) <= 5, way


def own_functions(frame: FrameType | None) -> list[str]:
    """The product's functions on the stack, from the coordinator's on."""
    found: list[str] = []
    while frame is not None and not frame.f_globals["__name__"].endswith("loop.coordinator"):
        if frame.f_globals["__name__"].startswith("squelch.") and frame.f_code.co_name != "<listcomp>":
            found.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    assert frame is not None, "the coordinator awaits the call"
    return found
