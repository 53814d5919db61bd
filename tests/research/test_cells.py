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
from research.cells import Study, StudyCell, command
from research.claims.statistics import Pool
from research.judging import Report
from research.kept import Kept, carried, changes_learning, early_ends, read_all
from squelch.cluster.config import dump
from squelch.cluster.sweep.cells import Ended, ProcessRunner
from squelch.cluster.sweep.plan import Cell
from squelch.kit.base.errors import UserError

STEPS = 20


def study(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Study:
    settings = {"filter.rule": "none"}
    own = [StudyCell("lead", "sokoban", "none", settings, seed, STEPS, 1.0) for seed in seeds]
    return Study("made-up", ["scorer.every=10"], own, folder / "made-up.parquet", kept)


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
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    return names


def test_open_cells_run_in_order_and_a_cell_that_is_kept_never_again(tmp_path, started):
    own = study(tmp_path)
    assert cells.run(own, own.cells[:1], str(tmp_path / "runs"), None, ()) == 0
    assert cells.run(own, own.cells, str(tmp_path / "elsewhere"), None, ()) == 0
    assert started == ["lead-sokoban-none_s0", "lead-sokoban-none_s1"]
    assert cells.run(own, own.cells, str(tmp_path / "runs"), None, ()) == 0 and len(started) == 2
    assert [run.seed for run in read_all(own.results)] == [0, 1]


def test_a_run_that_finished_before_it_was_kept_is_condensed_and_not_run_again(tmp_path, started):
    own = study(tmp_path, (0,))
    cells.run(own, own.cells, str(tmp_path), None, ())
    own.results.unlink()
    assert cells.run(own, own.cells, str(tmp_path), None, ()) == 0
    assert len(started) == 1 and own.done() == {own.cells[0].name}


def test_after_its_minutes_no_further_cell_starts_and_the_one_under_way_is_asked_to_end(tmp_path, monkeypatch):
    own, asked = study(tmp_path), []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        while not asked:
            await asyncio.sleep(0.001)
        return Ended(130, "ended after step 7")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(ProcessRunner, "interrupt", lambda self: asked.append(1))
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    assert cells.run(own, own.cells, str(tmp_path), 0.0001, ()) == 0
    assert asked == [1] and not own.results.exists()


def test_as_many_cells_run_at_a_time_as_asked_for(tmp_path, monkeypatch):
    own, running, most = study(tmp_path), [], []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        running.append(cell.name)
        for _ in range(100):
            await asyncio.sleep(0)
        most.append(len(running))
        running.remove(cell.name)
        return Ended(1, "failed: no")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    cells.run(own, own.cells, str(tmp_path / "one"), None, ())
    assert most == [1, 1]
    most.clear()
    cells.run(own, own.cells, str(tmp_path / "two"), None, (), parallel=2)
    assert most == [2, 1]


def test_a_signal_ends_it_as_the_minutes_do(tmp_path, monkeypatch):
    own, asked = study(tmp_path), []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        os.kill(os.getpid(), signal.SIGTERM)
        while not asked:
            await asyncio.sleep(0.001)
        return Ended(143, "ended after step 7")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(ProcessRunner, "interrupt", lambda self: asked.append(1))
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    assert cells.run(own, own.cells, str(tmp_path), None, ()) == 0 and len(asked) == 1


def test_a_table_and_a_folder_of_runs_are_of_one_commit(tmp_path, started, commit):
    own = study(tmp_path)
    cells.run(own, own.cells[:1], str(tmp_path / "runs"), None, ())
    (first,) = tables.read(own.results)
    assert first["commit"] == COMMIT and read_all(own.results)[0].commit == COMMIT
    commit[0] = "ba9876543210"
    with pytest.raises(UserError, match=r"made-up\.parquet: its runs would be of several commits"):
        cells.run(own, own.cells, str(tmp_path / "elsewhere"), None, ())
    own.results.unlink()
    with pytest.raises(UserError, match=f"several commits \\({COMMIT}, ba9876543210\\)"):
        cells.run(own, own.cells, str(tmp_path / "runs"), None, ())
    (tmp_path / "runs" / "made-up" / "commit").unlink()
    with pytest.raises(UserError, match="not recorded"):
        cells.run(own, own.cells, str(tmp_path / "runs"), None, ())
    assert started == [own.cells[0].name]


def test_a_cell_fails_if_the_code_changes_meanwhile_and_no_other_starts(tmp_path, monkeypatch, started, commit, capsys):
    own, run = study(tmp_path), ProcessRunner.run

    async def changing(self: ProcessRunner, cell: Cell) -> Ended:
        commit[0] = "ba9876543210"
        return await run(self, cell)

    monkeypatch.setattr(ProcessRunner, "run", changing)
    assert cells.run(own, own.cells, str(tmp_path), None, ()) == 1
    assert len(started) == 1 and not own.results.exists()
    assert f"the code is that of ba9876543210, the study's that of {COMMIT}" in capsys.readouterr().out


def test_a_failed_cell_is_reported_and_the_others_run(tmp_path, monkeypatch, capsys):
    own, names = study(tmp_path), []

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        names.append(cell.name)
        cell.folder.mkdir(parents=True, exist_ok=True)
        return Ended(1, "failed: no")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    assert cells.run(own, own.cells, str(tmp_path), None, ()) == 1
    assert len(names) == 2 and "failed: no" in capsys.readouterr().out


def test_every_failed_attempt_is_counted_without_the_folders_of_its_reason(tmp_path, monkeypatch):
    own = study(tmp_path)

    async def run(self: ProcessRunner, cell: Cell) -> Ended:
        cell.folder.mkdir(parents=True, exist_ok=True)
        return Ended(1, f"failed: {cell.folder}")

    monkeypatch.setattr(ProcessRunner, "run", run)
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    assert cells.failures_of(own) == []
    for _ in range(2):
        cells.run(own, own.cells[:1], str(tmp_path), None, ())
    assert cells.failures_of(own) == [{"cell": own.cells[0].name, "commit": COMMIT, "reason": "exit code 1"}] * 2


def test_a_cell_that_needs_more_minutes_than_are_left_is_not_started_and_no_failure(tmp_path, started, capsys):
    own = study(tmp_path)
    long = replace(own, cells=[own.cells[0], replace(own.cells[1], room=35.0)])
    assert cells.run(long, long.cells, str(tmp_path), 34.0, ()) == 0
    assert started == [own.cells[0].name] and cells.failures_of(own) == []
    assert "not started: 34 minutes are left, and it may need 35" in capsys.readouterr().out
    assert cells.run(long, long.cells, str(tmp_path), 36.0, ()) == 0 and len(started) == 2


def test_what_cells_need_is_made_for_the_open_ones_before_they_are_checked(tmp_path, started):
    made: list[list[int]] = []
    own = replace(study(tmp_path), ready=lambda open_cells: made.append([cell.seed for cell in open_cells]))
    cells.run(own, own.cells[:1], str(tmp_path), None, ())
    cells.run(own, own.cells, str(tmp_path), None, ())
    cells.run(own, own.cells, str(tmp_path), None, ())
    assert made == [[0], [1]]


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
    monkeypatch.setattr(cells, "prepare", lambda configs, parallel, say: None)
    plain = study(tmp_path, (0,))
    assert cells.run(plain, plain.cells, str(tmp_path / "plain"), None, ()) == 1 and plain.done() == set()
    assert "ended after step 5" in capsys.readouterr().out

    def of_ended(folder: Path, **labels: str) -> dict:
        return {"name": folder.name, **labels, "seed": 0, "steps": 5, "set": [], "groups": {}, "tables": {}}

    own = replace(plain, condense=of_ended, complete=lambda folder: (folder / "summary.json").is_file())
    assert cells.run(own, own.cells, str(tmp_path / "own"), None, ()) == 0 and own.done() == {own.cells[0].name}
    assert "ended after step 5" not in capsys.readouterr().out.splitlines()[-1]


def test_the_table_tells_the_overrides_of_its_run_without_places(tmp_path, started):
    own = study(tmp_path, (0,))
    words = ["model.cache=/somewhere", "runs_dir=/elsewhere", "recorder.host=h", "learner.dtype=bfloat16"]
    keep_in = ["loop.keep_checkpoints=2"]
    cells.run(own, own.cells, str(tmp_path), None, [*words[:1], *words[2:], *keep_in])
    assert read_all(own.results)[0].overrides == ("learner.dtype=bfloat16", "loop.keep_checkpoints=2")
    assert [changes_learning(word) for word in (*words, *keep_in)] == [False, False, False, True, False]


@pytest.mark.parametrize("word", ["loop.steps=5", "filter.rule=top_k", "filter={rho: 0.5}"])
def test_what_a_cell_fixes_cannot_be_set(tmp_path, started, word):
    """A cell of 5 steps counted as done; a rule of --set lost to the arm's, and the file told that it was used."""
    own = study(tmp_path, (0,))
    with pytest.raises(UserError, match=r"fixes (loop\.steps|filter\.rule)"):
        cells.run(own, own.cells, str(tmp_path), None, (word,))
    assert not started


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
        if name.startswith("learner"):
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


def test_words_choose_parts_and_cells(tmp_path):
    own = study(tmp_path)
    assert own.chosen(["lead"]) == list(own.cells) == own.chosen([])
    assert [cell.seed for cell in own.chosen(["*_s1"])] == [1]
    with pytest.raises(UserError, match="lead"):
        own.chosen(["leed"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--minutes 3", "--minutes has no effect without --run"),
        ("--list --parallel 2", "--parallel has no effect without --run"),
        ("--set a=b", "--set has no effect without --run"),
        ("--only lead", "--only has no effect without --run or --list"),
        ("--run --json", "--json has no effect with --run"),
    ],
)
def test_a_flag_without_effect_is_refused(tmp_path, capsys, words, told):
    """They were ignored, and the exit code was 0."""
    with pytest.raises(SystemExit):
        command(None, lambda: study(tmp_path), lambda quick: Report({}, (), ()), words.split())
    assert told in capsys.readouterr().err


def test_the_list_of_cells_has_a_json_form(tmp_path, capsys):
    assert command(None, lambda: study(tmp_path), lambda quick: Report({}, (), ()), ["--list", "--json"]) == 0
    (first, _) = json.loads(capsys.readouterr().out)["cells"]
    assert (first["cell"], first["steps"], first["state"]) == ("lead-sokoban-none_s0", STEPS, "open")
