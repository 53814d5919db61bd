"""The study on a real model: its parts are runs that can be made, and what it keeps of a run is what it reports."""

import json
import statistics
from dataclasses import replace

import pytest

from research import cells, real_model
from research.cells import run_of
from research.kept import changes_learning, parsed
from research.real_model import ENTROPY, PARTS, STUDY, compared, early_ends, markdown, report_rows


def test_the_cells_are_runs_that_can_be_made_in_the_order_that_was_fixed(tmp_path) -> None:
    assert list(dict.fromkeys(cell.part for cell in STUDY.cells)) == list(PARTS)
    assert len({cell.name for cell in STUDY.cells}) == len(STUDY.cells) == 18
    for cell in STUDY.cells:
        config = run_of(STUDY, cell, str(tmp_path)).config
        assert (config.loop.steps, config.validation.every) == (cell.steps, cell.steps)
        assert (config.validation.tasks, config.name) == (PARTS[cell.part].tasks, cell.name)
        if ENTROPY in cell.settings:
            assert config.learner.objective.entropy_coefficient == cell.settings[ENTROPY]


def test_the_list_prints_every_cell_with_its_minutes(capsys) -> None:
    assert real_model.main(["--list", "--only", "question*"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 15
    assert printed[1].startswith("question-smollm2-countdown-none") and printed[1].split()[1:3] == ["100", "48.9"]
    assert printed[2].startswith("question-smollm2-countdown-top_p") and printed[2].split()[1:3] == ["100", "40.6"]


def test_the_docs_have_the_minutes_of_the_list() -> None:
    recipes = ("smollm2-countdown", "smollm2-frozenlake")
    minutes = [[cell.minutes for cell in STUDY.cells if cell.recipe == recipe] for recipe in recipes]
    countdown, lake = (f"{min(own):.0f} to {max(own):.0f}" for own in minutes)
    told = f"{countdown} a cell on Countdown, {lake} on FrozenLake"
    for words in (real_model.__doc__ or "", (real_model.PAGE.parents[1] / "guide" / "real-models.md").read_text()):
        assert told in " ".join(words.split())


def test_the_committed_runs_took_about_the_expected_seconds_of_a_step() -> None:
    ratios = []
    for file in real_model.RESULTS.glob("*.json"):
        one = parsed(file, real_model.whole)
        if any(word.startswith("learner.num_gpus=") for word in one["set"]):
            continue  # the expected seconds are those of two cores
        steps = [row["step_seconds"] for row in one["rows"] if row["step"] > 0 and "step_seconds" in row]
        ratios.append(statistics.median(steps) / real_model.STEP_S[one["recipe"]][one["filter"]])
    assert 0.8 < statistics.median(ratios) < 1.25, "some were made beside other work"


def test_the_question_compares_the_filter_with_none_at_every_entropy_bonus() -> None:
    asked = [part for name, part in PARTS.items() if name.startswith("question")]
    for part in asked:
        assert [arm.settings["filter.rule"] for arm in part.arms] == ["none", "top_p"]
    assert PARTS["question"].seeds == (0, 1, 2, 3, 4) and PARTS["question"].steps >= 100


def kept(rule: str = "top_p", seed: int = 0, after: float = 0.2, judge: float = 0.3) -> dict:
    scored = {"entropy": 0.5, "judge_names": 0.6, "scored_step": 1}
    return {
        "name": f"countdown-{rule}_s{seed}",
        "set": [],
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
        "reasonings": {
            "1": [{"prompt": "...<|im_end|>\n<|im_start|>user\nNumbers: 1, 2\n<think>", "reasoning": " 1 | 2 <b> "}],
            "60": [{"prompt": "cut", "reasoning": "last"}],
        },
    }


def test_the_report_has_a_row_for_each_kept_run(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(kept()))
    monkeypatch.setattr(real_model, "RESULTS", tmp_path)
    assert real_model.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert "+0.100 [+0.050, +0.150]" in printed and "countdown-top_p_s0" in printed
    states, true = ["0.60", "0.60"], ["1.00", "0.50"]  # the true ones among those that state anything
    assert report_rows([kept()])[0][-8:] == ["0.50", "0.25", *states, *true, "1.00", "2.00"]
    assert report_rows([{**kept(), "rows": []}])[0][-8:] == ["-"] * 8


def test_the_filter_is_compared_with_none_at_the_same_entropy_bonus_and_paired_by_seed() -> None:
    found = [kept("none", seed, 0.1 * seed, 0.3) for seed in (0, 1, 2)]
    found += [kept("top_p", seed, 0.1 * seed + 0.05, 0.45) for seed in (0, 1)]
    found += [{**kept("top_p", 0, 0.9), "entropy": 0.03}, {**kept("top_p", 2, 0.9), "set": ["learner.dtype=bfloat16"]}]
    lines = compared(found)
    assert len(lines) == 5 and all("seeds [0, 1]" in line for line in lines)
    assert lines[0].endswith("success, top_p minus none +0.050 [+0.050, +0.050]")
    assert any("true, top_p minus none +0.250" in line for line in lines)
    assert compared([kept()]) == []


def test_pairs_of_several_devices_are_averaged_and_no_pair_is_of_two_devices() -> None:
    devices: list[list[str]] = [[], [], ["learner.num_gpus=0.3"]]
    found = [kept("none", seed, 0.1) | {"set": devices[seed]} for seed in (0, 1, 2)]
    found += [kept("top_p", seed, 0.1 * seed) | {"set": devices[seed]} for seed in (0, 1, 2)]
    mixed = "seeds [0, 1, 2], pairs with other settings among them: success, top_p minus none +0.000 ["
    assert mixed in compared(found)[0]
    found[-1]["set"] = []
    assert "seeds [0, 1]: success" in compared(found)[0]


def test_a_measurement_is_kept_with_the_step_that_it_describes() -> None:
    late = 0
    for file in real_model.RESULTS.glob("*.json"):
        rows = json.loads(file.read_text())["rows"]
        assert all("scored_step" in row for row in rows if "judge" in row), file.name
        assert all("probe_step" in row for row in rows if "probe_mi" in row), file.name
        late += sum(row["scored_step"] < row["step"] for row in rows if "scored_step" in row)
    assert late, "some are recorded later"


def test_the_page_shows_the_first_and_the_last_reasonings_side_by_side_and_is_fresh(tmp_path, monkeypatch) -> None:
    assert "| Numbers: 1, 2 | 1 &#124; 2 &lt;b&gt; | cut | last |" in markdown([kept()])
    found = [parsed(file, real_model.whole) for file in sorted(real_model.RESULTS.glob("*.json"))]
    assert real_model.PAGE.read_text() == markdown(found), "python -m research.real_model --write"
    monkeypatch.setattr(real_model, "PAGE", tmp_path / "page.md")
    assert real_model.main(["--write"]) == 0 and (tmp_path / "page.md").read_text() == markdown(found)


@pytest.mark.parametrize("content", ["half of a fi", "[]", "{}", json.dumps(kept() | {"reasonings": {}})])
def test_a_damaged_file_is_named(content: str, capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "one.json").write_text(content)
    monkeypatch.setattr(real_model, "RESULTS", tmp_path)
    with pytest.raises(SystemExit) as ended:
        real_model.main([])
    assert ended.value.code == 2 and "one.json is no condensed run" in capsys.readouterr().err


def test_a_run_without_signal_is_compared_by_its_last_validation_and_reported() -> None:
    early = kept("top_p") | {"ended": "no_signal", "steps": 36, "planned": 60}
    early["success"] = {"before": {"success": 0.1, "step": 0.0}}
    lines = compared([kept("none", after=0.25), early])
    assert lines[0].endswith("success, top_p minus none -0.150")
    early["rows"] = early["rows"][:2]
    lines = compared([kept("none"), early])
    assert not any("probe MI" in line or "H(Z|X)" in line for line in lines), "measured once: before training"
    (told,) = early_ends([early])
    assert "after step 36 of 60" in told and "of step 0, counts" in told


def test_a_run_whose_validation_tasks_failed_says_so_under_the_table() -> None:
    note = real_model.note_of(
        [{"validation/failed": 0.0}, {}, {"validation/failed": 579.0}, {"validation/failed": None}]
    )
    assert note.startswith("up to 579 ") and real_model.note_of([{"validation/failed": 0.0}, {}]) == ""
    assert f"- countdown-top_p_s0: {note}" in markdown([kept() | {"note": note}])
    assert "countdown-top_p_s0: " not in markdown([kept() | {"note": ""}])


def test_a_finished_run_in_a_cells_folder_is_condensed_by_the_study(tmp_path, monkeypatch) -> None:
    cell, kept_of = STUDY.cells[0], []
    own = replace(
        STUDY, results=tmp_path / "results", condense=lambda folder, **labels: {"name": folder.name, **labels}
    )
    monkeypatch.setattr(cells, "is_finished", lambda folder: not kept_of.append(folder.name))
    monkeypatch.setattr(cells.Sweep, "open_cells", [])
    monkeypatch.setattr(cells, "prepare", lambda *_: None)

    async def nothing(*_) -> None: ...

    monkeypatch.setattr(cells, "_within", nothing)
    monkeypatch.setattr("squelch.cluster.sweep.cells.is_finished", lambda folder: True)
    assert cells.run(own, [cell], str(tmp_path), None, ["learner.dtype=bfloat16"]) == 0
    assert kept_of == [cell.name]
    assert json.loads(own.file(cell).read_text())["set"] == ["learner.dtype=bfloat16"]


DEVICES = {
    *("learner.num_gpus", "rollout.num_gpus", "scorer.num_gpus", "rollout.gpu_memory_utilization"),
    *("rollout.kv_cache_gib", "rollout.enforce_eager", "learner.activation_checkpointing"),
}


def test_the_committed_runs_are_cells_and_were_made_with_other_types_of_numbers_and_devices_at_most() -> None:
    for file in real_model.RESULTS.glob("*.json"):
        one = parsed(file, real_model.whole)
        cell = next(cell for cell in STUDY.cells if cell.name == one["name"] == file.stem)
        labels = (cell.part, cell.recipe, cell.arm, cell.seed, cell.steps)
        assert (one["part"], one["recipe"], one["arm"], one["seed"], one.get("planned", one["steps"])) == labels
        keys = {word.partition("=")[0] for word in one["set"] if changes_learning(word)}
        types = {"learner.dtype", "rollout.dtype", "scorer.dtype", "rollout.parity_bound"}
        assert keys <= types | DEVICES, file.name
