"""Cells of a study: training runs in a fixed order, started within a time box, continued, and condensed once finished.

A cell is an ordinary run, `squelch train`, whose name depends only on the study and the cell. `run` starts the open
cells in their order, some at a time. When the time is over, the cells under way finish their step and save a
checkpoint, from which the next call continues them. A finished cell is condensed, as its study says, into the study's
table (`research.tables`); a cell that is there is done, also where its run folder no longer exists. All cells of a
study are run at one commit of the product, which the table and the file `commit` in the folder of its runs record.

    actor   waits for   unblocked by             on time-out
    run     a cell      the end of its process   `minutes`: the cell saves a checkpoint and ends;
                                                 `cluster.sweep.cells` kills one that does not
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import itertools
import json
import math
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research import tables
from research.judging import Report, show
from research.kept import content_overrides
from squelch.cluster.setting_keys import below
from squelch.cluster.sweep.cells import Ended, ProcessRunner, Sweep, prepare
from squelch.cluster.sweep.plan import Arm, Cell, Plan, check_folders, is_finished, make_plan
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import checkout
from squelch.kit.process.terminal import say

START_S = 60.0
"""Seconds from the start of a cell's process to its first step, and from its last step to its end."""


@dataclass(frozen=True)
class StudyCell:
    """One run of a study. `part`: the group of cells that it belongs to; `settings`: by dotted key, what the arm
    changes of the recipe; `step_s`: expected seconds of a step on two idle cores, validation and scoring included;
    `room`: minutes that must be left of `--minutes` when it is started."""

    part: str
    recipe: str
    arm: str
    settings: Mapping[str, Any]
    seed: int
    steps: int
    step_s: float
    room: float = 0.0

    @property
    def name(self) -> str:
        """The name of the cell and of its run."""
        return f"{self.part}-{self.recipe}-{self.arm}_s{self.seed}"

    @property
    def changed(self) -> list[str]:
        """What the cell changes of its recipe, as overrides."""
        return [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]

    @property
    def minutes(self) -> float:
        """Expected minutes."""
        return (START_S + self.steps * self.step_s) / 60


@dataclass(frozen=True)
class Study:
    """A study: its name, which is the folder of its runs; the settings of every cell; its cells in order of value; the
    table of the runs that are done, or its folder. `condense`: what is kept of a run; `complete`: whether a run has
    nothing left to do; `ready`: makes what cells need before they are checked, of those that are open."""

    name: str
    common: Sequence[str]
    cells: Sequence[StudyCell]
    results: Path
    condense: Callable[..., dict[str, Any]]
    complete: Callable[[Path], bool] = is_finished
    ready: Callable[[Sequence[StudyCell]], None] = lambda cells: None

    def chosen(self, words: Sequence[str]) -> list[StudyCell]:
        """The cells whose part or name matches one of the words (`*` and `?` are wildcards); all without words.

        Raises:
            UserError: a word matches no cell.
        """
        for word in words:
            if not any(_matches(cell, word) for cell in self.cells):
                parts = ", ".join(dict.fromkeys(cell.part for cell in self.cells))
                raise UserError(f"--only {word!r} matches no cell; parts: {parts}; --list prints every cell")
        return [cell for cell in self.cells if not words or any(_matches(cell, word) for word in words)]

    def done(self) -> set[str]:
        """The names of the cells that are done. UserError if the table is damaged."""
        return {content["name"] for content in tables.read(self.results)}


def _matches(cell: StudyCell, word: str) -> bool:
    return fnmatch.fnmatchcase(cell.part, word) or fnmatch.fnmatchcase(cell.name, word)


def run_of(study: Study, cell: StudyCell, runs_dir: str, words: Sequence[str] = ()) -> Cell:
    """The validated run of a cell. `words`: further overrides, such as where models are cached.

    Raises:
        UserError: an override is of a setting that the cell fixes, or a setting is wrong.
    """
    for word, own in itertools.product(words, ("loop.steps", *cell.settings)):
        if below(own, [word.partition("=")[0]]):
            raise UserError(f"--set {word}: the cell {cell.name} fixes {own}; leave this setting out")
    arm = Arm(f"{cell.part}-{cell.recipe}-{cell.arm}", cell.settings)
    overrides = [f"runs_dir={json.dumps(runs_dir)}", f"loop.steps={cell.steps}", *study.common, *words]
    return make_plan(cell.recipe, overrides, [arm], [cell.seed], name=study.name).cells[0]


CODE = ("squelch", ":!squelch/deploy", ":!squelch/kit/findings", "pyproject.toml")
"""What a run executes, in the repository: other files may change while a study runs, its own table first of all. The
findings only say what they see, unless a run pauses for them."""


