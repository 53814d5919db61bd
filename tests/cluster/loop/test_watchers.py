"""What must hold of anything that rides on a step; the actors are stand-ins."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.state import read_state
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending
from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive, settings

ENOUGH = Ending(EndCause.EARLY_STOP, "enough tokens")


class TokenBudget(Watcher):
    """Counts the tokens that the run has sampled, and ends it at `limit`: an example of a watcher."""

    name = "token_budget"

    def __init__(self, limit: float) -> None:
        self.limit, self.tokens = limit, 0.0

    async def after_train(self, step: Step) -> Ending | None:
        self.tokens += step.metrics["tokens/sampled"]
        return ENOUGH if self.tokens >= self.limit else None

    def metrics(self, step: Step) -> dict[str, float]:
        return {"optimizer_steps": self.tokens}  # a key of the registry, in place of one of its own

    def state(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        self.tokens = state["tokens"]


class Calls(Watcher):
    """Notes each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def begin(self, clock: int) -> None:
        self.calls.append(("begin", clock))

    async def before_train(self, step: Step) -> None:
        assert len(step.groups) == len(step.kept) == 3
        self.calls.append(("before", step.number))

    async def after_train(self, step: Step) -> Ending | None:
        self.calls.append(("after", step.number))
        return None

    def metrics(self, step: Step) -> dict[str, float]:
        self.calls.append(("metrics", step.number))
        return {}

    def rewind(self, steps: Collection[int]) -> None:
        self.calls.append(("rewind", sorted(steps)))

    async def end(self) -> None:
        self.calls.append(("end", None))


def ridden(world: World, archive: FakeArchive, *watchers: Watcher, resume: bool = False) -> Outcome:
    """A run, or the rest of one, with these watchers before its own."""

    def first(coordinator: Coordinator) -> None:
        coordinator.watchers[:0] = watchers

    outcome = drive(world, archive, first, resume)
    check(outcome, world, archive)
    return outcome


def mixed(folder: Path, *words: str, **faults: Any) -> World:
    return World(settings(folder, *words), rewards=lambda ticket, index: index % 2, **faults)


def test_a_watchers_metrics_are_recorded_and_its_ending_ends_the_run_with_that_step(tmp_path: Path) -> None:
    world, archive = mixed(tmp_path, "loop.steps=9"), FakeArchive()
    one = ridden(mixed(tmp_path / "one", "loop.steps=1"), FakeArchive())
    per_step = one.coordinator.run_log.totals["tokens/sampled"]
    outcome = ridden(world, archive, TokenBudget(3 * per_step))
    assert outcome.coordinator.ending == ENOUGH and outcome.steps.admission.clock == 3
    assert [archive.recorded[step]["optimizer_steps"] for step in (1, 2, 3)] == [n * per_step for n in (1, 2, 3)]
    assert archive.recorded[3]["validation/step"] == 3, "the watchers that follow see that it is the last"


def test_a_watchers_state_survives_a_stop_and_the_resumed_run_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    whole, parts, archive = FakeArchive(), mixed(tmp_path / "parts", "loop.steps=9"), FakeArchive()
    ridden(mixed(tmp_path / "whole", "loop.steps=9"), whole, TokenBudget(1e9))

    def stop(coordinator: Coordinator) -> None:
        coordinator.watchers.append(TokenBudget(1e9))
        coordinator.run_log.say = lambda text: (
            coordinator.stop(Ending(EndCause.SIGNAL, "SIGTERM")) if text.startswith("step    4/") else None
        )

    drive(parts, archive, stop)
    newest = checkpoints(parts.config.run_dir)[-1][1]
    last = archive.recorded[max(archive.recorded)]
    assert read_state(newest).watchers["token_budget"]["tokens"] == last["optimizer_steps"] > 0
    ridden(parts, archive, TokenBudget(1e9), resume=True)
    wanted = {step: row.get("optimizer_steps") for step, row in whole.recorded.items()}
    assert {step: row.get("optimizer_steps") for step, row in archive.recorded.items()} == wanted


def test_the_calls_come_in_order_and_a_step_that_is_retried_is_rewound_first(tmp_path: Path) -> None:
    whole = Calls()
    ridden(mixed(tmp_path / "whole", "loop.steps=2"), FakeArchive(), whole)
    steps = [(name, step) for step in (1, 2) for name in ("before", "after", "metrics")]
    assert whole.calls == [("begin", 0), *steps, ("end", None)]

    lost, archive = Calls(), FakeArchive()
    fault = (Fault("learner.train", 2, "die"),)
    world = mixed(tmp_path / "lost", "loop.steps=2", "cluster.max_restarts=9", faults=fault, drifts=True)
    outcome = ridden(world, archive, lost)
    assert ("learner", "recovered") in archive.events and outcome.steps.admission.clock == 2
    again = [*steps[:4], ("rewind", [2]), *steps[3:]]
    assert lost.calls == [("begin", 0), *again, ("end", None)]


def test_the_coordinator_has_few_parts(tmp_path: Path) -> None:
    outcome = ridden(mixed(tmp_path, "loop.steps=1"), FakeArchive())
    assert len(vars(outcome.coordinator)) <= 12, sorted(vars(outcome.coordinator))
