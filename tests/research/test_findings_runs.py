"""The study of the findings: healthy runs and planted faults are fixed beforehand, kept whole, and judged by replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from research.findings_runs import (
    EXPECTED,
    MOST_SHARE,
    PLANTED,
    RESULTS,
    judged,
    latest,
    lines_of,
    report,
    rows,
    seen,
    stood,
)
from research.tables import add, read
from squelch.cluster.runs.findings import replayed
from squelch.kit.findings.catalogue import catalogue
from tests.kit.findings.steps import healthy

KEPT = read(RESULTS)


def test_twelve_healthy_runs_are_halved_and_every_fault_expects_findings_that_warn() -> None:
    parts = {part: [one for one in KEPT if one["part"] == part] for part in ("tune", "judge", PLANTED)}
    assert {part: len(own) for part, own in parts.items()} == {"tune": 6, "judge": 6, PLANTED: len(EXPECTED)}
    assert len({tuple(sorted({one["recipe"] for one in parts[part]})) for part in ("tune", "judge")}) == 1
    assert {one["arm"] for one in parts[PLANTED]} == EXPECTED.keys() and all(one["changed"] for one in parts[PLANTED])
    for names in EXPECTED.values():
        assert all({"warning", "critical"} & set(catalogue()[name].thresholds) for name in names)


def course(steps: int, fault: Callable[[int], Mapping[str, float]] = lambda step: {}) -> list[dict[str, Any]]:
    """Lines of metrics; a run writes one before its first step, and a probe's beside a step's."""
    first = [{"step": 0, "time": 1.0, "validation/success": 0.3}, {"step": 1, "time": 2.0, "probe/mi": None}]
    return first + [
        {"step": step, "time": 2.0 + step, "seconds/findings": 0.01, **healthy(step), **fault(step)}
        for step in range(1, steps + 1)
    ]


def kept(folder: Path, lines: list[dict[str, Any]], part: str, arm: str, **others: Any) -> dict[str, Any]:
    """A run as its file in the study's folder holds it."""
    keys = sorted({key for line in lines for key in line} - {"step", "time"})
    columns = {key: [line.get(key) for line in lines] for key in keys}
    table = {"step": [*range(len(lines))], "at": [line["step"] for line in lines], **columns}
    run = {"name": f"{part}-{arm}", "part": part, "recipe": "frozenlake", "arm": arm, "seed": 200, **others}
    add(folder / "table", [{**run, "steps": lines[-1]["step"], "groups": {}, "tables": {"lines": table}}])
    return next(one for one in read(folder / "table") if one["name"] == run["name"])


def test_the_lines_of_a_run_are_kept_whole_and_their_findings_are_those_of_the_run(tmp_path: Path) -> None:
    lines = course(30, lambda step: {"learner/kl": 20.0, "learner/entropy": 0.123456789} if step > 20 else {})
    content = kept(tmp_path, lines, PLANTED, "rate")
    found = lines_of(content)
    assert [line["step"] for line in found] == [line["step"] for line in lines] and not {"time", "at"} & set(found[0])
    assert "probe/mi" not in found[1] and found[-1]["learner/entropy"] == 0.123456789
    assert {one.name: one.severity for one in stood(content)[0]} == {"kl_high": "critical", "entropy_falls": "notice"}
    assert {one.name for one in replayed(lines).open} == {one.name for one in stood(content)[0]}
    (high, _), _ = stood(content)
    assert (high.began, high.warned, high.steps) == ({"critical": 24}, 24, set(range(24, 31)))


