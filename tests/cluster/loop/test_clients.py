"""The coordinator's clients of the filter service and the archive, and its run log, on fakes."""

import asyncio
import errno
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from squelch.actors.filter.service import FilterService
from squelch.cluster.config import load
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.client import Client
from squelch.cluster.loop.filtering import Filtering
from squelch.cluster.loop.persistence import archiving as archiving_side
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.metrics import REGISTRY
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.filter.measure import GroupStatistics
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.settings import RecorderConfig
from tests.fakes import clock
from tests.fakes.transport import behind, client


@dataclass
class Service:
    """Stands in for a filter service: notes its calls, takes a while for each, and dies or fails on demand."""

    failure: Exception | None = None
    dies_at: str = ""
    slow: bool = False
    answer: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            await asyncio.sleep(3600 if self.slow else 0.01)
            if method == self.dies_at:
                self.failure = Died("gone")
            if self.failure is not None:
                raise self.failure
            self.calls.append((method, *arguments))
            decisions = [SimpleNamespace(group_id=summary.group_id) for summary in self.groups()]
            decision = SimpleNamespace(closed=True, decisions=decisions)
            return {"close": (decision, self.answer), "state": self.answer}.get(method)

        return call

    def groups(self) -> list[Any]:
        return [summary for method, *rest in self.calls if method == "admit" for summary in rest[0]]


class RealService:
    """The filter's own service, called as the actor is."""

    def __init__(self, config: FilterConfig) -> None:
        self.service, self.failure = FilterService(config), None

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            if self.failure is not None:
                raise self.failure
            return getattr(self.service, method)(*arguments)

        return call


class Fleet:
    """Hands out the clients of one service after another."""

    def __init__(self, *services: Service | RealService, start_timeout_s: float = 1.0) -> None:
        config = load("frozenlake")
        cluster = config.cluster.model_copy(update={"start_timeout_s": start_timeout_s})
        config = config.model_copy(update={"cluster": cluster})
        self.filter, *self.spares = (client(service, config) for service in services)

    async def replace_filter(self, cause: str) -> None:
        if not self.spares:
            raise RuntimeError(f"filter died too often; last cause: {cause}")
        self.filter = self.spares.pop(0)

    def mark_dead(self, name: str, actor: Client, cause: str) -> None:
        behind(actor).failure = Died(cause)


def refused(reason: str) -> Refused:
    return Refused("a long trace", ValueError(reason))


def group(group_id: str, step: int = 3) -> Any:
    return SimpleNamespace(
        summary=SimpleNamespace(group_id=group_id), ticket=SimpleNamespace(ticket_id=group_id, step=step)
    )


def test_a_group_is_handed_to_the_filter_once() -> None:
    service, groups = Service(), [group("a"), group("b")]

    async def hand_over() -> None:
        filtering = Filtering(Fleet(service), None, list)
        await filtering.admit(groups[:1])
        await asyncio.gather(filtering.admit(groups), filtering.admit(groups))

    asyncio.run(hand_over())
    assert service.calls == [("admit", [groups[0].summary]), ("admit", [groups[1].summary])]


def test_groups_that_arrive_during_a_call_are_handed_over_together_in_order_and_once() -> None:
    service, groups = Service(), [group("a"), group("b"), group("c")]

    async def hand_over() -> None:
        filtering = Filtering(Fleet(service), None, list)
        await asyncio.gather(*(filtering.admit([one]) for one in [*groups, groups[1]]))

    asyncio.run(hand_over())
    a, b, c = (one.summary for one in groups)
    assert service.calls == [("admit", [a]), ("admit", [b, c])]


def test_a_dead_filter_is_replaced_with_its_state_and_the_open_groups_before_anything_is_asked_of_the_new_one() -> None:
    first, second = Service(), Service()
    opened = [group("a"), group("b"), group("c", step=4)]

    async def die_between_calls() -> None:
        filtering = Filtering(Fleet(first, second), {"totals": 5}, lambda: opened)
        await filtering.admit(opened[:1])
        first.failure = Died("gone")
        await asyncio.gather(filtering.admit(opened[2:]), filtering.close(3, True, 2), filtering.admit(opened[1:2]))

    asyncio.run(die_between_calls())
    summaries = [g.summary for g in opened]
    wanted = [("state", []), ("restore", {"totals": 5}), ("admit", summaries), ("close", 3, True, 2)]
    assert second.calls == wanted


