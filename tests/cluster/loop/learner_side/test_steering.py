"""What must hold of a run whose kept share sets itself: moves, figures, events, resumes; the parties are stand-ins."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean

import pytest

from squelch.actors.records import Ticket
from squelch.cluster.config import load
from squelch.cluster.control.kept_share import FEWEST
from squelch.cluster.errors import UserError
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.runs.ending import EndCause, Ending
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import check, drive, settings

STEERED = (
    "loop.steps=24",
    "loop.prompts=12",
    "sampling.group_size=16",
    "validation.every=0",
    "scorer.enabled=false",
    "filter.min_groups=2",
    "filter.kept_share.every=1",
    "filter.kept_share.steer=true",
)
"""The stand-in learner's q grows as groups with little variance are dropped (`tests.fakes.actors`)."""


def rewards(ticket: Ticket, index: int) -> float:
    """Returns whose variance differs from task to task."""
    odds = random.Random(ticket.ticket_id).choice([0.07, 0.5])
    return float(random.Random(f"{ticket.ticket_id} {index}").random() < odds)


def run(folder: Path, *words: str) -> tuple[World, FakeArchive]:
    world, archive = World(settings(folder, *STEERED, *words), rewards=rewards), FakeArchive()
    check(drive(world, archive), world, archive)
    return world, archive


def rhos(archive: FakeArchive) -> list[float]:
    return [archive.figures[step]["kept_share/rho"] for step in sorted(archive.figures) if step]


def moves(archive: FakeArchive) -> list[dict]:
    return [
        facts
        for event, facts in zip(archive.events, archive.facts, strict=True)
        if event == ("filter", "kept_share_moved")
    ]


def test_rho_moves_to_the_better_neighbour_slowly_with_reasons_and_the_loss_scale_stays(tmp_path: Path) -> None:
    _, archive = run(tmp_path)
    used, found = rhos(archive), moves(archive)
    assert used[:FEWEST] == [0.9] * FEWEST and min(used) < 0.9
    assert found and found[0]["step"] >= FEWEST and (found[0]["before"], found[0]["after"]) == (0.9, 0.8)
    assert "rho 0.9 -> 0.8: q(0.8) - q(0.9) = " in found[0]["text"]
    assert used[found[0]["step"] - 1] == 0.9 and used[found[0]["step"]] == 0.8, "it counts from the next step on"
    assert {row["loss_scale"] for step, row in archive.figures.items() if step} <= {0.9}
    assert min(row["kept_groups"] for step, row in archive.figures.items() if step) >= 2


def test_without_the_hand_on_the_wheel_q_is_measured_and_rho_stays(tmp_path: Path) -> None:
    _, archive = run(tmp_path, "filter.kept_share.steer=false", "filter.kept_share.every=2")
    assert set(rhos(archive)) == {0.9} and not moves(archive)
    measured = [step for step, row in archive.figures.items() if "kept_share/q/0.8" in row]
    assert measured and all(step % 2 == 0 for step in measured)
    rows = [archive.figures[step] for step in measured]
    assert [row["kept_share/lower/measurements"] for row in rows] == list(range(1, len(rows) + 1))
    of_the_rho_in_use = fmean(row["kept_share/q/0.8"] - row["kept_share/q/0.9"] for row in rows)
    assert rows[-1]["kept_share/lower/difference"] == pytest.approx(of_the_rho_in_use)
    assert rows[-1]["kept_share/lower/difference_low"] > 0, "with the hand on the wheel it would have moved"


