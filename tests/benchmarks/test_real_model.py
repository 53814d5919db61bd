"""The study on a real model: its parts are runs that can be made, and what it keeps of a run is what it reports."""

import json

import pytest

from benchmarks.studies import real_model
from benchmarks.studies.real_model import ENTROPY, PARTS, compared, report
from cluster.config import recipe_names
from cluster.sweep.plan import make_plan


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_a_sweep_that_can_be_made(name: str, tmp_path) -> None:
    part = PARTS[name]
    if part.recipe not in recipe_names():
        pytest.skip(f"there is no recipe {part.recipe}")
    overrides = [f"runs_dir={tmp_path}", f"loop.steps={part.steps}", f"validation.tasks={part.tasks}"]
    plan = make_plan(part.recipe, overrides, part.arms, {arm.label: list(part.seeds) for arm in part.arms}, name="s")
    assert len(plan.cells) == len(part.arms) * len(part.seeds)
    for cell in plan.cells:
        assert cell.config.loop.steps == part.steps
        assert cell.config.learner.objective.entropy_coefficient == cell.arm.settings.get(
            ENTROPY, cell.config.learner.objective.entropy_coefficient
        )


def test_the_question_compares_the_filter_with_none_at_every_entropy_bonus() -> None:
    asked = [part for name, part in PARTS.items() if name.startswith("question")]
    for part in asked:
        assert [arm.settings["filter.rule"] for arm in part.arms] == ["none", "top_p"]
    assert PARTS["question"].seeds == (0, 1, 2) and PARTS["question"].steps >= 100


def kept(rule: str = "top_p", seed: int = 0, after: float = 0.2, judge: float = 0.3) -> dict:
    scored = {"entropy": 0.5, "judge_names": 0.6, "scored_step": 1}
    return {
        "run": f"real-countdown/{rule}_s{seed}",
        "environment": "Countdown",
        "seed": seed,
        "filter": rule,
        "entropy": 0.001,
        "steps": 60,
        "success": {
            "before": {"success": 0.1},
            "after": {"success": after},
            "gain": {"mean": 0.1, "low": 0.05, "high": 0.15},
        },
        "rows": [
            {"step": 0, "probe_mi": 1.0},
            {"step": 2, "judge": 0.6, **scored},
            {"step": 60, "probe_mi": 2.0, "judge": judge, **scored, "entropy": 0.25},
        ],
    }


def test_the_report_has_a_row_for_each_kept_run(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(kept()))
    monkeypatch.setattr(real_model, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["real_model", "--quick"])
    assert real_model.main() == 0
    printed = capsys.readouterr().out
    assert "+0.100 [+0.050, +0.150]" in printed and "real-countdown/top_p_s0" in printed
    assert report([kept()])[0][-6:] == ["0.50", "0.25", "1.00", "0.50", "1.00", "2.00"], "judge: among those that name"
    assert report([{**kept(), "rows": []}])[0][-6:] == ["-"] * 6


def test_the_filter_is_compared_with_none_at_the_same_entropy_bonus_and_paired_by_seed() -> None:
    found = [kept("none", seed, 0.1 * seed, 0.3) for seed in (0, 1, 2)]
    found += [kept("top_p", seed, 0.1 * seed + 0.05, 0.45) for seed in (0, 1)]
    found += [{**kept("top_p", 0, 0.9), "entropy": 0.03}]
    lines = compared(found)
    assert len(lines) == 4 and all("seeds [0, 1]" in line for line in lines)
    assert lines[0].endswith("success, top_p minus none +0.050 [+0.050, +0.050]")
    assert any("judge, top_p minus none +0.250" in line for line in lines)
    assert compared([kept()]) == []


def test_a_measurement_is_kept_with_the_step_that_it_describes() -> None:
    for file in real_model.RESULTS.glob("*.json"):
        rows = json.loads(file.read_text())["rows"]
        assert all("scored_step" in row for row in rows if "judge" in row), file.name
        assert all("probe_step" in row for row in rows if "probe_mi" in row), file.name
        assert any(row["scored_step"] < row["step"] for row in rows if "scored_step" in row), "recorded later"