@pytest.mark.parametrize("dies_at", ["restore", "admit", "close", "state"])
def test_a_filter_that_dies_while_it_takes_over_is_replaced_too(dies_at: str) -> None:
    first, second, third = Service(failure=Died("gone")), Service(dies_at=dies_at), Service(answer={"totals": 6})
    opened = [group("a")]
    filtering = Filtering(Fleet(first, second, third), {"totals": 5}, lambda: opened)
    asyncio.run(filtering.close(3, True, 2))
    wanted = [
        ("state", []),
        ("restore", {"totals": 5}),
        ("admit", [opened[0].summary]),
        ("close", 3, True, 2),
    ]
    assert third.calls == wanted
    assert filtering.state == {"totals": 6}


def test_groups_of_a_closed_step_are_not_handed_to_the_next_service() -> None:
    first, second = Service(answer={"totals": 6}), Service()
    played = [group("a", step=3), group("b", step=4)]

    async def close_then_die() -> None:
        filtering = Filtering(Fleet(first, second), None, lambda: played)
        await filtering.close(3, True, 2)
        first.failure = Died("gone")
        await filtering.close(4, True, 2)

    asyncio.run(close_then_die())
    assert second.calls[1:3] == [("restore", {"totals": 6}), ("admit", [played[1].summary])]


@pytest.mark.parametrize("dies", [False, True])
def test_a_filter_that_is_rewound_decides_on_the_groups_of_the_next_try_alone(dies: bool) -> None:
    """Also when its successor takes over on the way."""
    config = FilterConfig(rule="top_k", rho=0.5)
    first, tries = RealService(config), [[group(f"3-{k}") for k in range(4)] for _ in range(2)]
    for number, groups in enumerate(tries):
        for k, one in enumerate(groups):
            statistics = np.array([0.0, 1.0 + (k if number else 9 - k)])
            one.summary = GroupStatistics(one.ticket.ticket_id, 3, 2, (0, 1), statistics)

    async def twice() -> list[str]:
        played = tries[0]
        filtering = Filtering(Fleet(first, RealService(config)), None, lambda: played)
        empty = FilterService(config).state()
        await filtering.admit(played)
        await filtering.close(3, True, 4)
        first.failure = Died("gone") if dies else None
        played = []
        await filtering.rewind(empty, 2)
        assert filtering.state == empty
        played = tries[1]
        await filtering.admit(played)
        return [decision.group_id for decision in (await filtering.close(3, True, 4)).kept]

    assert asyncio.run(twice()) == ["3-2", "3-3"]


def test_groups_whose_plays_are_cancelled_while_they_wait_for_the_filter_do_not_outlive_a_rewind() -> None:
    service, late = Service(), group("c")

    async def cancel_and_rewind() -> None:
        filtering = Filtering(Fleet(service), None, list)
        waiting = [asyncio.create_task(filtering.admit([group(name)])) for name in "ab"]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await filtering.rewind({"totals": 5}, 2)
        await filtering.admit([late])

    asyncio.run(cancel_and_rewind())
    assert service.calls == [("restore", {"totals": 5}), ("admit", [late.summary])]


def test_a_replacement_that_fails_half_way_ends_it_for_every_call_that_waits() -> None:
    first, second = Service(failure=Died("gone")), Service(slow=True)

    async def die() -> list[Any]:
        filtering = Filtering(Fleet(first, second, start_timeout_s=0.05), {"totals": 5}, lambda: [group("a")])
        calls = (filtering.admit([group("b", step=4)]), filtering.close(3, True, 2), filtering.admit([group("c")]))
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(die())
    late = "state: filter: no answer within 0.05 s (cluster.start_timeout_s)"
    assert str(found[0]) == f"filter died too often; last cause: {late}"
    assert all("filter has failed earlier" in str(error) for error in found[1:])
    assert second.calls == [], "nothing was decided by a service that knows nothing"


def test_a_service_that_dies_between_refill_rounds_is_followed_by_one_that_decides_as_it_would_have() -> None:
    config = FilterConfig(rule="top_k", rho=0.75, refill=True, max_refill_rounds=3)
    groups = [group(f"3-{k}") for k in range(14)]
    for k, one in enumerate(groups):  # each worse than those before it: no refill helps
        one.summary = GroupStatistics(one.ticket.ticket_id, 3, 2, (0, 1), np.array([0.0, 14.0 - k]))

    async def decide(dies: bool) -> tuple[list[str], float]:
        first, played = RealService(config), groups[:8]
        filtering = Filtering(Fleet(first, RealService(config)), None, lambda: played)
        await filtering.admit(played)
        for more in (10, 12, 14):
            decision = await filtering.close(3, False, 8)
            assert decision.wanted
            played = groups[:more]
            first.failure = Died("gone") if dies and more == 12 else first.failure
            await filtering.admit(played)
        decision = await filtering.close(3, True, 8)
        return [d.group_id for d in decision.kept], decision.metrics["refill_rounds"]

    assert asyncio.run(decide(True)) == asyncio.run(decide(False)) == ([f"3-{k}" for k in range(6)], 3.0)


