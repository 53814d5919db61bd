"""One run of the real coordinator and the real fleet on fake actors, and what must hold of every one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.calls import LOAD
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.run_log import Work
from squelch.cluster.loop.persistence.state import LoopState, read_state
from squelch.cluster.loop.tickets.open_steps import OpenSteps
from squelch.cluster.loop.watchers.scoring import Scoring
from squelch.cluster.loop.wiring import make_coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.kit.metrics.series import MetricStore
from tests.fakes import clock
from tests.fakes.actors import FakeActors, FakeArchive, World

LONGEST_S = 1e5
"""Virtual seconds; no run of these tests takes so long."""
SMALL = (
    "loop.steps=4",
    "loop.prompts=3",
    "sampling.group_size=4",
    "rollout.count=2",
    "environment_actor.count=2",
    "validation.every=2",
    "validation.tasks=3",
    "scorer.every=1",
    "scorer.probe.every=2",
    "scorer.probe.tasks=2",
    "scorer.probe.samples=2",
    "loop.checkpoint_every=2",
    "loop.group_timeout_s=50",
    "rollout.start_timeout_s=30",
    "rollout.update_timeout_s=30",
    "cluster.start_timeout_s=30",
)


def settings(folder: Path, *overrides: str) -> RunConfig:
    """The demo's recipe, small; every wait is bounded by virtual seconds."""
    return load("frozenlake", [*SMALL, f"runs_dir={folder}", "name=run", *overrides])


@dataclass
class Sink:
    """Takes a step's metrics as the exporter does: a key or value that the registry refuses is an error."""

    recorded: dict[int, dict[str, Any]] = field(default_factory=dict)
    store: MetricStore = field(default_factory=lambda: MetricStore(REGISTRY))

    def set(self, name: str, value: float | None, **labels: str) -> None:
        self.store.observe(name, value, **labels)

    def step(self, step: int, flat: Any) -> None:
        self.store.step({**flat, "step": step})
        self.recorded[step] = dict(flat)


@dataclass
class Outcome:
    """How a run, or one process of it, ended."""

    coordinator: Coordinator
    fleet: Fleet
    actors: FakeActors
    said: list[str]
    shown: list[Work]
    """What the run did, one after another."""

    @property
    def steps(self) -> OpenSteps:
        return self.coordinator.steps

    @property
    def scoring(self) -> Scoring:
        return next(watcher for watcher in self.coordinator.watchers if isinstance(watcher, Scoring))

    @property
    def ledger(self) -> Ledger:
        return self.coordinator.steps.ledger


def drive(
    world: World,
    archive: FakeArchive,
    prepare: Callable[[Coordinator], None] = lambda _: None,
    resume: bool = False,
    scaled: bool = False,
) -> Outcome:
    """Runs to the end, or until something raises, in virtual time; `prepare` gets the coordinator before it starts.
    `scaled`: requests are taken and nodes watched meanwhile, so that a run that hangs is only found by its length."""
    run = _drive(world, archive, prepare, resume, scaled)
    return clock.run(asyncio.wait_for(run, LONGEST_S) if scaled else run)


async def _drive(
    world: World, archive: FakeArchive, prepare: Callable[[Coordinator], None], resume: bool, scaled: bool
) -> Outcome:
    config, actors, said, shown = world.config, FakeActors(world), list[str](), list[Work]()
    saved = checkpoints(config.run_dir) if resume else []
    state = read_state(saved[-1][1]) if saved else LoopState()
    archive.truncate_after(state.clock if saved else -1)
    world.versions.clear()
    world.reported.clear()
    fleet = Fleet(config, actors, archive.event)
    try:
        await fleet.start(resumes=bool(saved))
        if saved:
            await fleet.learner.call(LOAD, saved[-1][1])
        coordinator = make_coordinator(config, fleet, archive, Sink(), state, said.append, shown.append)
        prepare(coordinator)
        await (coordinator.scaling.beside(coordinator.run()) if scaled else coordinator.run())
    finally:
        await fleet.stop()
    return Outcome(coordinator, fleet, actors, said, shown)


def check(outcome: Outcome, world: World, archive: FakeArchive) -> None:
    """What holds of every run that ended, however it went on the way."""
    ledger, clock_now = outcome.ledger, outcome.steps.admission.clock
    assert ledger.balanced(), ledger.counts()
    rows = [decision for step in archive.steps.values() for decision in step.values()]
    counts = ledger.counts()
    assert len(rows) == counts["trained"] + counts["dropped"] + counts["spared"] + counts["failed"]
    assert rows.count("dropped") == counts["dropped"] + counts["spared"]
    assert sorted(archive.steps) == sorted(range(1, clock_now + 1)), "every completed step is archived, and no other"
    assert sorted(step for step in archive.recorded if step) == list(range(1, clock_now + 1))
    assert sum(world.trained.values()) == counts["trained"]
    assert all(count == 1 for count in world.trained.values()), "a task was trained on twice"
    scorer_steps = [line.get("scorer/step") for line in [*archive.recorded.values(), *archive.scored_alone]]
    assert all(count == 1 for step, count in Counter(scorer_steps).items() if step is not None), (
        "a scorer step too many"
    )
    assert all(0 <= age <= world.config.loop.max_staleness for age in world.staleness), world.staleness
    assert outcome.steps.admission.version <= clock_now + archive.events.count(("learner", "restart"))
    assert not outcome.fleet.workers.present() and not outcome.fleet.players.present()
