"""The supervised warm-up on in-process actors: what it learns from, when it checks, stops, and goes on."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster.control.actor_errors import Died
from squelch.cluster.loop import warming
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup
from squelch.cluster.loop.warming import REPORT, Progress, Stopped, Truth, Warming, learner_settings, truth_of
from squelch.kit.archive.rows import to_table
from squelch.kit.base.errors import UserError
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket, Trajectory, Turn
from squelch.learner.batching import Row
from squelch.learner.warmup.corpus import Corpus
from squelch.learner.warmup.settings import WarmupConfig
from tests.fakes import clock
from tests.fakes.actors import FakeActors, Fault, World
from tests.fakes.run import settings

SMALL = WarmupConfig(batch=2, held_out=1, check_every=2, save_every=2, tasks=3, samples=4)


def row(number: int) -> Row:
    ids = np.arange(4, dtype=np.int32)
    return Row(f"d{number}", 0, ids[:-1], np.array([1, 2]), ids[2:], np.zeros(2, np.float32), 0.0)


CORPUS = Corpus(tuple(map(row, range(10))), (row(99),))
"""Five optimizer steps."""


def warm(
    tmp_path: Path,
    warmup: WarmupConfig = SMALL,
    faults: tuple[Fault, ...] = (),
    plays: bool = True,
    digest: str = "d",
    stop_at: int = 0,
    failing: Callable[[Ticket], Failure | None] = lambda ticket: None,
    stop_in_check: int = 0,
    overrides: tuple[str, ...] = (),
    truth: Truth | None = None,
) -> tuple[Progress, World, list[str]]:
    config = learner_settings(settings(tmp_path, *overrides), warmup, CORPUS.num_steps(warmup))
    world, said = World(config, faults, rewards=lambda ticket, index: float(index % 2), failing=failing), list[str]()
    work = tmp_path / "out.warmup"
    made = Warming(config, warmup, CORPUS, plays, work, FakeActors(world), digest, said.append, truth)

    def signalled(kind: str, number: int) -> None:
        if kind == "learner.imitate" and world.calls[kind] == stop_at:
            made.stop(signal.SIGTERM)
        if kind == "learner.publish" and world.calls[kind] == stop_in_check:
            made.stop(signal.SIGTERM)

    world.on_call = signalled
    return clock.run(made.run(tmp_path / "out")), world, said


def learned(tmp_path: Path) -> list[str]:
    return (tmp_path / "out" / "model.txt").read_text().splitlines()


@pytest.fixture
def validity(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The format validities that checks find, one after the other."""
    found: list[float] = []
    monkeypatch.setattr(warming, "_metrics", lambda summaries: (0.5, found.pop(0), 1.0))
    return found


def test_every_demonstration_is_learned_from_once_and_the_model_is_written_whole(tmp_path: Path) -> None:
    progress, world, _ = warm(tmp_path)
    steps = [line.partition(":")[2].split("+") for line in learned(tmp_path)]
    assert sorted(name for step in steps for name in step) == sorted(one.group_id for one in CORPUS.trained)
    assert world.calls["learner.imitate"] == progress.step == 5 and progress.tokens == 20
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert [check["step"] for check in report["checks"]] == [0, 5]
    assert report["settings"]["batch"] == 2


def test_a_check_plays_what_was_published(tmp_path: Path) -> None:
    progress, world, said = warm(tmp_path)
    first, last = progress.checks
    assert sorted(world.versions) == [0, 5] and world.calls["player.play"] == 2 * SMALL.tasks
    assert (first.success, first.format_validity, first.varied) == (0.5, 1.0, 1.0)
    assert last.held_out_loss < first.held_out_loss
    assert any(line.startswith("after 5 steps: held-out loss 0.167  success 0.500") for line in said)


def test_without_an_environment_only_the_loss_is_measured(tmp_path: Path) -> None:
    progress, world, _ = warm(tmp_path, plays=False)
    assert [check.success for check in progress.checks] == [None, None]
    assert not {kind for kind in world.calls if kind.startswith(("player", "worker", "filter"))}


@pytest.mark.parametrize("plays", [True, False])
def test_a_learner_whose_bound_is_longer_is_not_cut_off_by_that_of_all_actors(tmp_path: Path, plays: bool) -> None:
    bounds = ("cluster.start_timeout_s=30", "learner.start_timeout_s=90")
    late = r"^start: learner failed: learner rank 0, 1 did not finish start within 90 s"
    with pytest.raises(RuntimeError, match=late):
        warm(tmp_path, faults=(Fault("learner.start", 1, "hang"),), plays=plays, overrides=bounds)


