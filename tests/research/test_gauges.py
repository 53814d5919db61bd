"""The study of the gauges: policies of known outcome, ranked within their warm-up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from research import gauges
from research.cells import run_of
from research.gauges import (
    ARMS,
    GAUGES,
    PAY_LEFT,
    SEEDS,
    correlation,
    every_cell,
    followed,
    gauges_of,
    main,
    policies,
    study,
    table,
    tells,
)
from research.judging import interval
from research.kept import SHARE
from squelch.kit.base.errors import UserError

CELLS = [*every_cell()]
SIX = ("start", *ARMS)


def policy(value: float, tasks: int = 500, **own: float | None) -> dict[str, Any]:
    return {"gauges": {gauge: own.get(gauge, value) for gauge in GAUGES}, "follow": {"tasks": tasks, "value": value}}


def test_five_warm_ups_have_six_policies_each() -> None:
    assert len(CELLS) == 25 and [cell.arm for cell in CELLS[:5]] == [*ARMS] and {c.seed for c in CELLS} == {*SEEDS}
    assert "none" in ARMS and len(SIX) == 6


@pytest.mark.parametrize("cell", CELLS[:5], ids=lambda cell: cell.arm)
def test_every_arm_is_a_run_that_can_be_started(cell) -> None:
    config = run_of(study(), cell, "runs").config
    assert (config.seed, config.model.tiny_seed, config.loop.steps) == (cell.seed, cell.seed, 60)
    assert (config.filter.rule == "none") == (cell.arm != "filter")
    assert config.environment.options.get("pays") == (cell.arm if cell.arm in PAY_LEFT else None)
    assert config.learner.objective.entropy_coefficient == (0.03 if cell.arm == "bonus" else 0.001)


def test_gauges_are_those_of_the_end_or_of_the_start() -> None:
    lines = [{"step": 0, "probe/mi": 2.0, SHARE: 0.5}] + [
        {"step": step, "rollout_entropy": float(step), "reasoning_length": 10.0} for step in range(1, 21)
    ]
    lines += [{"step": 21, "first_turn/retrieval_accuracy": 0.6}, {"step": 21, "probe/mi": 2.5, SHARE: None}]
    last, first = gauges_of(lines, last=True), gauges_of(lines, last=False)
    assert (last["MI"], first["MI"], last["D / surprise"], first["I_hard"]) == (2.5, 2.0, 0.5, None)
    assert (last["entropy"], first["entropy"], last["retrieval"]) == (pytest.approx(16.5), 1.0, 0.6)


def test_a_gauge_is_ranked_over_the_policies_of_its_warm_up() -> None:
    own = {name: policy(0.1 * place, length=-place) for place, name in enumerate(SIX)}
    assert correlation("MI", own) == pytest.approx(1) and correlation("length", own) == pytest.approx(-1)
    same = {name: policy(0.1 * place, entropy=1.0) for place, name in enumerate(SIX)}
    assert correlation("entropy", same) == 0
    assert correlation("MI", {**own, "left": policy(0.3, MI=None)}) is None
    assert correlation("MI", {"start": policy(0.1), "none": policy(0.2)}) is None
    found = table({30: own}, PAY_LEFT)
    assert found["MI"] == [pytest.approx(1)]


def test_policies_with_few_tasks_are_left_out_and_named() -> None:
    contents = [{"seed": 30, "policies": {"left": policy(0.0, tasks=199), "none": policy(0.7, tasks=200)}}]
    found, left_out = policies(contents)
    assert [*found[30]] == ["none"] and left_out == ["left of seed 30 (199 tasks)"]


@pytest.mark.parametrize(
    ("gauge", "found", "says"),
    [
        ("MI", interval([0.9, 0.8, 0.9, 0.7, 0.9]), "tells"),
        ("MI", interval([0.1, -0.1, 0.2, 0.0, 0.1]), "does not tell"),
        ("MI", interval([0.9, -0.5, 0.9, -0.2, 0.9]), "undecided"),
        ("length", interval([-0.9, -0.8, -0.9, -0.7, -0.9]), "undecided"),
        ("D / surprise", interval([0.9, 0.8, 0.9, 0.7, 0.9]), "tells (upper bound)"),
        ("MI", interval([0.9, 0.9, 0.8]), "3 of 5 warm-ups"),
    ],
)
def test_what_tells_is_decided_by_the_interval_over_five_warm_ups(
    gauge: str, found: Mapping[str, Any], says: str
) -> None:
    assert tells(gauge, found) == says


def test_an_evaluation_that_fails_is_no_outcome(monkeypatch, tmp_path) -> None:
    effect = {"tasks": 511, "follow": {"value": 0.71234567, "low": 0.6, "high": 0.8}}
    found = {"tasks": 511, "value": 0.71235, "low": 0.6, "high": 0.8}
    one = {"interventions": {"": effect}}
    answers = [(0, json.dumps(one), ""), (0, json.dumps({"checkpoints": [one, one]}), ""), (1, "", "squelch: none")]
    asked: list[list[str]] = []

    def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess((), *answers.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    assert followed(tmp_path, ["last"]) == [found]
    assert followed(tmp_path, ["last", "initial"]) == [found, found]
    assert asked[1][5:9] == ["--checkpoint", "last", "--checkpoint", "initial"]
    with pytest.raises(UserError, match="checkpoint last failed: squelch: none"):
        followed(tmp_path, ["last"])


def test_the_command_prints_every_gauge_and_one_object(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    contents = [
        {"seed": seed, "policies": {name: policy(0.1 * place + 0.01 * seed) for place, name in enumerate(SIX)}}
        for seed in SEEDS
    ]
    monkeypatch.setattr(gauges.tables, "read", lambda file: contents if file == gauges.RESULTS else [])
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["gauges"]["MI"]["verdicts"] == ["tells", "tells"] and [*found["gauges"]] == [*GAUGES]
