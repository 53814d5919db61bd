"""Cells of a study: what is run, what is kept of it, and that a later call goes on where an earlier one ended."""

import asyncio
import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research import cells, tables
from research.cells import Study, StudyCell
from research.claims.statistics import Pool
from research.kept import Kept, carried, early_ends, read_all
from squelch.cluster.config import dump
from squelch.cluster.sweep import cells as sweep
from squelch.cluster.sweep.cells import Ended, ProcessRunner
from squelch.cluster.sweep.plan import Cell, is_finished
from squelch.kit.base.errors import UserError

STEPS = 20


def study(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Study:
    settings = {"filter.rule": "none"}
    own = [StudyCell("lead", "sokoban", "none", settings, seed, STEPS) for seed in seeds]
    return Study("made-up", ["scorer.every=10"], own, folder / "made-up.parquet", kept, is_finished)


def names(study: Study) -> list[str]:
    """The names of a study's cells."""
    return [cell.name for cell in study.cells]


def done(study: Study) -> set[str]:
    """The names of the cells in a study's table."""
    return {one["name"] for one in tables.read(study.results)}


def kept(folder: Path, **labels: Any) -> dict[str, Any]:
    """What the study keeps of a run. UserError of one that ended by itself."""
    summary = json.loads((folder / "summary.json").read_text())
    if not summary["finished"]:
        raise UserError(f"{folder}: the run has not finished")
    seed = int(folder.name.rpartition("_s")[2])
    tables = {"steps": {"step": [STEPS], "reward_mean": [1.0]}}
    return {"name": folder.name, **labels, "seed": seed, "steps": summary["steps"], "groups": {}, "tables": tables}


def ended_early(cell: Cell, stopped: str, cause: str, steps: int) -> Ended:
    """Writes what a run leaves behind that ended by itself after so many steps."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    finish(cell)
    path = cell.folder / "summary.json"
    ended = {"finished": False, "stopped": stopped, "end_cause": cause, "steps": steps}
    path.write_text(json.dumps(json.loads(path.read_text()) | ended))
    return Ended(1, f"ended after step {steps}: {stopped}")


def finish(cell: Cell) -> None:
    """Writes what a run that came to its end leaves behind."""
    summary = {"finished": True, "stopped": None, "steps": STEPS, "ledger": {"balanced": True}}
    (cell.folder / "config.yaml").write_text(dump(cell.config))
    (cell.folder / "summary.json").write_text(json.dumps(summary))


COMMIT = "0123456789ab"


@pytest.fixture(autouse=True)
def commit(monkeypatch) -> list[str]:
    """The commit of the code, as the studies see it; a test may change its only entry."""
    found = [COMMIT]
    monkeypatch.setattr(cells, "code_commit", lambda: found[0])
    return found


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """Names of the cells whose made-up process was started, each of which finishes at once."""
    names: list[str] = []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        names.append(cell.name)
        cell.folder.mkdir(parents=True, exist_ok=True)
        finish(cell)
        return Ended(0, "done")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(sweep, "prepare", lambda configs, parallel, say: None)
    return names


def test_open_cells_run_in_order_and_a_cell_that_is_kept_never_again(tmp_path, started):
    own = study(tmp_path)
    assert cells.run(own, names(own)[:1], tmp_path / "runs") == 0
    assert cells.run(own, names(own), tmp_path / "elsewhere") == 0
    assert started == ["lead-sokoban-none_s0", "lead-sokoban-none_s1"]
    assert cells.run(own, names(own), tmp_path / "runs") == 0 and len(started) == 2
    assert [run.seed for run in read_all(own.results)] == [0, 1]


def test_a_run_that_finished_before_it_was_kept_is_condensed_and_not_run_again(tmp_path, started):
    own = study(tmp_path, (0,))
    cells.run(own, names(own), tmp_path / "runs")
    own.results.unlink()
    assert cells.run(own, names(own), tmp_path / "runs") == 0
    assert len(started) == 1 and done(own) == {own.cells[0].name}


def test_a_signal_lets_the_cell_under_way_save_its_state_and_starts_no_other(tmp_path, monkeypatch):
    own, asked = study(tmp_path), []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        os.kill(os.getpid(), signal.SIGTERM)
        while not asked:
            await asyncio.sleep(0.001)
        return Ended(143, "ended after step 7")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(ProcessRunner, "interrupt", lambda self: asked.append(1))
    monkeypatch.setattr(sweep, "prepare", lambda configs, parallel, say: None)
    assert cells.run(own, names(own), tmp_path / "runs") == 143 and len(asked) == 1


def test_a_table_is_of_one_commit_and_runs_of_another_are_not_continued(tmp_path, started, commit):
    own = study(tmp_path)
    cells.run(own, names(own)[:1], tmp_path / "runs")
    (first,) = tables.read(own.results)
    assert first["commit"] == COMMIT and read_all(own.results)[0].commit == COMMIT
    commit[0] = "ba9876543210"
    with pytest.raises(UserError, match=r"made-up\.parquet: its runs would be of several commits"):
        cells.run(own, names(own), tmp_path / "elsewhere")
    assert started == [own.cells[0].name]
    own.results.unlink()
    assert cells.run(own, names(own)[:1], tmp_path / "runs") == 0
    assert len(started) == 2 and read_all(own.results)[0].commit == commit[0]


def test_no_cell_is_kept_or_started_once_the_code_has_changed(tmp_path, monkeypatch, started, commit):
    own, run = study(tmp_path), ProcessRunner.run

    async def changing(self: ProcessRunner, cell: Cell) -> Ended:
        commit[0] = "ba9876543210"
        return await run(self, cell)

    monkeypatch.setattr(ProcessRunner, "run", changing)
    with pytest.raises(UserError, match=f"several commits \\({COMMIT}, ba9876543210\\)"):
        cells.run(own, names(own), tmp_path / "runs")
    assert len(started) == 1 and not own.results.exists()


def test_a_failed_cell_is_reported_and_the_others_run(tmp_path, monkeypatch, capsys):
    own, tried = study(tmp_path), []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        tried.append(cell.name)
        cell.folder.mkdir(parents=True, exist_ok=True)
        return Ended(1, "failed: no")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(sweep, "prepare", lambda configs, parallel, say: None)
    assert cells.run(own, names(own), tmp_path / "runs") == 1
    assert len(tried) == 2 and "failed: no" in capsys.readouterr().out


def test_the_last_validation_of_a_run_without_signal_is_carried_to_its_planned_last_step():
    validated = {"step": [0], "validation/success": [0.25]}
    ended = Kept("n", "lead", "sokoban", "none", 0, 15, {"validated": validated}, {}, "no_signal", planned=STEPS)
    first = carried(ended)
    assert (first.steps, first.horizon) == (15, STEPS)
    assert first.series("validation/success") == {0: 0.25, STEPS: 0.25}
    (told,) = early_ends([first])
    assert "1 runs ended" in told and "after step 15 of 20, last validated at step 0, so not the policy" in told
    assert Pool([first]).arm("sokoban", "none", STEPS) == {0: first}


def test_a_study_says_itself_what_is_kept_of_a_run_and_when_it_is_complete(tmp_path, monkeypatch, capsys):
    """A run that its planted fault ends is no failed cell."""

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        return ended_early(cell, "nothing counts: 5 steps", "nothing_counts", 5)

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(sweep, "prepare", lambda configs, parallel, say: None)
    plain = study(tmp_path, (0,))
    assert cells.run(plain, names(plain), tmp_path / "plain") == 1 and done(plain) == set()
    assert "ended after step 5" in capsys.readouterr().out

    def of_ended(folder: Path, **labels: str) -> dict:
        return {"name": folder.name, **labels, "seed": 0, "steps": 5, "set": [], "groups": {}, "tables": {}}

    own = replace(plain, condense=of_ended, complete=lambda folder: (folder / "summary.json").is_file())
    assert cells.run(own, names(own), tmp_path / "own") == 0 and done(own) == {own.cells[0].name}


def test_the_commit_of_the_code_changes_with_what_a_run_executes_alone(tmp_path, monkeypatch):
    monkeypatch.undo()  # the commit is read from a repository, not from the fixture

    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *own, *words], check=True, capture_output=True)

    def write(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write(name)

    monkeypatch.setattr(cells, "checkout", lambda: tmp_path)
    with pytest.raises(UserError, match="git status failed"):
        cells.code_commit()
    git("init", "-q")
    found = []
    for name in ("squelch/learner/rank.py", "research/results/t.parquet", "squelch/learner/rank.py"):
        write(name)
        if name.startswith("squelch/learner"):
            with pytest.raises(UserError, match="is not committed"):
                cells.code_commit()
        git("add", "-A")
        git("commit", "-qm", name)
        found.append(cells.code_commit())
    first, same, other = found
    assert first == same != other and len(first) == 12
    write("research/results/t.parquet")
    assert cells.code_commit() == other, "the study's own table may change while it runs"
    write("squelch/kit/findings/rewards.py")
    assert cells.code_commit() == other, "findings change nothing of what a run does"