def test_it_stops_at_the_wanted_format_validity(tmp_path: Path, validity: list[float]) -> None:
    validity += [0.0, 0.5, 0.81]
    progress, _, _ = warm(tmp_path, SMALL.model_copy(update={"format_validity": 0.8}))
    assert progress.step == 4 and not validity
    assert len(learned(tmp_path)) == 4


def test_a_model_that_is_well_formed_already_is_left_alone(tmp_path: Path, validity: list[float]) -> None:
    validity += [0.9]
    progress, world, _ = warm(tmp_path, SMALL.model_copy(update={"format_validity": 0.8}))
    assert progress.step == 0 and not world.calls["learner.imitate"]


@pytest.mark.parametrize(
    ("validities", "shares", "stops_at"),
    [([0.0, 0.9, 0.9], [0.0, 0.2, 0.4], 4), ([0.0, 0.5, 0.9], [0.5, 0.5, 0.5], 4), ([0.9] * 4, [0.0] * 4, 5)],
    ids=["truth is last", "format is last", "never"],
)
def test_it_stops_once_both_wanted_shares_are_there(
    tmp_path: Path, validity: list[float], validities: list[float], shares: list[float], stops_at: int
) -> None:
    validity += validities
    wanted = SMALL.model_copy(update={"format_validity": 0.8, "true_reasonings": 0.3})
    progress, _, said = warm(tmp_path, wanted, truth=lambda rows: shares.pop(0))
    assert progress.step == stops_at and not shares
    assert any(line.endswith("true reasonings 0.500") or line.endswith("true reasonings 0.000") for line in said)


def test_reasonings_that_cannot_be_judged_never_are_enough(tmp_path: Path, validity: list[float]) -> None:
    validity += [1.0] * 4
    progress, _, said = warm(tmp_path, SMALL.model_copy(update={"true_reasonings": 0.1}), truth=lambda rows: None)
    assert progress.step == 5 and not any("true reasonings" in line for line in said)


def test_the_share_of_true_reasonings_is_the_judges_over_first_turns_that_were_played() -> None:
    class Judge:
        def facts(self, prompt: str) -> str:
            return prompt

        def claims(self, reasoning: str) -> list[str]:
            return reasoning.split()

        def holds(self, claim: str, facts: str) -> bool:
            return claim == facts

    def one(index: int, prompt: int, reasoning: list[int], failure: Failure | None = None) -> Trajectory:
        ids = np.array([prompt, *reasoning, 0], dtype=np.int32)
        first = Turn(1, len(ids), 1, 1 + len(reasoning), 0.0, 0.0, True, False, 1, 0, 0)
        return Trajectory(
            index, ids, np.arange(len(ids)) > 0, np.zeros(len(ids), np.float32), [first], False, False, failure
        )

    failed = Failure(FailureCause.WORKER_DIED, "gone")
    right, wrong, partly, silent = one(0, 7, [7, 7]), one(1, 7, [8]), one(2, 7, [7, 8]), one(3, 7, [])
    played = [right, wrong, partly, silent, one(4, 7, [7], failed)]
    group = Group(Ticket("t", 0, Task("FrozenLake", 0), 5, 0), "key", played)
    truth = truth_of(Judge(), lambda ids: " ".join(map(str, ids)))
    assert truth([to_table(group)]) == 0.25
    assert truth([to_table(replace(group, trajectories=played[4:]))]) is None


@pytest.mark.parametrize("call", [1, 3, 4, 5])
def test_an_interrupted_warm_up_goes_on_from_its_last_checkpoint_and_ends_alike(tmp_path: Path, call: int) -> None:
    (tmp_path / "whole").mkdir()
    whole, _, _ = warm(tmp_path / "whole")
    with pytest.raises((Died, RuntimeError), match="learner"):
        warm(tmp_path, faults=(Fault("learner.imitate", call),))
    assert not (tmp_path / "out").exists()
    saved = checkpoints(tmp_path / "out.warmup")
    assert [step for step, _ in saved] == ([] if call < 3 else [2] if call < 5 else [4])
    again, world, said = warm(tmp_path)
    assert learned(tmp_path) == learned(tmp_path / "whole")
    assert (again.losses, again.checks) == (whole.losses, whole.checks)
    assert world.calls["learner.imitate"] == 5 - (saved[0][0] if saved else 0)
    assert any("continuing after step" in line for line in said) == bool(saved)