def code_commit() -> str:
    """The last commit that changed what a run executes. UserError without one, or if files differ from it."""
    root = checkout()
    if root is None:
        raise UserError("a study is run from a checkout, whose commit its table records")
    if changed := _git(root, "status", "--porcelain", "--", *CODE):
        raise UserError(f"{changed.splitlines()[0].strip()} is not committed, so no commit says what the cells run")
    return _git(root, "log", "-1", "--format=%h", "--abbrev=12", "--", *CODE)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git {words[0]} failed in {root}: {done.stderr.strip()}")
    return done.stdout.strip()


def begin(study: Study, folder: Path) -> str:
    """The commit at which the study's cells are run, written into the folder of its runs.

    Raises:
        UserError: the runs in the table, or in the folder, are of another commit.
    """
    own, file = code_commit(), folder / "commit"
    there = folder.is_dir() and any(folder.iterdir())
    recorded = [file.read_text().strip() if file.is_file() else None] if there else []
    done = [one.get("commit") for one in tables.read(study.results)]
    tables.of_one_commit(study.results, [own, *recorded, *done])
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{own}\n")
    return own


class KeepingRunner(ProcessRunner):
    """Runs a cell as its own process, and writes it into the study's table once it has finished."""

    def __init__(self, study: Study, cells: Mapping[str, StudyCell], commit: str, words: Sequence[str]) -> None:
        super().__init__()
        self._study, self._cells, self._commit, self._words = study, cells, commit, words
        self.minutes_left: Callable[[], float] = lambda: math.inf
        self.start_no_more: Callable[[], None] = lambda: None

    async def run(self, cell: Cell) -> Ended:
        """Runs the cell to its end, as `CellRunner.run`; it fails if the code changes before or meanwhile. A cell that
        needs more minutes than are left is not started, and none after it."""
        if changed := self._changed():
            return Ended(1, changed)
        left, room = self.minutes_left(), self._cells[cell.name].room
        if left < room:
            self.start_no_more()
            return Ended(0, f"not started: {left:.0f} minutes are left, and it may need {room:.0f}")
        ended = await super().run(cell)
        if changed := self._changed():
            return Ended(1, changed)
        if self._study.complete(cell.folder):
            keep(self._study, self._cells[cell.name], cell.folder, self._commit, self._words)
        return ended

    def _changed(self) -> str:
        """Why no cell may run or be kept any more; empty if the code is that of the study's commit."""
        try:
            now = code_commit()
        except UserError as error:
            return f"failed: {error}"
        return "" if now == self._commit else f"failed: the code is that of {now}, the study's that of {self._commit}"


def keep(study: Study, cell: StudyCell, folder: Path, commit: str, words: Sequence[str] = ()) -> None:
    """Condenses the run in `folder` into the study's table. `words`: the run's further overrides."""
    labels = {"part": cell.part, "recipe": cell.recipe, "arm": cell.arm, "set": content_overrides(words)}
    tables.add(study.results, [{**study.condense(folder, **labels), "commit": commit, "changed": cell.changed}])


def run(
    study: Study,
    cells: Sequence[StudyCell],
    runs_dir: str,
    minutes: float | None,
    words: Sequence[str],
    parallel: int = 1,
) -> int:
    """Runs the open cells in order, `parallel` at a time, until `minutes` are over; returns the exit code: 1 if a cell
    failed, else 0.

    Raises:
        UserError: a setting or folder is wrong, a model cannot be used, or the study's runs are of another commit.
    """
    done = study.done()
    own = {cell.name: cell for cell in cells if cell.name not in done}
    if not own:
        say("every chosen cell is done")
        return 0
    study.ready([*own.values()])
    runs = {name: run_of(study, cell, runs_dir, words) for name, cell in own.items()}
    planned = list(runs.values())
    plan = Plan(study.name, study.name, list(study.common), [], planned, planned[0].folder.parent)
    check_folders(plan)
    commit = begin(study, planned[0].folder.parent)
    for name, cell in own.items():
        if study.complete(runs[name].folder):
            keep(study, cell, runs[name].folder, commit, words)
    runner = KeepingRunner(study, own, commit, words)
    sweep = Sweep(plan, runner, parallel, say)
    prepare([cell.config for cell in sweep.open_cells], parallel, say)
    asyncio.run(_within(sweep, runner, minutes))
    done = study.done()
    failed = [cell.name for cell in planned if cell.name not in done and sweep.outcomes[cell.name].status == "failed"]
    for name in failed:
        say(f"{name}: {sweep.outcomes[name].reason}")
    add_failures(study, [(name, commit, sweep.outcomes[name].reason) for name in failed])
    open_minutes = sum(cell.minutes for name, cell in own.items() if name not in done)
    say(f"open: about {open_minutes:.0f} minutes of the chosen cells; the same command goes on")
    return int(bool(failed))