def test_what_the_filter_refuses_is_the_users_to_mend_and_other_failures_are_not() -> None:
    service = Service(failure=refused("line\nfilter.rule=top_p needs scores that are not negative"))
    with pytest.raises(UserError, match=r"^filter: filter\.rule=top_p needs"):
        asyncio.run(Filtering(Fleet(service), None, list).close(1, True, 2))
    service.failure = Failed("something broke", KeyError("x"))
    with pytest.raises(RuntimeError, match="something broke"):
        asyncio.run(Filtering(Fleet(service), None, list).close(1, True, 2))


def test_what_is_the_users_to_mend_stays_so_for_a_call_that_waits() -> None:
    service = Service(failure=refused("filter.rule=top_p needs scores that are not negative"))

    async def both() -> list[Any]:
        filtering = Filtering(Fleet(service), None, list)
        calls = filtering.admit([group("a", step=4)]), filtering.close(3, True, 2)
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in asyncio.run(both())] == [UserError, UserError]


def test_the_saved_state_of_a_sliding_window_holds_no_group_of_an_open_step() -> None:
    service = Service(answer={"steps": {}, "recent": [["a", 0.1], ["b", 0.2]]})
    filtering = Filtering(Fleet(service), None, lambda: [group("a", step=1), group("b", step=2)])
    asyncio.run(filtering.close(1, True, 2))
    assert filtering.state == {"steps": {}, "recent": [["a", 0.1]]}


def test_a_part_is_on_disk_before_the_next_is_begun() -> None:
    written: list[int] = []

    def write(step: int, *_: Any) -> None:
        time.sleep(0.05)
        written.append(step)

    archive = SimpleNamespace(write_groups=write, event=lambda *_, **__: None)
    archiving = Archiving(archive, SimpleNamespace(), Path("run"), pytest.fail)

    async def two_steps() -> None:
        for step in (1, 2):
            await archiving.begin(SimpleNamespace(step=step, decisions=[], filter=""), [])
            assert written == list(range(1, step))
        await archiving.finish()
        await archiving.finish()

    asyncio.run(two_steps())
    assert written == [1, 2]


def test_stored_groups_are_read_once_their_part_is_on_disk() -> None:
    written: list[int] = []

    def write(step: int, *_: Any) -> None:
        time.sleep(0.05)
        written.append(step)

    def groups(step: int, ids: list[str]) -> list[str]:
        assert written == [step]
        return [f"rows of {name}" for name in ids]

    archive = SimpleNamespace(write_groups=write, groups=groups, event=lambda *_, **__: None)
    archiving = Archiving(archive, SimpleNamespace(put=lambda table: (table,)), Path("run"), pytest.fail)

    async def write_and_read() -> list[Any]:
        await archiving.begin(SimpleNamespace(step=7, decisions=[], filter=""), [])
        return await archiving.stored(7, ["b", "a"])

    assert asyncio.run(write_and_read()) == [("rows of b",), ("rows of a",)]


def test_a_disk_that_hangs_is_said_and_ends_the_run_with_its_path(monkeypatch, tmp_path: Path) -> None:
    there, said = threading.Event(), list[str]()
    monkeypatch.setattr(archiving_side, "SLOW_S", 0.02)
    monkeypatch.setattr(archiving_side, "DISK_TIMEOUT_S", 0.05)
    archive = SimpleNamespace(write_groups=lambda *_: there.wait(), groups=lambda *_: there.wait())
    archiving = Archiving(archive, SimpleNamespace(), tmp_path, said.append)

    async def write() -> None:
        await archiving.begin(SimpleNamespace(step=7, decisions=[], filter=""), [])
        await archiving.finish()

    for late, work in (("step 7 was not written", write), ("step 7 was not read", lambda: archiving.stored(7, ["a"]))):
        with pytest.raises(ArchiveError, match=rf"^{tmp_path}: the groups of {late} within 0.05 s; is its disk"):
            asyncio.run(work())  # its end waits for no thread
        assert said.pop().startswith(f"archive: {tmp_path}: the groups of {late} within 0.02 s; the run waits")
    there.set()


