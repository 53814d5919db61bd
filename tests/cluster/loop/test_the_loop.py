"""The real coordinator and fleet on in-process actors: whatever happens, in whatever order, every ticket is accounted
for, no task is trained on twice, and no group is staler than `max_staleness`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Ticket
from tests.fakes import clock
from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STOP = Ending(EndCause.SIGNAL, "SIGTERM")
REPLACED = ("player.play", "player.evaluate", "worker.update", "filter.admit", "filter.close")
"""Calls during which an actor may die and the run goes on."""


def paced(seed: int) -> World.pace:
    """Calls take from no time at all to ten seconds, by a seed: this sets the order of events."""
    chance = random.Random(seed)
    return lambda kind: chance.choice([0.0, 0.1, 1.0, chance.uniform(0, 10)])


def made(world: World) -> tuple[Outcome, FakeArchive]:
    """A whole run, checked."""
    archive = FakeArchive()
    outcome = drive(world, archive)
    check(outcome, world, archive)
    return outcome, archive


def always(reward: float) -> World.rewards:
    return lambda ticket, index: reward


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_a_run_trains_every_step_and_steps_overlap_as_far_as_staleness_allows(tmp_path: Path, staleness: int) -> None:
    mixed = World(configured(tmp_path, f"loop.max_staleness={staleness}", "loop.steps=6"), rewards=lambda t, i: i % 2)
    outcome, archive = made(mixed)
    assert outcome.steps.admission.version == 6 and outcome.ledger.counts()["trained"] == 18
    assert max(mixed.staleness) == staleness, "as stale as allowed when playing is faster than training"
    assert archive.recorded[6]["staleness_max"] == staleness
    for recorded in filter(None, map(archive.recorded.get, range(1, 7))):
        assert recorded["seconds/rollout"] <= recorded["seconds/step"], (
            "what was played before the step is not its wait"
        )


def test_whatever_the_run_waits_for_is_shown_with_how_much_of_it_is_done(tmp_path: Path) -> None:
    words = configured(tmp_path, "loop.steps=2", "validation.every=2", "loop.checkpoint_every=1", "scorer.every=2")
    outcome, _ = made(World(words, rewards=lambda t, i: i % 2, pace=lambda kind: 10.0))
    whats = [work.what for work in outcome.shown]
    assert whats[:4] == [
        "publishing the weights", "measuring before the first step", "step 0: validating on 3 tasks",
        "measuring before the first step",
    ]  # fmt: skip
    step = whats[whats.index("step 2: playing") :]
    assert step[:4] == [
        "step 2: playing", "step 2: measuring before the training", "step 2: training on 3 groups",
        "step 2: publishing the weights",
    ]  # fmt: skip
    assert {"step 2: validating on 3 tasks", "waiting for the scorer", "step 2: writing a checkpoint"} <= {*step}
    assert step[-1] == "ending: writing a checkpoint"
    passes = next(work.counted for work in outcome.shown if work.what == "step 1: training on 3 groups")
    assert passes is not None and passes()[0] > 0, "the learner was asked meanwhile"
    counted = next(work.counted for work in outcome.shown if work.what == "step 2: playing")
    assert counted is not None and counted() == (0, 0, "groups"), "the step is closed"


def test_the_groups_of_a_step_that_are_played_are_counted_while_others_play(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def pace(kind: str) -> float:
        if kind == "player.play" and coordinators:
            seen.append(coordinators[0].steps.played(1))
        return 1.0 + len(seen)

    coordinators: list[Coordinator] = []
    world = World(configured(tmp_path, "loop.steps=1", "loop.prompts=3"), pace=pace)
    drive(world, FakeArchive(), coordinators.append)
    assert seen[0][0] == 0 and coordinators[0].steps.played(1) == (0, 0)


@QUICK
@given(seed=st.integers(0, 10**9), staleness=st.integers(0, 3), players=st.integers(1, 3), workers=st.integers(1, 3))
def test_whatever_the_order_of_events_the_ledger_balances_and_staleness_is_bounded(
    tmp_path_factory, seed: int, staleness: int, players: int, workers: int
) -> None:
    words = (f"loop.max_staleness={staleness}", f"environment_actor.count={players}", f"rollout.count={workers}")
    made(World(configured(tmp_path_factory.mktemp("run"), *words), pace=paced(seed)))


@QUICK
@given(
    seed=st.integers(0, 10**9),
    staleness=st.integers(0, 3),
    deaths=st.lists(st.tuples(st.sampled_from(REPLACED), st.integers(1, 12), st.booleans()), max_size=3),
)
def test_deaths_of_actors_that_are_replaced_lose_no_ticket_and_train_on_none_twice(
    tmp_path_factory, seed: int, staleness: int, deaths: list[tuple[str, int, bool]]
) -> None:
    faults = tuple(Fault(kind, call, "die", after) for kind, call, after in deaths)
    words = (f"loop.max_staleness={staleness}", "cluster.max_restarts=9")
    outcome, _ = made(World(configured(tmp_path_factory.mktemp("run"), *words), faults, paced(seed)))
    assert outcome.steps.admission.clock == 4


def test_groups_of_which_a_dead_worker_lost_a_part_are_retried(tmp_path: Path) -> None:
    world = World(configured(tmp_path, "sampling.group_size=4"), rewards=lambda t, i: i % 2)
    archive, coordinators = FakeArchive(), []

    def kill(kind: str, _: int) -> None:
        if kind == "player.play" and world.calls[kind] == 5:
            for member in coordinators[-1].fleet.workers.present():
                member.actor.kill()

    world.on_call = kill
    outcome = drive(world, archive, coordinators.append)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 12 and outcome.fleet.restarts.counts["rollout-0"] == 1
    groups = archive.rows.values()
    assert not any(t.failure for group in groups for t in group.trajectories), "those that ended early are no sample"


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_every_call_of_every_actor_costs_nothing_but_time(tmp_path: Path, kind: str, after: bool) -> None:
    calls = World(configured(tmp_path / "whole"), rewards=lambda t, i: i % 2)
    made(calls)
    for call in range(1, calls.calls[kind] + 1):
        world = World(configured(tmp_path / str(call)), (Fault(kind, call, "die", after),), rewards=lambda t, i: i % 2)
        outcome, _ = made(world)
        assert outcome.ledger.counts()["trained"] == 12, f"{kind} call {call}"
        assert sum(outcome.fleet.restarts.counts.values()) == 1


@QUICK
@given(seed=st.integers(0, 10**9), staleness=st.integers(0, 3), at=st.integers(1, 70))
@example(seed=33397177, staleness=1, at=34)  # a signal as the last group of a step is decided
def test_a_stop_at_any_point_finishes_the_step_in_training_and_a_resume_completes_the_run(
    tmp_path_factory, seed: int, staleness: int, at: int
) -> None:
    world = World(configured(tmp_path_factory.mktemp("run"), f"loop.max_staleness={staleness}"), pace=paced(seed))
    archive, coordinators, announced = FakeArchive(), [], []

    def stop(_: str, number: int) -> None:
        if number >= at and coordinators:
            announced.append(coordinators[-1].last_work)
            coordinators[-1].stop(STOP)

    world.on_call = stop
    outcome = drive(world, archive, coordinators.append)
    check(outcome, world, archive)
    assert outcome.coordinator.ending in (STOP, None), "None where the run ended before the stop came"
    clock = outcome.steps.admission.clock
    if announced:
        done = f"finishing step {clock}, then a checkpoint", f"leaving step {clock + 1}, which"
        over = ("the run is ending already",) if clock == 4 else ()
        assert announced[0].startswith((*done, *over))
    world.on_call = None
    resumed = drive(world, archive, resume=True)
    check(resumed, world, archive)
    assert resumed.steps.admission.clock == 4
    assert resumed.steps.source.cursor == resumed.ledger.issued, "tasks are played in order and none is skipped"


PACE = st.tuples(st.integers(0, 3), st.integers(1, 4))
"""`loop.max_staleness`, `loop.prompts`."""


@QUICK
@given(seed=st.integers(0, 10**9), paces=st.lists(PACE, min_size=2, max_size=3), stops=st.lists(st.integers(1, 60)))
def test_a_resume_with_another_staleness_or_another_number_of_prompts_plays_every_task_once(
    tmp_path_factory, seed: int, paces: list[tuple[int, int]], stops: list[int]
) -> None:
    """Found by a reviewer: with less staleness open tickets were forgotten; with fewer prompts a task came twice."""
    folder, archive = tmp_path_factory.mktemp("run"), FakeArchive()
    at = dict(enumerate(stops))
    for part, (staleness, prompts) in enumerate(paces):
        words = (f"loop.max_staleness={staleness}", f"loop.prompts={prompts}", "loop.steps=8", "filter.refill=true")
        world, coordinators = World(configured(folder, *words), pace=paced(seed + part)), []

        def stop(_: str, number: int, part: int = part, coordinators: list[Coordinator] = coordinators) -> None:
            if part + 1 < len(paces) and number >= at.get(part, 20) and coordinators:
                coordinators[-1].stop(STOP)

        world.on_call = stop
        outcome = drive(world, archive, coordinators.append, resume=part > 0)
    seeds = [archive.rows[ticket].ticket.task.seed for rows in archive.steps.values() for ticket in rows]
    cursor = outcome.steps.source.cursor
    assert outcome.steps.admission.clock == 8 and outcome.ledger.balanced()
    assert sorted(seeds) == list(range(min(seeds), min(seeds) + cursor)), "no task is lost, and none comes twice"


def test_a_resume_with_less_staleness_plays_the_tickets_that_were_open(tmp_path: Path) -> None:
    ahead = World(configured(tmp_path, "loop.max_staleness=2", "loop.steps=6"), rewards=lambda t, i: i % 2)
    archive, coordinators = FakeArchive(), []
    ahead.on_call = lambda kind, _: coordinators[-1].stop(STOP) if kind == "learner.train" and coordinators else None
    drive(ahead, archive, coordinators.append)
    now = World(configured(tmp_path, "loop.max_staleness=0", "loop.steps=6"), rewards=lambda t, i: i % 2)
    outcome = drive(now, archive, resume=True)
    seeds = [archive.rows[ticket].ticket.task.seed for rows in archive.steps.values() for ticket in rows]
    assert sorted(seeds) == list(range(18)) and outcome.steps.source.cursor == 18


@pytest.mark.parametrize("when", ["rows.fetch", "refill"])
def test_a_stop_between_a_decision_and_its_step_resumes_to_the_uninterrupted_run(tmp_path: Path, when: str) -> None:
    words = ("filter.refill=true", "filter.max_refill_rounds=2", "filter.rule=top_k", "filter.rho=0.75")

    def rewards(ticket, index: int) -> float:
        return float(random.Random(f"{ticket.ticket_id} {index}").random() < 0.3)

    whole, wanted = made(World(configured(tmp_path / "whole", *words), rewards=rewards))
    world = World(configured(tmp_path / "parts", *words), rewards=rewards)
    archive, coordinators = FakeArchive(), []

    def stop(kind: str, _: int) -> None:
        windows = coordinators[-1].steps.windows.values() if coordinators else ()
        refills = any(len(window.tickets) > world.config.loop.prompts for window in windows)
        if (
            coordinators
            and coordinators[-1].steps.admission.clock == 2
            and (kind == when or (when == "refill" and refills))
        ):
            coordinators[-1].stop(STOP)

    world.on_call = stop
    stopped = drive(world, archive, coordinators.append)
    check(stopped, world, archive)
    assert stopped.steps.admission.clock == 2 and stopped.ledger.counts()["cancelled"] >= 3
    world.on_call = None
    resumed = drive(world, archive, resume=True)
    check(resumed, world, archive)
    assert archive.steps == wanted.steps and resumed.steps.source.cursor == whole.steps.source.cursor
    assert resumed.ledger.counts() == whole.ledger.counts()


@QUICK
@given(seed=st.integers(0, 10**9), staleness=st.integers(0, 3), at=st.integers(1, 70), faults=st.integers(0, 2))
def test_a_driver_killed_at_any_point_goes_on_from_its_last_checkpoint_without_training_on_a_task_twice(
    tmp_path_factory, seed: int, staleness: int, at: int, faults: int
) -> None:
    words = (f"loop.max_staleness={staleness}", "loop.checkpoint_every=1", "cluster.max_restarts=9")
    deaths = tuple(Fault("player.play", 3 * k + 2) for k in range(faults))
    world = World(configured(tmp_path_factory.mktemp("run"), *words), deaths, paced(seed))
    archive = FakeArchive()

    def kill(_: str, number: int) -> None:
        if number == at:
            clock.crash()

    world.on_call = kill
    try:
        drive(world, archive)
    except clock.Crashed:
        world.on_call = None
        outcome = drive(world, archive, resume=True)
        check(outcome, world, archive)
        assert outcome.steps.admission.clock == 4


@pytest.mark.parametrize("target", ["groups", "regulariser", "task"])
def test_dropped_groups_enter_the_step_but_for_the_term_that_is_filtered(tmp_path: Path, target: str) -> None:
    mixed = World(
        configured(tmp_path, f"filter.target={target}", "learner.objective.divisor=window", "loop.steps=4"),
        rewards=lambda ticket, index: float(index % 2 and ticket.task.seed % 3),
    )
    outcome, archive = made(mixed)
    counts, groups = outcome.ledger.counts(), target == "groups"
    assert (counts["dropped"] > 0, counts["spared"] > 0) == (groups, not groups)
    for step, terms in mixed.terms.items():
        by = {"kept": set(), "dropped": set()}
        for ticket, decision in archive.steps[step].items():
            by[decision].add(ticket)
        assert by["dropped"] and by["kept"]
        learned = by["kept"] if target == "groups" else by["kept"] | by["dropped"]
        assert set(mixed.reported[step]) == learned
        assert archive.recorded[step]["groups/trained"] == len(learned)
        assert set(terms.spared) == (set() if target == "groups" else by["dropped"])
        assert terms.loss_scale == (0.9 if target == "groups" else 1.0) == archive.recorded[step]["loss_scale"]
        assert target == "groups" or terms.without == target
        groups = [[t.episode_return for t in archive.rows[ticket].trajectories] for ticket in archive.steps[step]]
        assert terms.window_std == pytest.approx(np.mean([np.var(returns, ddof=1) for returns in groups]) ** 0.5)


def test_steps_without_signal_publish_nothing_and_count_as_completed(tmp_path: Path) -> None:
    world = World(configured(tmp_path, "filter.no_signal_limit=99"), rewards=always(1.0))
    outcome, _ = made(world)
    assert outcome.steps.admission.version == 0 and outcome.steps.admission.clock == 4
    assert outcome.ledger.counts()["dropped"] == 12 and world.calls["learner.train"] == 0
    assert sum("no signal" in line for line in outcome.said) == 4


def test_a_step_whose_spread_is_too_small_for_an_absolute_tolerance_says_which_setting_would_keep_it(
    tmp_path: Path,
) -> None:
    words = ("filter.no_signal_limit=2", "filter.epsilon_unit=absolute")
    outcome, _ = made(World(configured(tmp_path, *words), rewards=lambda t, i: 0.01 * (i % 2)))
    said = [line for line in outcome.said if "no signal" in line]
    assert len(said) == 2 and all("filter.epsilon_unit=relative, would keep groups" in line for line in said)
    outcome, _ = made(World(configured(tmp_path / "relative"), rewards=lambda t, i: 0.01 * (i % 2)))
    assert not any("no signal" in line for line in outcome.said) and outcome.steps.admission.version == 4


def found(archive: FakeArchive) -> list[tuple[str, str, int]]:
    """(change, finding, step) of each event of a finding that is more than a notice."""
    told = [facts for facts in archive.facts if "finding" in facts and facts["severity"] != "notice"]
    return [(facts["change"], facts["finding"], facts["step"]) for facts in told]


def test_a_run_that_learns_nothing_says_why_once_in_its_summary_and_in_its_file(tmp_path: Path) -> None:
    words = ("filter.no_signal_limit=99", "loop.steps=12")
    outcome, archive = made(World(configured(tmp_path, *words), rewards=always(0.0)))
    assert found(archive)[:2] == [("began", "none_solved", 10), ("began", "reward_constant", 10)]
    (line,) = [line for line in outcome.said if "WARNING none_solved" in line]
    assert line.startswith(
        "step   10  WARNING none_solved: None of the completions solves the task in 100% of the groups"
    )
    assert f"squelch train {tmp_path}/run/config.yaml name=run-again" in line and "more: squelch check " in line
    (warning,) = outcome.coordinator.outcome().warnings
    assert warning.startswith("none_solved (warning, since step 1): None of the completions")
    told = RunFolder(tmp_path / "run").findings()
    assert told is not None and [one.name for one, _ in told][:2] == ["none_solved", "reward_constant"]
    assert told[0][1] in line and told[0][0].examples[0].text.endswith("completions, each with reward 0")


def test_a_run_that_ends_because_it_learns_nothing_says_what_is_wrong_by_the_steps_that_it_has(tmp_path: Path) -> None:
    """It ends after five steps by default, and the findings need ten."""
    outcome, archive = made(World(configured(tmp_path, "loop.steps=12"), rewards=always(0.0)))
    ending = outcome.coordinator.ending
    assert ending is not None and ending.cause is EndCause.NO_SIGNAL and outcome.steps.admission.clock == 5
    assert found(archive)[:2] == [("began", "reward_constant", 5), ("began", "none_solved", 5)]
    told = RunFolder(tmp_path / "run").findings() or []
    assert [(one.name, one.severity) for one, _ in told][:2] == [
        ("reward_constant", "critical"),
        ("none_solved", "warning"),
    ]


def test_a_critical_finding_pauses_a_run_that_asks_for_it_and_an_ignored_one_is_silent(tmp_path: Path) -> None:
    words = ("filter.no_signal_limit=99", "loop.steps=30", "loop.on_alarm=pause")
    outcome, archive = made(World(configured(tmp_path / "paused", *words), rewards=always(0.0)))
    assert ("worsened", "reward_constant", 20) in found(archive)
    ending = outcome.coordinator.ending
    assert ending is not None and ending.cause is EndCause.PAUSED and outcome.steps.admission.clock == 21
    assert ending.text.startswith("paused: reward_constant: No group has had reward variance")
    ignoring = "findings.ignore=[reward_constant, none_solved, gradient_zero]"
    outcome, archive = made(World(configured(tmp_path / "whole", *words, ignoring), rewards=always(0.0)))
    assert found(archive) == [] and outcome.coordinator.ending is None


def raising(ticket: Ticket) -> Failure | None:
    """Why the trajectories of a training ticket fail."""
    broken = Failure(FailureCause.AGENT_ERROR, f"no connection to port {ticket.task.seed}")
    return broken if ticket.task.split == "train" else None


@pytest.mark.parametrize(
    ("words", "steps", "rule"),
    [
        (("filter.no_signal_limit=2",), 2, "filter.no_signal_limit=2"),
        (("filter.no_signal_limit=2", "filter.rule=none"), 2, "filter.no_signal_limit=2"),
        (("filter.no_signal_limit=2", "filter.on_no_signal=passthrough"), 2, "filter.no_signal_limit=2"),
        (("filter.on_no_signal=abort",), 1, "filter.on_no_signal=abort"),
        ((), 4, "in every step"),
    ],
)
def test_a_run_of_which_nothing_counts_says_why_at_once_and_ends_so(
    tmp_path: Path, words: tuple[str, ...], steps: int, rule: str
) -> None:
    outcome, archive = made(World(configured(tmp_path, *words), failing=raising))
    assert outcome.steps.admission.clock == steps
    assert found(archive)[:1] == [("began", "trajectories_fail", 1 if steps == 1 else 2)][: steps > 1]
    why = "no group counts: 12 of 12 trajectories failed, all of them: agent_error: no connection to port "
    assert not any("no signal" in line for line in outcome.said)
    ended = outcome.coordinator.outcome()
    assert ended.ending.cause is EndCause.NOTHING_COUNTS and not ended.ending.complete and not ended.ending.final
    assert ended.ending.text.startswith(f"nothing counts: {rule}; {why}")


def test_failures_are_a_critical_finding_with_an_example_that_ends_when_they_do(tmp_path: Path) -> None:
    config = configured(tmp_path, "loop.steps=8")
    world, archive = World(config, failing=raising, rewards=lambda t, i: i % 2), FakeArchive()
    outcome = drive(world, archive, lambda one: setattr(world, "on_call", stop_after(one, 2)))
    check(outcome, world, archive)
    clock = outcome.steps.admission.clock
    assert found(archive) == [("began", "trajectories_fail", 2)]
    (one, _), *_ = RunFolder(tmp_path / "run").findings() or ()
    assert one.severity == "critical" and "agent_error: no connection to port" in one.examples[0].text
    world.failing, world.on_call = lambda ticket: None, None
    resumed = drive(world, archive, resume=True)
    assert resumed.steps.admission.clock == 8 and resumed.coordinator.ending is None
    assert found(archive)[1:] == [("ended", "trajectories_fail", clock + 3)]
    assert RunFolder(tmp_path / "run").findings() == []


def stop_after(coordinator: Coordinator, step: int):
    """Stops the run once it has completed these steps."""

    def stop(*_: object) -> None:
        if coordinator.steps.admission.clock >= step:
            coordinator.stop(STOP)

    return stop


@pytest.mark.parametrize("words", [("filter.on_no_signal=abort",), ("filter.no_signal_limit=2",)])
def test_a_run_without_signal_ends_where_settings_say_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome, _ = made(World(configured(tmp_path, *words), rewards=always(0.0)))
    ending = outcome.coordinator.ending
    assert ending.cause is EndCause.NO_SIGNAL
    why = "every score is zero; only filter.rule=none or filter.on_no_signal=passthrough would keep groups"
    assert ending.text == f"no signal: {words[0]}, nothing kept of 3 groups ({why})"
    assert outcome.steps.admission.clock == (1 if "abort" in words[0] else 2)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_refill_plays_as_many_tickets_as_are_missing_and_no_more_rounds_than_allowed(
    tmp_path: Path, staleness: int
) -> None:
    words = ("filter.refill=true", "filter.max_refill_rounds=2", f"loop.max_staleness={staleness}", "filter.rule=top_k")
    world = World(
        configured(tmp_path, *words, "filter.rho=1.0"), rewards=lambda t, i: float(i % 2 and t.task.seed % 3 == 0)
    )
    outcome, archive = made(world)
    assert outcome.ledger.issued > 12 and all(len(rows) <= 9 for rows in archive.steps.values())
    assert outcome.steps.source.cursor == outcome.ledger.issued


def test_updates_that_the_learner_refuses_publish_nothing_and_end_the_run_after_so_many_in_a_row(
    tmp_path: Path,
) -> None:
    mixed = {"rewards": lambda t, i: i % 2}
    world = World(configured(tmp_path / "a"), refuse_updates=frozenset({2}), **mixed)
    outcome, _ = made(world)
    assert outcome.steps.admission.version == 3 and outcome.ledger.reasons("failed") == {"refused_by_learner": 3}
    assert any("non-finite loss in group 000002-000" in line for line in outcome.said)
    refused = frozenset({1, 3, 4, 5})
    words = ("learner.max_bad_steps=3", "loop.steps=9")
    world = World(configured(tmp_path / "b", *words), refuse_updates=refused, **mixed)
    outcome, _ = made(world)
    assert outcome.coordinator.ending.cause is EndCause.REFUSED_STEPS and outcome.steps.admission.clock == 5
    assert "3 steps in a row refused" in outcome.coordinator.ending.text
    assert "000005-000" in outcome.coordinator.ending.text


def test_refused_steps_are_counted_over_a_resume(tmp_path: Path) -> None:
    words = ("learner.max_bad_steps=3", "loop.steps=9", "loop.checkpoint_every=1")
    world = World(configured(tmp_path, *words), refuse_updates=frozenset({1, 2, 3}), rewards=lambda t, i: i % 2)
    archive = FakeArchive()

    def stop_at_two(coordinator: Coordinator) -> None:
        world.on_call = lambda kind, _: coordinator.stop(STOP) if world.calls["learner.train"] == 2 else None

    drive(world, archive, stop_at_two)
    world.on_call = None
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.coordinator.ending.cause is EndCause.REFUSED_STEPS and outcome.steps.admission.clock == 3


def test_an_early_stop_ends_the_run_after_its_step_and_counts_over_a_resume(tmp_path: Path) -> None:
    def fading(ticket, index: int) -> float:
        return float(index % 2) if ticket.step <= 10 else 0.1 * (index % 2)

    words = (
        "validation.early_stop=paper",
        "filter.no_signal_limit=99",
        "loop.steps=30",
        "validation.every=0",
        "loop.checkpoint_every=1",
    )
    whole, _ = made(World(configured(tmp_path / "whole", *words), rewards=fading))
    assert whole.coordinator.ending.cause is EndCause.EARLY_STOP and whole.steps.admission.clock == 15
    world = World(configured(tmp_path / "parts", *words), rewards=fading)
    archive = FakeArchive()

    def stop_at_twelve(coordinator: Coordinator) -> None:
        world.on_call = lambda kind, _: coordinator.stop(STOP) if world.calls["filter.close"] == 12 else None

    drive(world, archive, stop_at_twelve)
    world.on_call = None
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.coordinator.ending == whole.coordinator.ending and outcome.steps.admission.clock == 15


def test_the_step_at_which_a_run_ends_by_its_own_rule_is_validated_and_probed_as_the_last(tmp_path: Path) -> None:
    words = ("scorer.probe.every=50", "validation.every=50", "filter.no_signal_limit=3", "loop.steps=30")
    world = World(configured(tmp_path, *words), rewards=always(1.0))
    outcome, archive = made(world)
    ended = outcome.steps.admission.clock
    assert outcome.coordinator.ending.cause is EndCause.NO_SIGNAL and ended == 3
    assert sorted(world.probed) == [0, 3]
    assert [step for step, row in sorted(archive.recorded.items()) if "validation/success" in row] == [0, 3]


def test_a_success_that_collapses_ends_the_run_before_its_last_step(tmp_path: Path) -> None:
    words = ("validation.every=1", "validation.early_stop=paper", "validation.collapse_threshold=1.0", "loop.steps=9")
    world = World(configured(tmp_path, *words, "filter.no_signal_limit=99"), rewards=lambda t, i: 0.0)
    outcome, archive = made(world)
    assert outcome.coordinator.ending.cause is EndCause.EARLY_STOP
    assert outcome.coordinator.ending.text == "early stop: validation success below 100% at 5 validations in a row"
    assert sorted(archive.recorded) == [0, 1, 2, 3, 4], "with the one before training, five validations"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("learner.train", 2, "refuse"), "learner.train refused"),
        (Fault("learner.save", 2, "refuse"), "learner.save refused"),
        (Fault("filter.close", 2, "refuse"), "filter: filter.close refused"),
    ],
)
def test_what_cannot_be_replaced_ends_the_run_by_name_and_the_run_goes_on_when_resumed(
    tmp_path: Path, fault: Fault, message: str
) -> None:
    words = ("loop.checkpoint_every=1",)
    world, archive = World(configured(tmp_path, *words), (fault,), rewards=lambda t, i: i % 2), FakeArchive()
    with pytest.raises(Exception, match=message):
        drive(world, archive)
    world.faults = ()
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 12


@pytest.mark.parametrize("kind", [*REPLACED, "scorer.score"])
@pytest.mark.parametrize("what", ["hang", "stall"])
def test_an_actor_that_hangs_in_a_call_is_replaced_and_costs_nothing_but_time(
    tmp_path: Path, kind: str, what: str
) -> None:
    fault = Fault(kind, 2, what)
    words = ("cluster.hung_after_s=20", "loop.steps=8")
    world = World(configured(tmp_path, *words), (fault,), rewards=lambda t, i: i % 2)
    outcome, archive = made(world)
    assert outcome.ledger.counts()["trained"] == 24
    actor = {"player": "env-", "worker": "rollout-", "filter": "filter", "scorer": "scorer"}[kind.partition(".")[0]]
    ((name, causes),) = [(name, archive.causes(name)) for name in outcome.fleet.restarts.counts]
    assert name.startswith(actor) and "cluster.hung_after_s" in causes["restart"]
    late = "did not answer" if what == "hang" else "finished no"
    assert late in causes["restart"] and late in causes["late"], "the watchdog names it before it is ended"


def test_a_worker_that_is_late_with_weights_or_fails_their_checks_is_replaced(tmp_path: Path) -> None:
    for what, cause in (("fail", "worker.update failed"), ("hang", "no answer within 30 s (rollout.update_timeout_s)")):
        words = ("cluster.hung_after_s=500", "loop.steps=8")
        fault = Fault("worker.update", 4, what)
        world = World(configured(tmp_path / what, *words), (fault,), rewards=lambda t, i: i % 2)
        outcome, archive = made(world)
        assert outcome.ledger.counts()["trained"] == 24 and outcome.fleet.restarts.counts == {"rollout-1": 1}
        assert archive.causes("rollout-1")["restart"] == f"version 1 was not loaded: {cause}"


def test_weights_that_fail_every_workers_checks_end_the_run_and_name_them(tmp_path: Path) -> None:
    faults = tuple(Fault("worker.update", call, "fail") for call in range(3, 60))
    world = World(configured(tmp_path), faults, rewards=lambda t, i: i % 2)
    with pytest.raises(RuntimeError, match=r"rollout-\d died 4 times.*worker\.update failed|no rollout worker is left"):
        drive(world, FakeArchive())


def test_an_actor_that_dies_again_and_again_waits_longer_each_time_and_then_ends_the_run_with_the_last_cause(
    tmp_path: Path,
) -> None:
    faults = tuple(Fault("filter.admit", call, "die") for call in range(1, 60))
    words = ("cluster.max_restarts=3", "cluster.restart_backoff_s=5")
    world, archive = World(configured(tmp_path, *words), faults, lambda kind: 0.0), FakeArchive()
    with pytest.raises(RuntimeError, match=r"filter died 4 times within 3600 s .*last cause: filter is gone"):
        drive(world, archive)
    assert archive.events.count(("filter", "restart")) == 4


def test_an_environment_actor_that_never_answers_costs_its_tickets_attempts_and_then_the_ticket(tmp_path: Path) -> None:
    late = World(configured(tmp_path / "one"), (Fault("player.play", 2, "hang"),), rewards=lambda t, i: i % 2)
    outcome, _ = made(late)
    assert outcome.ledger.counts()["trained"] == 12, "the ticket is retried by the next actor"
    hangs = tuple(Fault("player.play", call, "hang") for call in range(1, 10))
    words = ("loop.max_attempts=3", "cluster.hung_after_s=500", "scorer.probe.every=0")
    never = World(configured(tmp_path / "never", *words), hangs, rewards=lambda t, i: i % 2)
    outcome, _ = made(never)
    assert outcome.ledger.reasons("failed") == {"group_timeout": 3} and outcome.ledger.counts()["trained"] == 9


def test_an_actor_that_raises_costs_its_tickets_attempts_and_the_ticket_says_why(tmp_path: Path) -> None:
    faults = tuple(Fault("player.play", call, "fail") for call in range(1, 10))
    world = World(configured(tmp_path, "scorer.probe.every=0"), faults, rewards=lambda t, i: i % 2)
    outcome, _ = made(world)
    assert outcome.ledger.reasons("failed") == {"actor_error": 3}
    assert outcome.fleet.restarts.counts == {}


@pytest.mark.parametrize("what", ["die", "hang", "fail", "refuse"])
def test_nothing_that_befalls_the_scorer_holds_back_training(tmp_path: Path, what: str) -> None:
    world = World(configured(tmp_path), (Fault("scorer.score", 2, what),), rewards=lambda t, i: i % 2)
    outcome, archive = made(world)
    assert outcome.ledger.counts()["trained"] == 12 and sorted(archive.recorded) == [0, 1, 2, 3, 4]
    counted = outcome.scoring.pace.outcomes
    assert counted["skipped"] >= 1 if what == "hang" else counted["refused" if what == "refuse" else "failed"] == 1


@pytest.mark.parametrize("seed", range(20))
def test_every_finished_scoring_of_a_run_is_recorded_once(tmp_path: Path, seed: int) -> None:
    words = ("scorer.every=1", "scorer.probe.every=0", "loop.steps=6")
    world = World(configured(tmp_path, *words), pace=paced(seed), rewards=lambda t, i: i % 2)
    outcome, archive = made(world)
    lines = [*archive.scored_alone, *archive.recorded.values()]
    recorded = [line["scorer/step"] for line in lines if "scorer/step" in line]
    assert sorted(recorded) == sorted(map(float, archive.scored)) == sorted(set(recorded))
    assert len(recorded) == outcome.scoring.pace.outcomes["done"]


def test_a_scorer_that_dies_while_it_is_idle_is_replaced_at_once_with_its_state(tmp_path: Path) -> None:
    config, at = configured(tmp_path, "scorer.every=4", "scorer.probe.every=0"), dict[str, float]()
    world = World(config, rewards=lambda t, i: i % 2)
    coordinators: list[Coordinator] = []

    def kill(kind: str, _: int) -> None:
        now = asyncio.get_running_loop().time()
        at.setdefault(f"{kind} {world.calls[kind]}", now)
        if kind == "learner.train" and world.calls[kind] == 2:
            coordinators[0].fleet.scorer.kill()

    world.on_call = kill
    outcome = drive(world, archive := FakeArchive(), coordinators.append)
    check(outcome, world, archive)
    assert at["scorer.restore 1"] - at["learner.train 2"] < 1 and "scorer.restore 2" not in at
    assert at["scorer.restore 1"] < at["scorer.score 2"] and outcome.fleet.restarts.counts == {"scorer": 1}
    assert outcome.scoring.pace.outcomes == {"done": 2}


@pytest.mark.parametrize("what", ["die", "hang", "fail"])
def test_a_scorer_that_does_not_take_the_state_is_replaced_until_restarts_are_used_up(
    tmp_path: Path, what: str
) -> None:
    words = ("loop.steps=8", "cluster.max_restarts=2", "validation.every=0", "scorer.probe.every=0")
    faults = (Fault("scorer.score", 2, "die"), *(Fault("scorer.restore", call, what) for call in (1, 2, 3)))
    pace = {"learner.train": 100.0}
    slow = World(configured(tmp_path, *words), faults, lambda kind: pace.get(kind, 1.0), rewards=lambda t, i: i % 2)
    outcome, archive = made(slow)
    assert outcome.fleet.scorer is None and outcome.fleet.restarts.counts == {"scorer": 2}
    assert outcome.ledger.counts()["trained"] == 24 and len(archive.scored) == 1


@pytest.mark.parametrize("what", ["die", "hang", "fail"])
def test_a_scorer_that_does_not_take_its_state_at_a_resume_is_replaced(tmp_path: Path, what: str) -> None:
    words = ("loop.checkpoint_every=1", "scorer.probe.every=0")
    world, archive = World(configured(tmp_path, *words), rewards=lambda t, i: i % 2), FakeArchive()
    check(drive(world, archive), world, archive)
    world.config = configured(tmp_path, *words, "loop.steps=6")
    world.faults = (Fault("scorer.restore", 1, what),)
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 18 and outcome.fleet.restarts.counts == {"scorer": 1}
    assert world.calls["scorer.restore"] == 2, "the successor took it"


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_probe_is_read_from_the_same_tasks_before_training_every_few_steps_and_at_the_end(
    tmp_path: Path, staleness: int
) -> None:
    overrides = ("loop.steps=5", f"loop.max_staleness={staleness}")
    world = World(configured(tmp_path, *overrides), rewards=lambda t, i: i % 2)
    outcome, archive = made(world)
    assert world.probed == {step: ["probe-000", "probe-001"] for step in (0, 2, 4, 5)}
    read = [metrics["probe/step"] for _, metrics in sorted(archive.recorded.items()) if "probe/step" in metrics]
    assert read == sorted(set(read)) and read[0] == 0.0 and read[-1] == 5.0, "the last one with the last step"
    assert outcome.ledger.counts()["trained"] == 15, "the probe's tickets are not in the ledger"
    timed = [step for step, metrics in sorted(archive.recorded.items()) if "seconds/probe" in metrics]
    assert timed == [1, 2, 4, 5], "the evaluation before training is timed with step 1"


def test_a_reading_still_under_way_at_the_last_step_does_not_cost_the_run_its_last_one(tmp_path: Path) -> None:
    world = World(configured(tmp_path, "loop.steps=5"), rewards=lambda t, i: i % 2)
    world.pace = lambda kind: 40.0 if kind == "scorer.probe" else 1.0
    _, archive = made(world)
    recorded = [*archive.scored_alone, archive.recorded[5]]
    assert [metrics["probe/step"] for metrics in recorded if "probe/step" in metrics] == [0.0, 5.0]


@pytest.mark.parametrize("killed", [False, True])
def test_a_reading_of_the_probe_that_was_under_way_when_the_run_ended_is_read_again(
    tmp_path: Path, killed: bool
) -> None:
    """Seen in a study: the probe evaluation of the step at which a run was killed was missing from its series."""
    slow = ("loop.checkpoint_every=1", "scorer.every=9", "scorer.timeout_s=500")
    world = World(configured(tmp_path, *slow), (Fault("scorer.probe", 2, "hang"),), rewards=lambda t, i: i % 2)
    archive, coordinators = FakeArchive(), []

    def end(kind: str, _: int) -> None:
        if coordinators and coordinators[-1].steps.admission.clock == 2 and kind == "learner.train":
            clock.crash() if killed else coordinators[-1].stop(STOP)

    world.on_call = end
    if killed:
        with pytest.raises(clock.Crashed):
            drive(world, archive, coordinators.append)
    else:
        drive(world, archive, coordinators.append)
    stopped_at = coordinators[-1].steps.admission.clock
    if killed:  # a process that is stopped before it has read it again leaves it to the next one
        again = World(configured(tmp_path, *slow), rewards=lambda t, i: i % 2)
        again.on_call = lambda kind, _: coordinators[-1].stop(STOP) if kind == "player.play" else None
        drive(again, archive, coordinators.append, resume=True)
        assert coordinators[-1].steps.admission.clock == 2 and not again.probed
    assert 2 in world.probed and not any(f.get("probe/step") == 2.0 for f in archive.recorded.values())
    again = World(configured(tmp_path, *slow), rewards=lambda t, i: i % 2)
    outcome = drive(again, archive, resume=True)
    check(outcome, again, archive)
    assert sorted(again.probed) == ([2, 4] if stopped_at == 2 else [4]), "of a step whose weights are there"
    read = [metrics["probe/step"] for _, metrics in sorted(archive.recorded.items()) if "probe/step" in metrics]
    assert (2.0 in read) == (stopped_at == 2) and read[-1] == 4.0


@pytest.mark.parametrize("what", ["die", "hang", "fail", "refuse"])
def test_a_probe_evaluation_that_fails_is_reported_and_training_goes_on(tmp_path: Path, what: str) -> None:
    world = World(configured(tmp_path), (Fault("scorer.probe", 1, what),), rewards=lambda t, i: i % 2)
    outcome, archive = made(world)
    assert outcome.ledger.counts()["trained"] == 12
    read = [metrics["probe/step"] for _, metrics in sorted(archive.recorded.items()) if "probe/step" in metrics]
    assert 0.0 not in read and (what == "hang" or 4.0 in read)


def test_groups_whose_workers_all_die_again_and_again_end_the_run_and_name_the_worker(tmp_path: Path) -> None:
    faults = tuple(Fault("worker.update", call, "die") for call in range(3, 40))
    world = World(configured(tmp_path, "cluster.max_restarts=2"), faults, rewards=lambda t, i: i % 2)
    with pytest.raises(RuntimeError, match=r"rollout-\d died 3 times|no rollout worker is left"):
        drive(world, FakeArchive())
