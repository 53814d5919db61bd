"""The coordinator's client of the scorer: how it handles the scorer's metrics."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.cluster.config import load
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.calls import Call
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.stopping import Stopping
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.scoring import Scoring
from squelch.cluster.loop.watchers.watcher import Step
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.kit.archive.reader import is_of_step
from squelch.kit.archive.store import ArchiveError
from squelch.kit.diagnosis.regime import one_hot
from squelch.kit.findings.finder import Findings
from squelch.kit.findings.view import StepView
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import check, drive, settings
from tests.fakes.transport import behind


@pytest.fixture(autouse=True)
def no_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm looks for the run's checkpoints, and a checkout in which the demo ran has some."""
    monkeypatch.chdir(tmp_path)


@dataclass
class Watched:
    """The watchers of what the scorer finds, without a run."""

    scoring: Scoring
    alarms: Alarms

    def restore(self, pending: Sequence[dict[str, float]]) -> None:
        """Puts in the metrics of scorer steps that no step has recorded yet."""
        self.scoring.restore({"scorer": None, "pending": pending, "outcomes": {}, "asked": None}, ())

    def take(self, step: int, reward: float) -> dict[str, float]:
        """The metrics of a step's record."""
        flat = {"reward_mean": reward}
        record = Step(step, SimpleNamespace(), SimpleNamespace(), version=0, is_last=False, metrics=flat)
        flat |= self.scoring.metrics(record)
        flat |= self.alarms.metrics(record)
        return {key: value for key, value in flat.items() if key not in ("reward_mean", "wait/coordinator/scorer")}

    def successor(self) -> tuple[Watched, list[str], list[dict[str, Any]]]:
        """Those of a resumed run."""
        after, said, events = watched_scorer()
        after.alarms.restore(json.loads(json.dumps(self.alarms.state())), ())
        return after, said, events


def watching(
    fleet: Any, words: Sequence[str] = ("scorer.every=1",), archive: Any = None, say: Any = lambda _: None
) -> Watched:
    config, stopping = load("frozenlake", [*words]), Stopping(9)
    run_log = RunLog(archive or FakeArchive(), None, 9, {}, say)
    alarms = Alarms(config, run_log)

    async def nothing() -> None:
        """Plays nothing that could be cancelled."""

    return Watched(Scoring(config, fleet, run_log, alarms, stopping, nothing), alarms)


