"""Sweep files: Table 4 of the paper, and what is wrong with a file."""

import re
from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.commands.plan import DEVICES_GIB, hardware, needs_of
from squelch.cluster.config import load
from squelch.cluster.report.tables import TABLE_4, TASKS
from squelch.cluster.sweep.file import read_sweep
from squelch.cluster.sweep.plan import make_plan


@pytest.fixture
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments open no published data."""
    for module in ("countdown", "meta_math_qa"):
        monkeypatch.setattr(f"squelch.envs.{module}.environment.published", lambda data, split: None)


def test_table_4_is_one_sweep_of_at_most_six_recipes(
    tmp_path: Path, no_downloads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "table-4", f"runs_dir={tmp_path}", "--dry-run"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["cell", "recipe", "hardware"] and last == f"72 cells, 72 arms, in {tmp_path}/table-4"
    cells = {name: (recipe, hardware) for name, recipe, hardware in (re.split("  +", row) for row in rows)}
    assert len(cells) == 72 and len({recipe for recipe, _ in cells.values()}) <= 6 and not any(tmp_path.iterdir())
    models, tasks = {name.split("_")[0] for name in cells}, {name.split("_")[1] for name in cells}
    assert len(models) == len(TABLE_4) and len(tasks) == len(TASKS)
    assert cells["ppo-llama-3b-instruct_countdown_top-p_s0"][0] == "llama-3.2-3b"


def test_the_cells_of_table_4_are_the_papers_rows(no_downloads: None) -> None:
    file = read_sweep("table-4")
    cells = make_plan("table-4", file.overrides, file.arms, [0], name=file.name).cells
    settings = {(c.config.learner.algorithm, Path(c.config.model.path).name, c.config.environment.name) for c in cells}
    assert settings == {(*row, task) for row in TABLE_4 for task in TASKS}
    for cell in cells:
        config = cell.config
        assert config.filter.rule == ("none" if "_none_" in config.name else "top_p_softmax")
        assert (config.loop.steps, config.validation.tasks, config.filter.compat) == (400, 512, "ragen")
        assert (config.learner.optimizer.learning_rate, config.learner.critic.learning_rate) == (1e-6, 1e-5)
        published = {"Countdown": "Jiayi-Pan/Countdown-Tasks-3to4", "MetaMathQA": "meta-math/MetaMathQA"}
        assert config.environment.options.get("data") == published.get(config.environment.name)


def test_each_row_of_table_4_names_the_hardware_that_plan_says_it_needs() -> None:
    file, rows, plans = read_sweep("table-4"), set(), {}
    for arm in file.arms:
        if arm.settings["environment.name"] == "Sokoban":
            config = load(arm.recipe, [*file.overrides, *arm.overrides])
            shape = arm.recipe, config.learner.objective.needs_critic
            plans[shape] = plans.get(shape) or hardware(config, needs_of(config, DEVICES_GIB))
            assert arm.hardware == plans[shape], arm.label
            rows.add(arm.label.partition("_")[0])
    assert len(rows) == len(TABLE_4)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: a\nrows: {}\n", "rows: Dictionary should have at least 1 item"),
        ("name: a\nrows: {b: {recipe: sokoban, gpus: 4}}\n", "rows.b.gpus: Extra inputs are not permitted"),
        ("rows: {b: {recipe: sokoban}}\n", "name: Field required"),
        (
            "name: a\naxes: [{c: {loop.steps: 1}}]\nrows: {b: {recipe: sokoban, settings: {loop.steps: 2}}}\n",
            "b sets loop.steps twice, also by c",
        ),
        ("name: a\nrows: {b: {recipe: sokobann}}\n", "Did you mean 'sokoban'?"),
        ("name: a\nrows: {b: {recipe: sokoban, settings: {seed: 1}}}\n", "the sweep sets this key itself"),
    ],
)
def test_what_is_wrong_with_a_sweep_file_is_said(tmp_path: Path, content: str, says: str, capsys) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    assert main(["sweep", str(path), "--dry-run"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_sweep_file_takes_overrides_and_no_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nrows: {a: {recipe: sokoban}, b: {recipe: frozenlake}}\n")
    assert main(["sweep", str(path), f"runs_dir={tmp_path}", "loop.steps=3", "--seeds", "0,1", "--dry-run"]) == 0
    assert "4 cells, 2 arms" in capsys.readouterr().out
    assert main(["sweep", str(path), "--grid", "filter.rule=none,top_p", "--dry-run"]) == 2
    assert "leave --grid out" in capsys.readouterr().err