def test_a_signal_ends_it_after_the_step_under_way_which_is_saved(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole, _, _ = warm(tmp_path / "whole")
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 3") as stopped:
        warm(tmp_path, stop_at=3)
    assert stopped.value.number == signal.SIGTERM
    assert [step for step, _ in checkpoints(tmp_path / "out.warmup")] == [3]
    again, _, _ = warm(tmp_path)
    assert (again.losses, learned(tmp_path)) == (whole.losses, learned(tmp_path / "whole"))


def test_a_signal_in_a_check_ends_it_there(tmp_path: Path) -> None:
    wanted = SMALL.model_copy(update={"format_validity": 2.0})
    with pytest.raises(Stopped, match="after step 2"):
        warm(tmp_path, wanted, stop_in_check=2)
    assert [step for step, _ in checkpoints(tmp_path / "out.warmup")] == [2]


def test_a_signal_while_the_actors_start_ends_it_before_a_check(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Warming, "_check", lambda _: pytest.fail("it was checked"))
    start = Warming._start

    async def signalled(made: Warming, resumes: bool) -> None:
        await start(made, resumes)
        made.stop(signal.SIGTERM)

    monkeypatch.setattr(Warming, "_start", signalled)
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 0"):
        warm(tmp_path)
    assert not checkpoints(tmp_path / "out.warmup")


@pytest.mark.parametrize("failed", [1, 3])
def test_a_check_says_what_failed_and_judges_nothing_by_the_few_that_are_left(tmp_path: Path, failed: int) -> None:
    def failing(ticket: Ticket) -> Failure | None:
        late = int(ticket.ticket_id.removeprefix("warmup-")) < failed
        return Failure(FailureCause.GENERATION_TIMEOUT, "9 s") if late else None

    tasks = SMALL.model_copy(update={"tasks": 8})
    text = (
        f"{4 * failed} of 32 trajectories .*failed and count as no success: generation_timeout {4 * failed} .one: 9 s"
    )
    if failed == 1:
        _, _, said = warm(tmp_path, tasks, failing=failing)
        assert sum(bool(re.search(text, line)) for line in said) == 2
        return
    with pytest.raises(UserError, match=text):
        warm(tmp_path, tasks, failing=failing)


def test_a_check_that_fails_loses_no_step_and_is_made_again(tmp_path: Path, validity: list[float]) -> None:
    validity += [0.0, 0.1, 0.9]
    wanted = SMALL.model_copy(update={"format_validity": 0.8})
    with pytest.raises(RuntimeError):
        warm(tmp_path, wanted, faults=(Fault("learner.publish", 3, "fail"),))
    assert [step for step, _ in checkpoints(tmp_path / "out.warmup")] == [4]
    progress, world, _ = warm(tmp_path, wanted)
    assert [check.step for check in progress.checks] == [0, 2, 4] and not world.calls["learner.imitate"]


def test_the_checkpoint_of_another_warm_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises((Died, RuntimeError)):
        warm(tmp_path, faults=(Fault("learner.imitate", 4),))
    with pytest.raises(UserError, match=r"out\.warmup holds an unfinished warm-up with other settings.*remove it"):
        warm(tmp_path, digest="other")


@pytest.mark.parametrize("what", ["die", "fail", "refuse", "hang"])
def test_a_rollout_worker_that_dies_or_does_not_load_the_weights_of_a_check_is_replaced(
    tmp_path: Path, what: str
) -> None:
    progress, _, _ = warm(tmp_path, faults=(Fault("worker.update", 2, what),))
    assert progress.step == 5 and len(progress.checks) == 2


def test_a_check_plays_no_more_at_a_time_than_the_engines_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a reviewer: tasks that waited for an engine ran into their time-outs, and the check failed."""
    playing, most = 0, 0

    async def play(self: Play, ticket: Ticket) -> PlayedGroup:
        nonlocal playing, most
        playing, most = playing + 1, max(most, playing + 1)
        try:
            return await whole(self, ticket)
        finally:
            playing -= 1

    whole = Play.group
    monkeypatch.setattr(Play, "group", play)
    warm(tmp_path, overrides=(f"rollout.max_num_seqs={SMALL.samples}", "rollout.count=2"))
    assert most == min(2, SMALL.tasks)


def test_the_learner_of_a_warm_up_has_no_reference_and_falls_to_a_tenth_of_its_rate(tmp_path: Path) -> None:
    given = settings(tmp_path, "learner.objective.kl.coefficient=0.1", "learner.optimizer.weight_decay=0.02")
    found = learner_settings(given, SMALL, 40).learner
    assert found.objective.kl.coefficient == 0 and not found.objective.needs_critic
    optimizer = found.optimizer
    assert (optimizer.warmup_steps, optimizer.decay_steps, optimizer.weight_decay) == (2, 40, 0.02)
    assert (optimizer.decay, optimizer.learning_rate) == ("cosine", SMALL.learning_rate)


def test_a_step_that_is_not_finite_ends_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="refused"):
        warm(tmp_path, faults=(Fault("learner.imitate", 2, "refuse"),))
    assert not (tmp_path / "out").exists()