@pytest.mark.parametrize(("steer", "every"), [("true", 1), ("false", 1), ("true", 2)])
def test_a_resumed_run_measures_and_moves_as_the_uninterrupted_one(tmp_path: Path, steer: str, every: int) -> None:
    words = *STEERED, f"filter.kept_share.steer={steer}", f"filter.kept_share.every={every}"
    _, whole = run(tmp_path / "whole", *words)
    last = moves(whole)[0]["step"] if every == 2 else 11  # the step after a move that is not measured
    world = World(settings(tmp_path / "parts", *words), rewards=rewards)
    archive = FakeArchive()

    def stop_after_last(coordinator: Coordinator) -> None:
        coordinator.say = lambda text: (
            coordinator.stop(Ending(EndCause.SIGNAL, "SIGTERM")) if text.startswith(f"step {last:4d}/") else None
        )
        coordinator.journal.say = coordinator.say

    drive(world, archive, stop_after_last)
    assert max(archive.figures) < 24
    check(drive(world, archive, resume=True), world, archive)

    def shares(found: FakeArchive) -> str:
        rows = ({k: v for k, v in row.items() if k.startswith("kept_share/")} for row in found.figures.values())
        return json.dumps(list(rows))

    assert shares(archive) == shares(whole) and moves(archive) == moves(whole)


@pytest.mark.parametrize(
    "words",
    [
        ["filter.kept_share.steer=false"],
        ["filter.kept_share.steer=false", "filter.kept_share.every=0"],
        ["filter.rho=0.95"],
        ["filter.kept_share.low=0.85"],
        ["filter.kept_share.low=0.55"],
        ["filter.rule=min_p"],
        ["filter.keep=smallest"],
        ["filter.min_groups=3"],
        ["learner.objective.aggregation=constant", "learner.objective.normaliser_tokens=100"],
    ],
)
def test_a_run_resumed_with_settings_that_its_controller_does_not_fit_begins_anew_and_says_so(
    tmp_path: Path, words: list[str]
) -> None:
    """Found by a reviewer: the rho of the checkpoint went on where the controller was off, and against filter.rho."""
    world, archive = run(tmp_path)  # its last steps used a lower rho
    assert rhos(archive)[-1] < 0.85
    world.config = settings(tmp_path, *STEERED, "loop.steps=26", *words)
    outcome = drive(world, archive, resume=True)
    start = world.config.filter.rho
    (told,) = [text for text in outcome.said if "begins anew" in text]
    assert f"begins anew at filter.rho={start:g}" in told
    assert outcome.coordinator.steering.rho == start
    assert archive.figures[26].get("kept_share/rho", start) == start


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["filter.kept_share.every=0"], "kept_share.steer needs measurements"),
        (["filter.rule=band"], "measures shares rho, which rule=band does not have"),
        (["filter.rule=none", "filter.min_groups=0"], "measures shares rho, which rule=none does not have"),
        (["filter.kept_share.low=0.95"], "outside of kept_share.low=0.95 and kept_share.high=1"),
        (["filter.kept_share.high=0.8"], "outside of kept_share.low=0.5 and kept_share.high=0.8"),
        (["filter.min_groups=0"], "needs a floor of kept groups"),
        (["filter.min_groups=0", "filter.window=sliding"], "set filter.window=whole"),
        (["filter.min_groups=12"], "keeps every group of a step of loop.prompts=12"),
        (["filter.kept_share.low=0.9", "filter.kept_share.high=0.9"], "leaves the controller one rho"),
        (["loop.max_staleness=1"], "needs groups of the current weights"),
        (["learner.algorithm=ppo"], "a critic computes them"),
        (["sampling.group_size=3"], "raise it to at least 4"),
        (["sampling.group_size=5", "filter.statistic=policy_variance"], "raise it to at least 6"),
        (["learner.objective.loss_scale=kept_mass"], "would move with the kept share"),
        (["loop.prompts=1", "filter.min_groups=0", "filter.kept_share.steer=false"], "compares sets of groups"),
        (["filter.kind_floor=0.5"], "judges a rho by the latter alone"),
        (
            ["learner.objective.kl.place=reward", "learner.objective.kl.coefficient=0.01"],
            "without a KL term that learner.objective.kl.place=reward subtracts",
        ),
    ],
)
def test_bounds_and_settings_that_contradict_the_filter_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        load("frozenlake", [*STEERED, *words])
