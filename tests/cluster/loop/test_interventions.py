"""Which tasks `squelch eval --interventions` plays, what it refuses, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from squelch.cluster.config import load
from squelch.cluster.loop.interventions import CANDIDATES, document, say_interventions, swaps_of, write
from squelch.cluster.loop.watchers.validation import fixed_tickets
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.interventions import ARMS, Intervention, LeftOut, SampledTurn
from squelch.kit.records.failures import Failure, FailureCause

SEVERAL = "environments=[{name: FrozenLake, label: lake}, {name: Sokoban, label: box}]"


@pytest.mark.parametrize("words", [[], ["environment=null", SEVERAL]])
def test_every_task_has_candidates_of_its_own_environment_that_no_other_task_has(words: list[str]) -> None:
    config = load("frozenlake", ["validation.tasks=5", *words])
    found, tickets = swaps_of(config), fixed_tickets(config)
    assert [one.ticket for one in found] == tickets
    tasks = [task for one in found for task in (one.ticket.task, *one.candidates)]
    assert len(set(tasks)) == len(tasks) == (1 + CANDIDATES) * 5 * len(config.mixture.entries)
    for one in found:
        assert {(task.label, task.environment, task.split) for task in one.candidates} == {
            (one.ticket.task.label, one.ticket.task.environment, "validation")
        }


def test_an_environment_of_whole_turns_is_refused_by_name() -> None:
    config = load("frozenlake")
    whole = config.model_copy(update={"environment": config.environment.model_copy(update={"name": "Prompts"})})
    with pytest.raises(UserError, match="environment Prompts reads whole turns"):
        swaps_of(whole)


def test_the_result_is_said_for_each_environment_and_written_by_step(tmp_path: Path) -> None:
    up, left = SampledTurn(("Up",), True), SampledTurn(("Left", "Left"), True)
    again = dict.fromkeys(ARMS, up) | {"donor": left}
    failure = Failure(FailureCause.STEP_TIMEOUT)
    found = [Intervention("lake", SampledTurn(("Up",), i < 15), left, again, True) for i in range(30)]
    found.append(LeftOut("lake", "failed", failure))
    found.append(LeftOut("box", "no_donor"))
    result = document(found, {"checkpoint": "step 40"})
    path = write(tmp_path, 40, result)
    assert path.name == "step-000040.json" and write(tmp_path, 0, {}).name == "step-000000.json"
    read = json.loads(path.read_text())["interventions"]
    assert read["lake"]["change"]["value"] == 1.0 and read["lake"]["answers"]["donor"]["donors"]["value"] == 1.0
    assert read["box"]["change"] == {"value": None, "low": None, "high": None}
    said: list[str] = []
    say_interventions(found, path, said.append)
    assert said[0].startswith("interventions in lake: first turns of 30 tasks (left out: 1 failed), 30 donors are near")
    assert "well formed: 0.500 [" in said[0], "the own first turns"
    assert "change 1.000 [" in said[0] and "under a second own reasoning in 0.000 [" in said[0]
    assert said[1].startswith("interventions in box: first turns of 0 tasks (left out: 1 no donor)")
    assert said[2:] == ["WARNING: 1 of 32 interventions failed and are left out: step_timeout 1", f"written to {path}"]
