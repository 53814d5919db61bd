"""The runs at a constant rate: their cells are runs that can be made, and pilot and verdicts judge as the head says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research import constant_rate, tables
from research.cells import StudyCell, run_of
from research.constant_rate import RATES, SEEDS, STEPS, Study, arms, pilot_cell, rate_of, verdict


def content(cell: StudyCell, success: list[float]) -> dict:
    table = {"step": [0, 30, 60], "validation/success": success}
    labels = {"name": cell.name, "part": cell.part, "recipe": cell.recipe, "arm": cell.arm, "seed": cell.seed}
    return {**labels, "set": [], "steps": cell.steps, "tables": {"validated": table}, "groups": {}}


def keep_pilot(file: Path, rate: float, success: list[float]) -> None:
    tables.add(file, [content(pilot_cell("sokoban", rate), success)])


def test_the_rate_is_the_largest_at_which_the_pilot_ends_near_its_best(tmp_path) -> None:
    assert rate_of("sokoban", tmp_path / "t.parquet") is None
    keep_pilot(tmp_path / "t.parquet", RATES[0], [0.1, 0.5, 0.4])
    assert rate_of("sokoban", tmp_path / "t.parquet") is None
    keep_pilot(tmp_path / "t.parquet", RATES[1], [0.1, 0.5, 0.46])
    assert rate_of("sokoban", tmp_path / "t.parquet") == RATES[1]


def test_without_a_rate_that_holds_the_smallest_is_taken(tmp_path) -> None:
    for rate in RATES:
        keep_pilot(tmp_path / "t.parquet", rate, [0.1, 0.5, 0.4])
    assert rate_of("sokoban", tmp_path / "t.parquet") == RATES[-1]


def test_cells_that_another_checkout_left_as_json_files_are_imported(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(constant_rate, "RESULTS", tmp_path / "t.parquet")
    monkeypatch.setattr(constant_rate.rate_of, "__defaults__", (tmp_path / "t.parquet",))
    cell, late = pilot_cell("sokoban", RATES[0]), next(arms("sokoban", RATES[0]))
    files = [tmp_path / f"{one.name}.json" for one in (cell, late)]
    for one, file in zip((cell, late), files, strict=True):
        file.write_text(json.dumps(content(one, [0.1, 0.5, 0.5])))
    with pytest.raises(SystemExit):
        constant_rate.main(["--import", str(files[1])])
    assert "is no cell of the study" in capsys.readouterr().err, "the rate is not known before the pilot"
    assert constant_rate.main(["--import", *map(str, files)]) == 0
    (long, pilot) = tables.read(tmp_path / "t.parquet")
    assert pilot["tables"] == content(cell, [0.1, 0.5, 0.5])["tables"] and long["changed"] == late.changed
    assert constant_rate.main(["--list"]) == 0 and "done" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", constant_rate.ENVIRONMENTS)
def test_arms_differ_in_filter_and_algorithm_alone_and_no_rate_decays(recipe: str, tmp_path) -> None:
    cells = tuple(arms(recipe, 1e-4))
    study = Study("constant_rate", constant_rate.COMMON, cells, tmp_path)
    configs = {cell.name: run_of(study, cell, str(tmp_path)).config for cell in cells}
    assert len(configs) == len(SEEDS) * 2 * len(constant_rate.ENVIRONMENTS[recipe])
    for cell in cells:
        config = configs[cell.name]
        optimizer, algorithm = config.learner.optimizer, config.learner.algorithm
        assert (optimizer.learning_rate, optimizer.decay_steps, config.loop.steps) == (1e-4, 0, STEPS)
        assert config.learner.objective.aggregation == {"grpo": "sequence_mean", "ppo": "token_mean"}[algorithm]
        assert (config.model.tiny_seed, config.validation.early_stop) == (cell.seed, "off")
        assert config.filter.rule == ("top_p" if cell.arm.endswith("top_p") else "none")
        if config.filter.rule == "top_p":
            assert (config.filter.epsilon, config.filter.epsilon_unit) == (0.01, "absolute")


@pytest.mark.parametrize(
    ("low", "high", "above", "said"),
    [
        (0.1, 0.2, True, "holds"),
        (-0.2, -0.1, True, "fails"),
        (-0.2, -0.1, False, "holds"),
        (0.1, 0.2, False, "fails"),
        (-0.1, 0.1, True, "not significant"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side_and_all_seeds(low, high, above: bool, said: str) -> None:
    assert verdict({"low": low, "high": high, "n": 3}, 3, above) == f"{said}, 3 of 3 seeds"
    assert verdict({"low": low, "high": high, "n": 2}, 3, above) == "2 of 3 seeds"
    assert verdict({"low": None, "high": None, "n": 0}, 3, above) == "0 of 3 seeds"
