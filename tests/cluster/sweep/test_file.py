"""Sweep files: Table 4 of the paper, and what is wrong with a file."""

import re
import socket
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from squelch.cluster.cli import main
from squelch.cluster.commands.plan_memory import DEVICES_GIB, hardware, needs_of
from squelch.cluster.config import load
from squelch.cluster.report.tables import TABLE_4, TASKS
from squelch.cluster.sweep.file import read_sweep
from squelch.cluster.sweep.plan import make_plan
from squelch.envs.countdown.published import published

PUBLISHED = {"Countdown": "Jiayi-Pan/Countdown-Tasks-3to4", "MetaMathQA": "meta-math/MetaMathQA"}


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The hub's library has downloaded nothing."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))


def test_table_4_is_one_sweep_of_at_most_six_recipes(
    tmp_path: Path, empty_cache: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host))
    assert main(["sweep", "table-4", f"runs_dir={tmp_path}", "--dry-run"]) == 0
    printed = capfd.readouterr()
    head, *rows, countdown, metamathqa, last = printed.out.splitlines()
    assert head.split() == ["cell", "recipe", "hardware"] and last == f"72 cells, 72 arms, in {tmp_path}/table-4"
    for note, data in ((countdown, PUBLISHED["Countdown"]), (metamathqa, PUBLISHED["MetaMathQA"])):
        assert note.startswith(f"18 cells need the data set {data} of the Hugging Face hub, which is not in the local")
        assert note.endswith(f"hf download {data} --repo-type dataset")
    assert (printed.err, asked) == ("", [])
    cells = {name: (recipe, hardware) for name, recipe, hardware in (re.split("  +", row) for row in rows)}
    assert len(cells) == 72 and len({recipe for recipe, _ in cells.values()}) <= 6 and not any(tmp_path.iterdir())
    models, tasks = {name.split("_")[0] for name in cells}, {name.split("_")[1] for name in cells}
    assert len(models) == len(TABLE_4) and len(tasks) == len(TASKS)
    assert cells["ppo-llama-3b-instruct_countdown_top-p_s0"][0] == "llama-3.2-3b"


def test_a_sweep_without_its_data_ends_before_its_first_cell(
    tmp_path: Path, empty_cache: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["sweep", "table-4", f"runs_dir={tmp_path}"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cell ppo-3b_metamathqa_none_s0" in said and f"data set {PUBLISHED['MetaMathQA']} of the Hugging" in said
    assert not any(tmp_path.iterdir())


def test_a_dry_run_reads_data_that_are_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "datasets--owner--puzzles"
    puzzles = "".join(f'{{"nums": [{number}, 2], "target": {number + 2}}}\n' for number in (1, 3))
    for name, text in (("refs/main", "c0ffee"), ("snapshots/c0ffee/train.jsonl", puzzles)):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).write_text(text)
    asked = ["sweep", "countdown", "environment.options.data=owner/puzzles", f"runs_dir={tmp_path}", "--dry-run"]
    assert main(asked) == 0 and "data set" not in capsys.readouterr().out
    (repository / "snapshots/c0ffee/train.jsonl").write_text('{"nums": [1, 2]}\n')
    published.cache_clear()
    assert main(asked) == 2 and "all rows are the same" in " ".join(capsys.readouterr().err.split())


def test_the_cells_of_table_4_are_the_papers_rows(empty_cache: None) -> None:
    file = read_sweep("table-4")
    cells = make_plan("table-4", file.overrides, file.arms, [0], name=file.name, download=False).cells
    settings = {(c.config.learner.algorithm, Path(c.config.model.path).name, c.config.environment.name) for c in cells}
    assert settings == {(*row, task) for row in TABLE_4 for task in TASKS}
    for cell in cells:
        config = cell.config
        assert config.filter.rule == ("none" if "_none_" in config.name else "top_p_softmax")
        assert (config.loop.steps, config.validation.tasks, config.filter.compat) == (400, 512, "ragen")
        assert (config.learner.optimizer.learning_rate, config.learner.critic.learning_rate) == (1e-6, 1e-5)
        assert config.environment.options.get("data") == PUBLISHED.get(config.environment.name)


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


def test_an_unknown_name_is_answered_with_the_nearest_sweep_file_or_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, right in (("table-5", "table-4"), ("frozenlak", "frozenlake")):
        assert main(["sweep", wrong, "--dry-run"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"no recipe or sweep file '{wrong}'. Did you mean '{right}'? Shipped sweep files: table-4; " in said


def test_a_sweep_file_takes_overrides_and_no_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nrows: {a: {recipe: sokoban}, b: {recipe: frozenlake}}\n")
    assert main(["sweep", str(path), f"runs_dir={tmp_path}", "loop.steps=3", "--seeds", "0,1", "--dry-run"]) == 0
    assert "4 cells, 2 arms" in capsys.readouterr().out
    assert main(["sweep", str(path), "--grid", "filter.rule=none,top_p", "--dry-run"]) == 2
    assert "leave --grid out" in capsys.readouterr().err
