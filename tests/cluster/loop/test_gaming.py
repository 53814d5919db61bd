"""The finding of a gamed criterion in a run: metrics, event, terminal, and a resume; the actors are stand-ins."""

from __future__ import annotations

import json
import random
from pathlib import Path

from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.kit.metrics.series import MetricStore
from squelch.kit.records.records import Ticket
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import check, drive, settings

WORDS = (
    "loop.steps=18",
    "loop.prompts=6",
    "sampling.group_size=16",
    "validation.every=6",
    "validation.tasks=40",
    "scorer.enabled=false",
)


def rewards(ticket: Ticket, index: int) -> float:
    """Half of the validation tasks are solved, always the same; in training ever more trajectories fail by chance."""
    if ticket.task.split == "validation":
        return float(ticket.task.seed % 2)
    return float(random.Random(f"{ticket.ticket_id} {index}").random() > 0.02 * ticket.step)


def shares(archive: FakeArchive) -> str:
    shown = ("gaming/", "finding/", "groups/", "texts/", "tasks/")
    rows = [{k: v for k, v in row.items() if k.startswith(shown)} for row in archive.recorded.values()]
    return json.dumps(rows)


def test_variance_that_rises_at_flat_success_is_reported_once_and_by_a_resumed_run_alike(
    tmp_path: Path,
) -> None:
    world, whole = World(settings(tmp_path / "whole", *WORDS), rewards=rewards), FakeArchive()
    outcome = drive(world, whole)
    check(outcome, world, whole)
    raised = [step for step, row in whole.recorded.items() if step and row["gaming/raised"] == 1]
    assert raised == list(range(12, 19))
    events = [facts for facts in whole.facts if facts.get("finding") == "criterion_gamed"]
    assert [(facts["change"], facts["step"], facts["severity"]) for facts in events] == [("began", 12, "warning")]
    assert sum("WARNING criterion_gamed: Kept reward variance rose by" in line for line in outcome.said) == 1
    assert whole.recorded[18]["finding/criterion_gamed/warning"] == 1
    MetricStore(REGISTRY).step({k: v for k, v in whole.recorded[18].items() if k.startswith("gaming/")})

    parts, archive = World(settings(tmp_path / "parts", *WORDS), rewards=rewards), FakeArchive()

    def stop_at_fourteen(coordinator: Coordinator) -> None:
        coordinator.run_log.say = lambda text: (
            coordinator.stop(Ending(EndCause.SIGNAL, "SIGTERM")) if text.startswith("step   14/") else None
        )

    drive(parts, archive, stop_at_fourteen)
    assert max(archive.recorded) < 18
    check(drive(parts, archive, resume=True), parts, archive)
    assert shares(archive) == shares(whole)