def watched_scorer(*words: str) -> tuple[Watched, list[str], list[dict[str, Any]]]:
    said: list[str] = []
    events: list[dict[str, Any]] = []

    def on_event(actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        events.append({"actor": actor, "name": name, **facts})

    archive = SimpleNamespace(event=on_event)
    return watching(SimpleNamespace(scorer=None), ["scorer.every=5", *words], archive, said.append), said, events


def feed(watched: Watched, step: int, mi: float, reward: float) -> dict[str, float]:
    """One step that takes the metrics of its own scorer step."""
    scope = {"retrieval_accuracy": 0.8, "retrieval_chance": 0.125, "conditional_entropy": 1.0, "mi_seq_est": mi}
    scope |= {"mi_seq_est_p_value": 0.001, "mi_seq_est_standard_error": 0.1}
    pending = {f"first_turn/{key}": value for key, value in scope.items()} | {"scorer/step": float(step)}
    watched.restore([pending])
    return watched.take(step, reward)


def test_a_fall_is_said_once_in_the_terminal_the_events_and_the_metrics() -> None:
    watched, said, events = watched_scorer()
    for step in range(1, 7):
        assert feed(watched, step, 1.5, 0.01 * step)["alarm/raised"] == 0.0
    metrics = {}
    for step in range(7, 14):
        metrics = feed(watched, step, 0.5, 0.01 * step)
    text = "input dependence falling since step 6, reward flat (MI-Seq-Est 1.50 -> 0.50 nats per sequence)"
    reported = f"step    8  ALARM: {text}; no checkpoint is from before it"
    assert said == [reported], "two scorer steps after the drop, two rewards: no trend yet"
    assert [(e["name"], e["since"], e["step"]) for e in events] == [("input_dependence_falling", 6, 8)]
    assert (metrics["alarm/raised"], metrics["alarm/since"], metrics["alarm/reward_trend"]) == (1.0, 6.0, 1.0)
    assert all(REGISTRY.series_of(key) for key in metrics)


def test_steps_without_a_scorer_step_and_unknown_metrics_leave_the_alarm_as_it_is() -> None:
    watched, said, _ = watched_scorer()
    feed(watched, 1, 1.5, 0.1)
    before = watched.alarms.alarm.state()["recent"]
    metrics = watched.take(2, 0.2)
    assert metrics["alarm/armed"] == 0.0 and math.isnan(metrics["alarm/since"])
    feed(watched, 3, math.nan, math.nan)
    assert watched.alarms.alarm.state()["recent"] == before and len(watched.alarms.alarm.rewards) == 2 and said == []


def test_scorings_that_end_between_two_records_are_recorded_one_after_the_other() -> None:
    watched, *_ = watched_scorer()
    watched.restore([{"scorer/step": 1.0}, {"scorer/step": 2.0}])
    assert watched.scoring.pending() == [{"scorer/step": 1.0}, {"scorer/step": 2.0}]
    assert [watched.take(step, 0.1).get("scorer/step") for step in (2, 3, 4)] == [1.0, 2.0, None]


def test_before_the_last_record_every_scoring_and_every_reading_but_the_newest_is_taken() -> None:
    watched, *_ = watched_scorer()
    scored = [{"scorer/step": float(step)} for step in (1, 2, 3)]
    read = [evaluation(step, 1.5) for step in (2, 4)]
    watched.restore(scored + read)
    assert watched.scoring.take_earlier() == [*scored[:2], read[0]]
    metrics = watched.take(4, 0.1)
    assert (metrics["scorer/step"], metrics["probe/step"]) == (3.0, 4.0)
    assert watched.scoring.take_earlier() == [] == watched.scoring.pending()


def test_a_resumed_run_goes_on_with_its_alarm() -> None:
    watched, _, _ = watched_scorer()
    for step, mi in enumerate([1.5] * 6 + [0.5], start=1):
        feed(watched, step, mi, 0.1)
    resumed, said, _ = watched.successor()
    feed(resumed, 8, 0.5, 0.1)
    assert len(said) == 1 and "falling since step 6" in said[0]


def take(watched: Watched, metrics: list[dict[str, float]]) -> None:
    """Steps that take the metrics of scorer steps."""
    watched.restore(metrics)
    for step in range(len(metrics)):
        watched.take(step, 0.1)


def regime(step: int, name: str, **others: float) -> dict[str, float]:
    """Metrics of a scorer step with this regime."""
    return {"scorer/step": float(step), **{f"first_turn/{k}": v for k, v in one_hot(name).items()}, **others}


def test_silence_is_reported_once_until_there_is_reasoning_again() -> None:
    watched, said, events = watched_scorer()
    silent = ["used", "mute", "mute", "used", "mute"]
    take(watched, [regime(step, name) for step, name in enumerate(silent)])
    assert [(e["name"], e["step"]) for e in events] == [("reasoning_mute", 1), ("reasoning_mute", 4)]
    assert len(said) == 2 and all("fallen silent" in line for line in said)


def test_a_policy_that_never_reasoned_raises_no_alarm_and_is_a_notice() -> None:
    watched, said, events = watched_scorer()
    take(watched, [regime(step, "mute") for step in range(4)])
    assert events == [] == said
    findings = Findings()
    for step in range(4):
        findings.step(StepView(step, regime(step, "mute") | {"first_turn/reasoned": 0.0}))
    assert [(one.name, one.severity) for one in findings.open] == [("reasoning_mute", "notice")]
    take(watched, [regime(4, "used"), regime(5, "mute")])
    assert [(e["name"], e["step"]) for e in events] == [("reasoning_mute", 5)]


@pytest.mark.parametrize("shown", ["picture", "both"])
def test_blind_reasoning_is_reported_once_where_pictures_alone_show_the_task(shown: str) -> None:
    options = (f"environment.options.observation_format={shown}", "environment.options.cell_pixels=8")
    watched, said, events = watched_scorer(*options)
    sees = {"trajectory/modality/text_alone": 0.0, "trajectory/regime/blind": 0.0}
    blind = {"trajectory/modality/text_alone": 1.0, "trajectory/regime/blind": 1.0}
    take(watched, [regime(step, "used", **own) for step, own in enumerate((sees, blind, blind, sees))])
    assert [(e["name"], e["step"]) for e in events] == ([("reasoning_blind", 1)] if shown == "picture" else [])
    assert all("the pictures that alone show the task" in line for line in said) and len(said) == len(events)
    found = watched.take(5, 0.1)
    assert found.get("alarm/blind") == (0.0 if shown == "picture" else None)
    assert all(REGISTRY.series_of(key) for key in found)


def untrue(step: int, value: float, share: float) -> dict[str, float]:
    """Metrics of a scorer step that the judge read."""
    return {"scorer/step": float(step), "judge/untrue": value, "judge/true_share": share, "judge/names": 0.0}


def test_that_reasoning_became_untrue_is_reported_once_until_it_is_true_again() -> None:
    watched, said, events = watched_scorer()
    found = [(0.0, 0.8), (1.0, 0.2), (float("nan"), float("nan")), (1.0, 0.2), (0.0, 0.6), (1.0, 0.3)]
    take(watched, [untrue(step, *values) for step, values in enumerate(found)])
    assert [(e["name"], e["step"]) for e in events] == [("reasoning_untrue", 1), ("reasoning_untrue", 5)]
    assert "the judge finds 20% entirely true" in said[0] and len(said) == 2


def test_a_resumed_run_whose_first_scorer_step_states_nothing_goes_on_and_is_not_reported_again() -> None:
    """The share was computed anew, of nothing: a division by 0 that each resume repeated."""
    watched, said, _ = watched_scorer()
    take(watched, [untrue(0, 0.0, 0.8), untrue(1, 1.0, 0.2)])
    resumed, again, _ = watched.successor()
    take(resumed, [untrue(2, 1.0, 0.2)])
    assert len(said) == 1 and again == []


@pytest.mark.parametrize("bad", ["mute", "template", "unused", "untrue"])
def test_the_checkpoint_from_before_a_bad_state_is_kept(bad: str) -> None:
    watched, _, _ = watched_scorer()
    good = {"judge/untrue": 0.0, "judge/true_share": 0.8}
    ill = {"judge/untrue": 1.0, "judge/true_share": 0.2} if bad == "untrue" else good
    name = "used" if bad == "untrue" else bad
    take(watched, [regime(10, "used", **good), regime(20, name, **ill), regime(30, name, **ill)])
    assert watched.alarms.healthy_until == 10
    resumed, _, _ = watched.successor()
    assert resumed.alarms.healthy_until == 10
    take(resumed, [regime(40, "used", **good)])
    assert resumed.alarms.healthy_until is None, "it has passed, and no alarm has a level yet"


def evaluation(step: int, dependence: float) -> dict[str, float]:
    """Metrics of an evaluation of the fixed probe."""
    values = {"probe/mi": 2.0, "probe/link/dependence": dependence}
    found = {f"{key}{end}": x for key, v in values.items() for end, x in (("", v), ("_standard_error", 0.05))}
    return found | {f"{key}_p_value": 0.001 for key in values} | {"probe/step": float(step)}


def test_a_fall_on_the_fixed_probe_is_said_once_and_survives_a_resume() -> None:
    watched, said, _ = watched_scorer()
    watched.restore([evaluation(step, 1.0) for step in (0, 10, 20)])
    assert [watched.take(step, 0.1)["probe/alarm/dependence"] for step in (1, 11, 21)] == [0.0] * 3
    assert said == []
    resumed, said, events = watched.successor()
    resumed.restore([evaluation(step, 0.1) for step in (30, 40, 50)])
    *_, metrics = [resumed.take(step, 0.1) for step in (31, 41, 51)]
    text = "the answer follows less from the reasoning since step 20 (fixed probe, 1.00 -> 0.10 nats)"
    assert said == [f"step   40  ALARM: {text}; no checkpoint is from before it"]
    assert [(e["name"], e["figure"], e["step"]) for e in events] == [("probe_falling", "dependence", 40)]
    assert (metrics["probe/alarm/dependence"], metrics["probe/alarm/mi"], metrics["probe/step"]) == (1.0, 0.0, 50.0)
    assert all(REGISTRY.series_of(key) for key in metrics)


def falling_at(falls_at: int) -> Callable[[Coordinator], None]:
    """Prepares a coordinator whose fixed probe falls from that step on."""

    def fall(coordinator: Coordinator) -> None:
        assert coordinator.fleet.scorer is not None
        scorer = behind(coordinator.fleet.scorer)
        read = scorer.probe

        async def probe(step: int, *given: Any) -> Any:
            _, state = await read(step, *given)
            return evaluation(step, 1.0 if step < falls_at else 0.1), state

        scorer.probe = probe

    return fall


def test_a_run_that_pauses_for_alarms_ends_with_a_checkpoint_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    several = ("loop.steps=10", "loop.checkpoint_every=1", "loop.keep_checkpoints=1", "validation.every=0")
    world, archive = World(settings(tmp_path, *several, "loop.on_alarm=pause")), FakeArchive()
    outcome = drive(world, archive, falling_at(4))
    found = outcome.coordinator.outcome()
    ending, last = found.ending, found.steps
    assert ending is not None and ending.cause is EndCause.PAUSED and not ending.final and last < 10
    assert [step for step, _ in checkpoints(world.config.run_dir)][-1] == last
    kept = checkpoints(world.config.run_dir)[0][0]
    assert f"checkpoints/step-{kept} is from before it" in ending.detail and "Go on with --resume" in ending.detail
    assert f"model.path={world.config.run_dir}/checkpoints/step-{kept}/hf" in ending.detail
    assert ending.detail.endswith("filter.rho=0.45")
    resumed = drive(world, archive, falling_at(4), resume=True).coordinator.outcome()
    assert (resumed.steps, resumed.ending) == (10, None), "the same alarm pauses it once"


@pytest.mark.parametrize(("falls_at", "kept"), [(6, [4, 10]), (99, [10])])
def test_the_newest_checkpoint_from_before_a_fall_is_kept_until_the_end(
    tmp_path: Path, falls_at: int, kept: list[int]
) -> None:
    several = ("loop.steps=10", "loop.checkpoint_every=1", "loop.keep_checkpoints=1", "validation.every=0")
    world = World(settings(tmp_path, *several))

    outcome = drive(world, FakeArchive(), falling_at(falls_at))
    assert [step for step, _ in checkpoints(world.config.run_dir)] == kept
    reported = [line for line in outcome.said if "ALARM" in line]
    assert [line.endswith("checkpoints/step-4 is from before it, and stays") for line in reported] == [True] * (
        falls_at < 99
    )


def test_a_metric_of_the_fixed_probe_that_becomes_unknown_is_reported_once_until_it_is_known_again() -> None:
    watched, said, events = watched_scorer()
    known = [math.nan, 1.0, 1.0, math.nan, math.nan, 1.0, math.nan]
    watched.restore([evaluation(10 * n, value) for n, value in enumerate(known)])
    for n in range(len(known)):
        watched.take(10 * n + 1, 0.1)
    assert [(e["name"], e["figure"], e["step"]) for e in events] == [
        ("probe_blind", "dependence", 30),
        ("probe_blind", "dependence", 60),
    ]
    assert "cannot show whether the answer follows less from the reasoning" in said[0]


def test_the_probes_tasks_are_not_played_where_nobody_can_read_them() -> None:
    watched, _, events = watched_scorer()
    assert watched.scoring.probe_scorer(20) is None
    assert [(e["name"], e["step"]) for e in events] == [("probe_failed", 20)] and "no scorer is left" in events[0][
        "cause"
    ]

    async def twice() -> list[bool]:
        watched.scoring.fleet = SimpleNamespace(scorer=object())
        found = [watched.scoring.probe_scorer(30) is not None]
        watched.scoring._probe = asyncio.create_task(asyncio.sleep(60))
        found.append(watched.scoring.probe_scorer(40) is not None)
        watched.scoring._probe.cancel()
        return found

    assert asyncio.run(twice()) == [True, False] and "still under way" in events[-1]["cause"]


class OneScorer:
    """The client of a scorer: `answer` settles the scorer step under way."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.asked: list[int] = []
        self.restored: list[dict[str, Any]] = []
        self._state = state
        self._answer: asyncio.Future[dict[str, float]] | None = None

    async def call(self, row: Call[..., Any], *arguments: Any) -> Any:
        return await getattr(self, row.method)(*arguments)

    async def score(self, step: int, *_: Any) -> tuple[dict[str, float], dict[str, Any], None]:
        self.asked.append(step)
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer, self._state, None

    async def probe(self, step: int, *_: Any) -> tuple[dict[str, float], dict[str, Any]]:
        return await asyncio.get_running_loop().create_future()

    async def state(self) -> dict[str, Any]:
        return self._state

    async def restore(self, state: dict[str, Any]) -> None:
        self.restored.append(state)

    async def answer(self, result: dict[str, float] | Exception) -> None:
        if isinstance(result, Exception):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)
        for _ in range(10):  # a few turns of the event loop: the coordinator's task takes it in
            await asyncio.sleep(0)


class OneScorerFleet:
    """Holds a scorer, and replaces it by the next one after its death."""

    def __init__(self) -> None:
        self.scorer, self.causes = OneScorer({"of": "the first"}), list[str]()

    async def replace_scorer(self, cause: str) -> None:
        self.causes.append(cause)
        self.scorer = OneScorer({"of": "the second"})


def test_training_goes_on_while_a_scoring_is_under_way_and_after_the_scorer_dies_in_it() -> None:
    async def run() -> None:
        fleet = OneScorerFleet()
        first, watched = fleet.scorer, watching(fleet)
        watched.scoring.offer(1, None, [])
        await asyncio.sleep(0)
        assert "scorer/step" not in watched.take(1, 0.1), "nothing waits for the first scorer step"
        await first.answer({"scorer/version": 1.0})
        assert watched.take(2, 0.1)["scorer/step"] == 1.0
        watched.scoring.offer(2, None, [])
        await asyncio.sleep(0)
        await first.answer(Died("gone"))
        metrics = watched.take(3, 0.1)
        assert metrics["scorer/failed"] == 1.0 and "scorer/step" not in metrics
        assert len(fleet.causes) == 1 and fleet.scorer.restored == [{"of": "the first"}]
        watched.scoring.offer(3, None, [])
        await asyncio.sleep(0)
        await fleet.scorer.answer({"scorer/version": 3.0})
        metrics = watched.take(4, 0.1)
        assert (metrics["scorer/step"], metrics["scorer/version"], metrics["scorer/done"]) == (3.0, 3.0, 1.0)

    asyncio.run(run())


def test_a_finished_reading_of_the_probe_is_recorded_with_its_state_however_busy_the_scorer_is_then() -> None:
    """Found by a reviewer: its state was asked for in a call of its own, behind a scorer step, and a stop meanwhile let
    the next process read the probe a second time."""

    class Busy(OneScorer):
        async def probe(self, step: int, *_: Any) -> tuple[dict[str, float], dict[str, Any]]:
            return {"probe/step": float(step)}, {"after": step}

        async def state(self) -> dict[str, Any]:
            return await asyncio.get_running_loop().create_future()

    async def run() -> None:
        fleet = OneScorerFleet()
        fleet.scorer = Busy({})
        watched = watching(fleet)
        watched.scoring.probe(3, None, [], {})
        assert watched.scoring.probing == 3
        await watched.scoring.drain()
        assert (watched.scoring.probing, watched.scoring.scorer_state, watched.scoring.pending()) == (
            None,
            {"after": 3},
            [{"probe/step": 3.0}],
        )

    asyncio.run(run())


def test_each_scoring_keeps_its_matrices_and_a_full_disk_costs_the_matrices_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FullDisk(FakeArchive):
        def write_scores(self, step: int, table: Any) -> None:
            super().write_scores(step, table)
            if step == 2:
                raise ArchiveError("scores/step-000002.parquet: no space is left")

    async def run() -> FakeArchive:
        fleet, archive = OneScorerFleet(), FullDisk()
        watched = watching(fleet, archive=archive)
        for step in (1, 2):
            watched.scoring.offer(step, None, [])
            await asyncio.sleep(0)
            await fleet.scorer.answer({"scorer/version": float(step)})
            await watched.scoring.drain()
            assert watched.take(step, 0.1)["scorer/step"] == step
        return archive

    assert asyncio.run(run()).scored == [1, 2]
    assert "the score matrices of step 2 are not kept" in caplog.text and "no space" in caplog.text


def test_the_last_scoring_is_waited_for_as_long_as_any_other_and_less_long_after_a_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(timeout_s: float, stopped: bool, probe: bool) -> None:
        words = ["scorer.every=1", f"scorer.timeout_s={timeout_s}"]
        watched = watching(OneScorerFleet(), words)
        if stopped:
            watched.scoring.stopping.ask(Ending(EndCause.SIGNAL, "SIGTERM"))
        watched.scoring.offer(1, None, [])
        if probe:
            watched.scoring.probe(1, None, [], {})
        await watched.scoring.drain()

    monkeypatch.setattr("squelch.cluster.loop.watchers.scoring.STOPPED_DRAIN_S", 0.02)
    for timeout_s, stopped, probe in ((0.05, False, False), (0.05, False, True), (30.0, True, True)):
        asyncio.run(run(timeout_s, stopped, probe))
    waited = [record.args for record in caplog.records if "did not finish" in record.msg]
    assert waited == [(0.05,), (0.1,), (0.1,), (0.02,), (0.02,)], (
        "a scorer step and a probe evaluation follow each other"
    )


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Refused("trace", ValueError("its newest tokens are of version 9")), "refused"),
        (Failed("trace", RuntimeError("the weights fail")), "failed"),
    ],
)
def test_a_scoring_that_is_refused_or_fails_is_counted_and_costs_no_scorer(error: Exception, outcome: str) -> None:
    async def run() -> None:
        fleet = OneScorerFleet()
        first, watched = fleet.scorer, watching(fleet)
        watched.scoring.offer(1, None, [])
        await asyncio.sleep(0)
        await first.answer(error)
        assert watched.take(1, 0.1)[f"scorer/{outcome}"] == 1.0
        assert fleet.scorer is first and not fleet.causes
        watched.scoring.offer(2, None, [])
        await asyncio.sleep(0)
        assert first.asked == [1, 2]
        await first.answer({})

    asyncio.run(run())


def test_a_line_that_holds_a_scoring_alone_is_no_record_of_a_step() -> None:
    whole, alone = {"step": 9, "seconds/step": 1.0, "scorer/step": 9.0}, {"step": 9, "scorer/step": 5.0}
    assert [is_of_step(line) for line in (whole, alone, {"step": 0, "total_steps": 9.0})] == [True, False, False]


def test_no_scoring_is_left_out_of_the_counts_by_a_stop(tmp_path: Path) -> None:
    """Found by a reviewer: what was counted between the last record and a stop was lost with the process."""
    pace = {"scorer.score": 7.0}
    world = World(settings(tmp_path, "loop.steps=6"), pace=lambda kind: pace.get(kind, 1.0))
    archive = FakeArchive()
    for last in (2, 4, 6):

        def stop(coordinator: Coordinator, last: int = last) -> None:
            def reported(text: str) -> None:
                if last < 6 and text.startswith(f"step {last:4d}/"):
                    coordinator.stop(Ending(EndCause.SIGNAL, "SIGTERM"))

            coordinator.run_log.say = reported

        check(drive(world, archive, stop, resume=last > 2), world, archive)
    done = sum(row.get("scorer/done", 0.0) for row in archive.recorded.values())
    assert done == world.calls["scorer.score"] > 0


def test_the_time_of_a_publication_holds_no_other_wait(tmp_path: Path) -> None:
    world = World(settings(tmp_path, "scorer.enabled=false"), rewards=lambda ticket, index: float(index % 2))
    archive = FakeArchive()

    def now() -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    async def slow(self: Archiving, *args: Any) -> None:
        await asyncio.sleep(40.0)
        await whole(self, *args)

    whole = Archiving.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Archiving, "begin", slow)
        patch.setattr(time, "time", now)
        check(drive(world, archive), world, archive)
    rows = [row for step, row in archive.recorded.items() if step]
    assert all(row["seconds/archive"] == row["wait/coordinator/archive"] == 40.0 for row in rows)
    assert all(0 < row["seconds/publish"] < 40.0 for row in rows)
