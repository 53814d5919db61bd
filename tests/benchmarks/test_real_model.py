"""The study on a real model: its parts are runs that can be made, and what it keeps of a run is what it reports."""

import json

import pytest

from benchmarks.studies import real_model
from benchmarks.studies.real_model import ENTROPY, PARTS, report
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


def test_the_report_has_a_row_for_each_kept_run(capsys, monkeypatch, tmp_path) -> None:
    kept = {
        "run": "real-countdown/base_s0",
        "seed": 0,
        "filter": "top_p",
        "entropy": 0.001,
        "steps": 60,
        "success": {
            "before": {"success": 0.1},
            "after": {"success": 0.2},
            "gain": {"mean": 0.1, "low": 0.05, "high": 0.15},
        },
        "rows": [{"step": 0, "probe_mi": 1.0}, {"step": 30}, {"step": 60, "probe_mi": 2.0}],
    }
    (tmp_path / "one.json").write_text(json.dumps(kept))
    monkeypatch.setattr(real_model, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["real_model", "--quick"])
    assert real_model.main() == 0
    printed = capsys.readouterr().out
    assert "+0.100 [+0.050, +0.150]" in printed and "real-countdown/base_s0" in printed
    assert report([kept])[0][-2:] == ["1.00", "2.00"]