async def _within(sweep: Sweep, runner: KeepingRunner, minutes: float | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, sweep.stop, number)

    def start_no_more() -> None:
        sweep.stopped_by = signal.SIGALRM  # those under way go on

    runner.start_no_more = start_no_more
    if minutes is not None:
        end = loop.time() + 60 * minutes
        runner.minutes_left = lambda: (end - loop.time()) / 60
        loop.call_at(end, sweep.stop, signal.SIGALRM)
    await sweep.run()


def failures_of(study: Study) -> list[dict[str, str]]:
    """Every attempt at a cell of the study that failed: cell, commit, and how it ended."""
    file = study.results.with_suffix(".failures.csv")
    return tables.read_csv(file) if file.is_file() else []


def add_failures(study: Study, found: Sequence[tuple[str, str, str]]) -> None:
    """Adds failed attempts, (cell, commit, reason), to those of the study, which are counted and repeated. Only the
    beginning of a reason is kept, as the rest may name folders of this machine."""
    if found:
        rows = [{"cell": cell, "commit": commit, "reason": why.partition(":")[0]} for cell, commit, why in found]
        tables.write_csv(study.results.with_suffix(".failures.csv"), [*failures_of(study), *rows])


def command(
    words: str | None,
    find: Callable[[], Study],
    judge: Callable[[bool], Report],
    argv: Sequence[str] | None,
    *,
    writes: str = "",
) -> int:
    """The command of a study: runs its cells, lists them, or judges its table; returns the exit code.
    `words`: its description; `find`: the study; `judge`: the report, which may be cheaper with `--quick`; `writes`:
    the page in docs/research that `--write` writes. Ends with exit code 2 if a flag, setting, folder or file is
    wrong."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the cells and their expected minutes")
    form.add_argument("--run", action="store_true", help="run the cells that are not done")
    form.add_argument("--quick", action="store_true", help="judge the table, as without it")
    if writes:
        form.add_argument("--write", action="store_true", help=f"judge the table, and write docs/research/{writes}")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="list, run: these parts or cells")
    parser.add_argument("--minutes", type=float, metavar="N", help="run: minutes of running; models are built before")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="run: cells at the same time")
    parser.add_argument("--runs-dir", default="runs", help="run: folder of the study's runs")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="run: further settings")
    parser.add_argument("--json", action="store_true", help="judge: one JSON object instead of the table")
    chosen = parser.parse_args(argv)
    if chosen.minutes is not None and not chosen.minutes > 0:
        parser.error(f"--minutes {chosen.minutes:g}: give a number above 0")
    if chosen.parallel < 1:
        parser.error(f"--parallel {chosen.parallel}: give at least 1")
    if idle := _idle(chosen):
        parser.error(f"{idle[0]} has no effect {idle[1]}; leave it out")
    try:
        study = find()
        wanted = study.chosen(chosen.only)
        if chosen.run:
            return run(study, wanted, chosen.runs_dir, chosen.minutes, chosen.set, chosen.parallel)
        report = _list(study, wanted) if chosen.list else judge(chosen.quick)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    show(report, chosen.json, bool(writes) and chosen.write)
    return 0


def _idle(chosen: argparse.Namespace) -> tuple[str, str] | None:
    """A flag that was given and has no effect, and where; None without one."""
    run = {"--minutes": chosen.minutes, "--parallel": chosen.parallel > 1, "--set": chosen.set}
    if not chosen.run and (given := [flag for flag, value in run.items() if value]):
        return given[0], "without --run"
    if chosen.run and chosen.json:
        return "--json", "with --run"
    if chosen.only and not (chosen.run or chosen.list):
        return "--only", "without --run or --list, since all runs of the table are judged together"
    return None


COLUMNS = ("cell", "steps", "minutes", "sum", "state")


def _list(study: Study, cells: Sequence[StudyCell]) -> Report:
    rows = listed(study, cells)
    return Report({"cells": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}, COLUMNS, rows)


def listed(study: Study, cells: Iterable[StudyCell]) -> list[list[Any]]:
    """A row for each cell: name, steps, expected minutes, their sum up to it, and whether it is done."""
    rows, total, done = [], 0.0, study.done()
    for cell in cells:
        total += cell.minutes
        state = "done" if cell.name in done else "open"
        rows.append([cell.name, cell.steps, f"{cell.minutes:.1f}", f"{total / 60:.1f} h", state])
    return rows
