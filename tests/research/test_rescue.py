"""The study of the advice after an alarm: where its runs begin, and what is judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from research import rescue
from research.cells import NothingToStart, run_of
from research.kept import Kept
from research.rescue import BEGINNINGS, SEEDS, STUDY, Collapsed, best, compared, last, main, measure, named
from squelch.cluster.config import load
from squelch.cluster.sweep.table import text


def kept(arm: str, seed: int, success: float, part: str = "rescue") -> Kept:
    tables = {"validated": {"step": [0, 40], "validation/success": [0.3, success]}}
    return Kept(f"{part}-{arm}_s{seed}", part, "frozenlake", arm, seed, 40, tables, {}, from_step=12)


def collapsed_run(folder: Path, events: list[dict]) -> Path:
    """What a collapsed run leaves behind of which a beginning is chosen."""
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    ledger = {"balanced": True}
    summary = {"finished": True, "steps": 60, "success": {"best": 0.5, "best_step": 20}, "ledger": ledger}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def event(name: str, **facts: object) -> dict:
    return {"actor": "scorer", "name": name, "start": 1.0, "end": 1.0, "step": 36, **facts}


def test_a_rescue_begins_with_the_checkpoint_that_the_first_alarm_named_the_best_or_the_last(tmp_path):
    events = [
        event("reasoning_untrue", checkpoint=4),
        event("probe_falling", checkpoint=18),
        event("input_dependence_falling", checkpoint=30),
    ]
    folder = collapsed_run(tmp_path / "run", events)
    assert (named(folder), best(folder), last(folder)) == (18, 20, 60)


def test_an_alarm_that_names_no_checkpoint_leaves_the_beginning(tmp_path):
    events = [event("probe_falling", checkpoint=None), event("probe_falling", checkpoint=18)]
    assert named(collapsed_run(tmp_path / "run", events)) == 0


def test_a_run_without_an_alarm_has_no_checkpoint_that_one_named(tmp_path):
    with pytest.raises(NothingToStart, match="none named a checkpoint"):
        named(collapsed_run(tmp_path / "run", [event("scored")]))


def test_collapsed_runs_have_no_filter_and_a_large_bonus_and_rescues_the_recipe_as_it_is(tmp_path):
    recipe = load("frozenlake", [])
    for cell in STUDY.cells:
        if cell.part == "collapse":
            config = run_of(STUDY, cell, str(tmp_path)).config
            assert config.filter.rule == "none" and config.learner.objective.entropy_coefficient == 0.2
            folder = collapsed_run(tmp_path / "rescue" / cell.name, [event("probe_falling", checkpoint=18)])
            for step in (18, 20, 60):
                (folder / "checkpoints" / f"step-{step}" / "hf").mkdir(parents=True)
    for cell in STUDY.cells:
        if cell.part == "rescue":
            config = run_of(STUDY, cell, str(tmp_path)).config
            assert (config.filter, config.learner) == (recipe.filter, recipe.learner)
            step = {"named": "step-18", "best": "step-20", "last": "step-60"}.get(cell.arm)
            assert step is None or step in config.model.path
            assert (config.model == recipe.model) == (cell.arm == "anew")
    arms = [cell.arm for cell in STUDY.cells if cell.part == "rescue"]
    assert arms == list(BEGINNINGS) * len(SEEDS)


@pytest.mark.parametrize(
    ("other", "gains", "verdict"),
    [
        ("last", (0.2, 0.21, 0.22), "holds"),
        ("last", (-0.2, -0.21, -0.22), "fails"),
        ("last", (-0.2, 0.0, 0.2), "cannot be told"),
        ("best", (-0.02, -0.021, -0.022), "holds"),
        ("anew", (-0.2, -0.21, -0.22), "fails"),
        ("anew", (0.2, 0.21), "not run"),
    ],
)
def test_verdicts_are_of_differences_within_a_seed(other, gains, verdict):
    runs = [run for s, gain in enumerate(gains) for run in (kept("named", s, 0.5 + gain), kept(other, s, 0.5))]
    found = compared(runs, other)
    assert found["verdict"] == verdict and found["seeds"] == list(range(len(gains)))


def collapsed(seed: int, alarm: dict | None) -> Collapsed:
    tables = {"validated": {"step": [0, 30, 60], "validation/success": [0.3, 0.5, 0.1]}}
    return Collapsed(Kept(f"collapse_s{seed}", "collapse", "frozenlake", "entropy0.2", seed, 60, tables, {}), alarm)


def test_a_seed_without_an_alarm_is_told_and_left_out_of_the_verdicts():
    alarm = {"name": "probe_falling", "step": 36, "checkpoint": 18}
    runs = [
        kept(arm, seed, success) for seed in (0, 1) for arm, success in (("named", 0.6 + seed / 100), ("last", 0.2))
    ]
    figures = measure([collapsed(0, alarm), collapsed(1, alarm), collapsed(2, None)], [*runs, kept("last", 2, 0.9)])
    first, _, third, *verdicts = rescue.notes(figures)
    assert first.endswith("success 0.300, at best 0.500, after 60 steps 0.100; first alarm: probe_falling of step 36")
    assert third.endswith("first alarm: no alarm")
    assert "2 seeds; above 0: holds" in verdicts[list(rescue.OTHERS).index("last")]
    assert rescue.rows(figures)[0] == ["0", "named", "12", "0.300", "0.600", "-"]


def test_where_the_alarm_named_the_best_checkpoint_one_run_stands_for_both(tmp_path):
    folder = collapsed_run(tmp_path / "run", [event("probe_falling", checkpoint=20)])
    with pytest.raises(NothingToStart, match="named the best checkpoint, of step 20; `named` stands for both"):
        best(folder)
    alarm = {"name": "probe_falling", "step": 36, "checkpoint": 30}
    own = [replace(kept("named", seed, 0.6 + seed / 100), from_step=30 if seed else 12) for seed in range(3)]
    figures = measure([collapsed(seed, alarm) for seed in range(3)], [*own, kept("best", 0, 0.5)])
    assert [(one["seed"], one["begins"]) for one in figures["rescues"]] == [
        *((0, "named"), (0, "best"), (1, "named"), (1, "best"), (2, "named"), (2, "best"))
    ]
    assert figures["compared"][0]["difference"]["mean"] == pytest.approx(0.1 / 3), "0 where one run stands for both"


def test_the_file_of_a_collapsed_run_tells_its_first_alarm(tmp_path, monkeypatch):
    monkeypatch.setattr(rescue, "condense", lambda folder, **labels: labels)
    folder = collapsed_run(tmp_path / "run", [event("probe_falling", checkpoint=18, figure="mi")])
    told = rescue.condensed(folder, part="collapse")["first_alarm"]
    assert told == {"name": "probe_falling", "step": 36, "checkpoint": 18}
    assert rescue.condensed(collapsed_run(tmp_path / "quiet", []), part="collapse")["first_alarm"] is None
    assert "first_alarm" not in rescue.condensed(folder, part="rescue")


def test_the_measurements_have_the_differences_of_the_committed_runs():
    words = " ".join((Path(__file__).parents[2] / "docs" / "research" / "results.md").read_text().split())
    found = measure(*rescue.committed())
    for one in found["compared"]:
        if one["other"] != "best":
            assert text(one["difference"], "+") in words, "docs/research/results.md"
    for one in found["rescues"]:
        assert f"{one['after']:.3f}" in words


def test_the_command_judges_the_committed_files(capsys):
    assert main(["--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(one["seed"], one["begins"]) for one in found["rescues"]} == {(s, arm) for s in SEEDS for arm in BEGINNINGS}