def test_a_time_out_of_the_disk_itself_is_its_error_and_not_ours(tmp_path: Path) -> None:
    def timed_out(*_: object) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    archiving = Archiving(SimpleNamespace(groups=timed_out), SimpleNamespace(), tmp_path, print)
    with pytest.raises(TimeoutError, match="Connection timed out"):
        asyncio.run(archiving.stored(7, ["a"]))


def test_a_metric_that_the_registry_lacks_is_our_fault_and_not_the_users(tmp_path: Path) -> None:
    archive, recorder = Archive(tmp_path), Recorder(RecorderConfig(port=0), REGISTRY)
    run_log = RunLog(archive, recorder, 9, {}, lambda line: None)
    with pytest.raises(RuntimeError, match=r"figures of step 0: .*`kept_mas`.*`kept_mass`"):
        run_log.before_training({"kept_mas": 1.0})
    archive.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_spans_that_are_late_cost_their_own_metrics_only() -> None:
    async def take_spans(late: bool, dead: bool) -> list[tuple[float, float]]:
        await asyncio.sleep(99.0 if late else 1.0)
        if dead:
            raise Died("gone")
        return [(5.0, 6.0)]

    def member(name: str, late: bool = False, dead: bool = False) -> Any:
        actor = client(SimpleNamespace(take_spans=lambda: take_spans(late, dead)), load("frozenlake"))
        return SimpleNamespace(name=name, actor=actor)

    members = [member("rollout-0"), member("rollout-1", late=True), member("env-0", dead=True)]
    fleet = SimpleNamespace(
        workers=SimpleNamespace(members=lambda *_: members), players=SimpleNamespace(members=lambda *_: [])
    )
    found: list[str] = []
    archive = SimpleNamespace(event=lambda actor, *_, **__: found.append(actor))
    clock.run(RunLog(archive, None, 9, {}, lambda line: None).collect_spans(fleet))
    assert found == ["rollout-0"]


def test_a_clock_that_was_set_back_costs_a_span_and_not_the_run(tmp_path: Path) -> None:
    """Found by a reviewer: a span of an environment actor that ended before it began ended the run."""

    async def take_spans() -> list[tuple[float, float]]:
        return [(100.0, 99.99)]

    members = [SimpleNamespace(name="env-0", actor=SimpleNamespace(call=lambda _: take_spans()))]
    fleet = SimpleNamespace(
        workers=SimpleNamespace(members=lambda *_: []), players=SimpleNamespace(members=lambda *_: members)
    )
    archive = Archive(tmp_path)
    clock.run(RunLog(archive, None, 9, {}, lambda line: None).collect_spans(fleet))
    archive.close()
    assert json.loads((tmp_path / "events.jsonl").read_text())["end"] == 100.0


def test_every_second_belongs_to_one_step(tmp_path: Path) -> None:
    lines: list[str] = []
    archive = Archive(tmp_path)
    totals: dict[str, float] = {}
    recorder = SimpleNamespace(step=lambda step, flat: None)
    run_log = RunLog(archive, recorder, 9, totals, lines.append)
    began = start = time.time()
    for step in (1, 2, 3):
        time.sleep(0.02)
        run_log.worked("learner", began, began + 0.01)
        flat = {"tokens/sampled": 10.0, "success": 0.5, "reward_mean": 0.5}
        run_log.step(step, flat, began)
        assert flat["seconds/orchestration"] == pytest.approx(flat["seconds/step"] - 0.01, abs=1e-3)
        began = run_log.recorded
        run_log.carried["seconds/checkpoint"] = float(step)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["seconds/step"] for row in rows) == pytest.approx(began - start)
    assert [row.get("seconds/checkpoint") for row in rows] == [None, 1.0, 2.0]
    assert totals["tokens/sampled"] == 30.0 and len(lines) == 3
    assert run_log.last["seconds/checkpoint"] == 2.0
    now = time.time()
    run_log.worked("scorer", now - 4.0, now)  # the wait at the run's end
    flat = {"tokens/sampled": 10.0, "success": 0.5, "reward_mean": 0.5, "wait/coordinator/scorer": 4.0}
    run_log.step(4, flat, now - 5.0)
    assert flat["seconds/step"] == pytest.approx(1.0, abs=0.1) == flat["seconds/orchestration"]
    assert flat["wait/coordinator/scorer"] == 4.0
    archive.close()