def test_a_planted_fault_is_found_in_twenty_steps_or_three_scorings_or_missed(tmp_path: Path) -> None:
    def cut(since: int) -> Callable[[int], Mapping[str, float]]:
        return lambda step: {"turns_cut/reasoning": 0.97} if step >= since else {}

    for place, (since, holds) in enumerate(((3, True), (18, False), (99, False))):
        (folder := tmp_path / str(place)).mkdir()
        found = judged(kept(folder, course(30, cut(since)), PLANTED, "cut"))
        assert found["holds"] is holds and found["verdict"].startswith("found" if holds else "missed"), found
    assert latest(lines_of(kept(tmp_path, course(30), PLANTED, "cut"))) == 20
    seldom = [{"step": step, **({"scorer/step": step} if step % 12 == 0 else {})} for step in range(40)]
    assert latest(seldom) == 24, "the scorings before training and of steps 12 and 24"


def test_a_run_that_ended_because_nothing_was_learned_is_judged_by_the_steps_that_it_has(tmp_path: Path) -> None:
    lines = course(5, lambda step: {"no_signal_streak": float(step), "reward_variance_mean": 0.0, "groups_varied": 0.0})
    aborted = {"ended": "no_signal"}
    for summary, began in (({}, False), (aborted, True)):
        (folder := tmp_path / str(began)).mkdir()
        content = kept(folder, lines, PLANTED, "verifier", **summary)
        assert ("reward_constant" in {one.name for one in stood(content)[0]}) is began


def test_what_was_found_and_where_it_was_silent_is_counted_over_the_runs_that_can_show_it(tmp_path: Path) -> None:
    cut = kept(tmp_path, course(30, lambda step: {"turns_cut/reasoning": 0.97}), PLANTED, "cut")
    late = kept(tmp_path, course(40, lambda step: {"learner/kl": 20.0 if step > 30 else 0.0}), PLANTED, "rate")
    well = kept(tmp_path, course(40, lambda step: {"turns_cut/reasoning": None, "turns_cut/answer": None}), "tune", "a")
    ill = kept(tmp_path, course(40, lambda step: {"learner/kl": 0.8}), "judge", "b")
    found = seen([cut, late, well, ill])
    assert set(found) == set(catalogue())
    assert found["turns_cut"] == (["cut"], "1 of 1 healthy runs") and found["kl_high"] == ([], "1 of 2 healthy runs")
    assert found["engine_differs"] == ([], "2 of 2 healthy runs")
    assert found["updates_clipped"][0] == [] and seen([])["kl_high"] == ([], "")


def test_a_healthy_run_is_silent_or_warns_and_a_notice_is_printed_with_the_steps_that_it_held(tmp_path: Path) -> None:
    silent = judged(kept(tmp_path, course(40, lambda step: {"learner/kl": 0.8}), "tune", "shipped"))
    assert silent["holds"] and silent["critical"] == 0
    assert rows(silent)[1][2:6] == ["kl_high", "notice", 5, 36]
    warns = judged(kept(tmp_path, course(40, lambda step: {"learner/kl": 3.0}), "judge", "shipped"))
    assert not warns["holds"] and warns["verdict"] == "warns: kl_high"
    assert 0.002 < silent["share"] < 0.006


@pytest.mark.parametrize("content", [one for one in KEPT if one["part"] != PLANTED], ids=lambda one: one["name"])
def test_no_finding_of_a_kept_healthy_run_is_critical(content: Mapping[str, Any]) -> None:
    assert judged(content)["critical"] == 0


def test_at_most_one_kept_healthy_run_has_a_warning() -> None:
    assert sum(not judged(one)["holds"] for one in KEPT if one["part"] != PLANTED) <= 1


@pytest.mark.parametrize("content", [one for one in KEPT if one["part"] == PLANTED], ids=lambda one: one["name"])
def test_a_kept_planted_fault_is_found_in_time(content: Mapping[str, Any]) -> None:
    found = judged(content)
    assert found["holds"], found


def test_the_findings_cost_little_of_the_kept_runs() -> None:
    assert all(judged(one)["share"] <= MOST_SHARE for one in KEPT)


def test_the_report_counts_the_kept_runs_and_every_kept_run_is_of_one_commit() -> None:
    found = report()
    assert len(found.metrics["runs"]) == len(KEPT) and len(found.notes) == 3
    assert len({one["commit"] for one in KEPT}) <= 1
