"""Cells of a study: training runs in a fixed order, started within a time box, continued, and condensed once finished.

A cell is an ordinary run, `squelch train`, whose name depends only on the study and the cell. `run` starts the open
cells in their order, some at a time. When the time is over, the cells under way finish their step and save a
checkpoint, from which the next call continues them. A finished cell is condensed into one small file
(`research.kept`); a cell with such a file is done, also where its run folder no longer exists.

A cell may begin with a checkpoint of another cell's run (`Start`). Such cells run after all others of the call, and
need the folder of that run.

    party          waits for         unblocked by                        on time-out
    run            a cell            the end of its process              `minutes`: the cell saves a checkpoint, ends;
                                                                         `cluster.sweep.cells` kills one that does not
    second stage   the first stage   its end                             the same `minutes`; then it does not begin
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common import print_figures
from research.kept import Kept, below, condense, told, write
from squelch.cluster.config import RunConfig, load
from squelch.cluster.errors import UserError
from squelch.cluster.sweep.cells import Ended, ProcessRunner, Sweep, prepare
from squelch.cluster.sweep.plan import Arm, Cell, Plan, check_folders, is_finished, make_plan
from squelch.cluster.terminal import say

START_S = 60.0
"""Seconds from the start of a cell's process to its first step, and from its last step to its end."""


class NothingToStart(UserError):
    """A finished run has no checkpoint of the kind that a cell begins with, so that the cell can never run."""


@dataclass(frozen=True)
class Start:
    """The weights with which a cell begins: those of a checkpoint of the finished run of the cell named `cell`.
    `choose`: the step of that checkpoint, from the run's folder; 0 stands for the weights with which that run itself
    began. It raises NothingToStart if the run has no such checkpoint."""

    cell: str
    choose: Callable[[Path], int]

    def settings(self, runs: Path) -> dict[str, Any]:
        """The cell's settings, by dotted key. `runs`: the folder of the study's runs.

        Raises:
            NothingToStart: the run has no such checkpoint.
            UserError: the run has not finished, or the checkpoint is gone.
        """
        folder = runs / self.cell
        if not is_finished(folder):
            raise UserError(f"{folder} is no finished run; run the cell {self.cell} first, with the same --runs-dir")
        step = self.choose(folder)
        if step == 0:
            return {}
        weights = folder / "checkpoints" / f"step-{step}" / "hf"
        if not weights.is_dir():
            raise UserError(f"{weights} does not exist; remove {folder} and run the cell {self.cell} again")
        return {"model.path": str(weights.absolute())}


@dataclass(frozen=True)
class StudyCell:
    """One run of a study. `part`: the group of cells that it belongs to; `settings`: by dotted key, what the arm
    changes of the recipe; `step_s`: expected seconds of a step on two idle cores, validation and scoring included."""

    part: str
    recipe: str
    arm: str
    settings: Mapping[str, Any]
    seed: int
    steps: int
    step_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Settings that measure more and change nothing of what is learned."""
    start: Start | None = None
    """The weights with which it begins; the recipe's if None."""

    @property
    def name(self) -> str:
        """The name of the cell, of its run and of its file."""
        return f"{self.part}-{self.recipe}-{self.arm}_s{self.seed}"

    @property
    def minutes(self) -> float:
        """Expected minutes."""
        return (START_S + self.steps * self.step_s) / 60


class Condense(Protocol):
    """Makes the content of a cell's file of a finished run."""

    def __call__(self, folder: Path, **labels: Any) -> dict[str, Any]:
        """The content, with the labels in it. UserError if the run has not finished."""


@dataclass(frozen=True)
class Study:
    """A study: its name, which is the folder of its runs; the settings of every cell; its cells in order of value; the
    folder of the condensed runs, and how one is condensed."""

    name: str
    common: Sequence[str]
    cells: Sequence[StudyCell]
    results: Path
    condense: Condense = condense

    def file(self, cell: StudyCell) -> Path:
        """The file of a cell that is done."""
        return self.results / f"{cell.name}.json"

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

    def config(self, run: Kept) -> RunConfig:
        """The settings of a condensed run of this study, without what its arm changes."""
        return load(run.recipe, [*self.common, *run.overrides])

    def is_done(self, cell: StudyCell) -> bool:
        """Whether the cell has its file."""
        return self.file(cell).is_file()


def _matches(cell: StudyCell, word: str) -> bool:
    return fnmatch.fnmatchcase(cell.part, word) or fnmatch.fnmatchcase(cell.name, word)


def run_of(study: Study, cell: StudyCell, runs_dir: str, words: Sequence[str] = ()) -> Cell:
    """The validated run of a cell. `words`: further overrides, such as where models are cached.

    Raises:
        UserError: an override is of a setting that the cell fixes, a setting is wrong, or the weights with which the
            cell begins are not there.
    """
    begins = {} if cell.start is None else cell.start.settings(Path(runs_dir) / study.name)
    settings = {**cell.settings, **cell.extra, **begins}
    for word, own in itertools.product(words, ("loop.steps", *settings)):
        if below(own, [word.partition("=")[0]]):
            raise UserError(f"--set {word}: the cell {cell.name} fixes {own}; leave this setting out")
    arm = Arm(f"{cell.part}-{cell.recipe}-{cell.arm}", settings)
    overrides = [f"runs_dir={json.dumps(runs_dir)}", f"loop.steps={cell.steps}", *study.common, *words]
    return make_plan(cell.recipe, overrides, [arm], [cell.seed], name=study.name).cells[0]


class KeepingRunner(ProcessRunner):
    """Runs a cell as its own process, and writes its file once it has finished."""

    def __init__(self, study: Study, cells: Mapping[str, StudyCell], words: Sequence[str]) -> None:
        super().__init__()
        self._study, self._cells, self._words = study, cells, words

    async def run(self, cell: Cell) -> Ended:
        """Runs the cell to its end, as `CellRunner.run`."""
        ended = await super().run(cell)
        if is_finished(cell.folder):
            keep(self._study, self._cells[cell.name], cell.folder, self._words)
        return ended


def keep(study: Study, cell: StudyCell, folder: Path, words: Sequence[str] = ()) -> Path:
    """Condenses the run in `folder` into the cell's file and returns its path. `words`: the run's further overrides."""
    begins = {} if cell.start is None else {"from_step": cell.start.choose(folder.parent / cell.start.cell)}
    labels = {"part": cell.part, "recipe": cell.recipe, "arm": cell.arm, "set": told(words), **begins}
    found = study.condense(folder, **labels)
    return write(study.file(cell), found)


def run(
    study: Study,
    cells: Sequence[StudyCell],
    runs_dir: str,
    minutes: float | None,
    words: Sequence[str],
    parallel: int = 1,
) -> int:
    """Runs the open cells in order, `parallel` at a time, until `minutes` are over; returns the exit code: 0 unless a
    cell failed, or was left out because the run that it begins with is not there.

    Raises:
        UserError: a setting or folder is wrong, or a model cannot be used.
    """
    wanted = [cell for cell in cells if not study.is_done(cell)]
    if not wanted:
        say("every chosen cell is done")
        return 0
    began, code, never = time.monotonic(), 0, set[str]()
    for stage in ([cell for cell in wanted if cell.start is None], [cell for cell in wanted if cell.start]):
        left = None if minutes is None else minutes - (time.monotonic() - began) / 60
        if left is not None and left <= 0:
            break
        runs, refused = _startable(study, stage, runs_dir, words)
        for name, error in refused.items():
            say(f"{name} is left out: {error}")
        lost = {name for name, error in refused.items() if isinstance(error, NothingToStart)}
        never |= lost
        stopped, failed = _run_stage(study, [cell for cell in stage if cell.name in runs], runs, left, words, parallel)
        code = max(code, int(failed or len(refused) > len(lost)))
        if stopped:
            break
    open_minutes = sum(cell.minutes for cell in cells if not study.is_done(cell) and cell.name not in never)
    say(f"open: about {open_minutes:.0f} minutes of the chosen cells; the same command goes on")
    return code


def _startable(
    study: Study, cells: Iterable[StudyCell], runs_dir: str, words: Sequence[str]
) -> tuple[dict[str, Cell], dict[str, UserError]]:
    """By name, the runs of the cells, and why others lack the weights with which they begin."""
    runs, refused = dict[str, Cell](), dict[str, UserError]()
    for cell in cells:
        try:
            runs[cell.name] = run_of(study, cell, runs_dir, words)
        except UserError as error:
            if cell.start is None:
                raise
            refused[cell.name] = error
    return runs, refused


def _run_stage(
    study: Study,
    cells: Sequence[StudyCell],
    runs: Mapping[str, Cell],
    minutes: float | None,
    words: Sequence[str],
    parallel: int,
) -> tuple[bool, bool]:
    """Runs cells that wait for no other, whose runs are `runs`; whether it was stopped, and whether a cell failed."""
    if not cells:
        return False, False
    planned = [runs[cell.name] for cell in cells]
    plan = Plan(study.name, study.name, list(study.common), [], planned, planned[0].folder.parent)
    check_folders(plan)
    for cell in cells:
        if is_finished(runs[cell.name].folder):
            keep(study, cell, runs[cell.name].folder, words)
    runner = KeepingRunner(study, {cell.name: cell for cell in cells}, words)
    sweep = Sweep(plan, runner, parallel, say)
    prepare([cell.config for cell in sweep.open_cells], parallel, say)
    asyncio.run(_within(sweep, minutes))
    failed = [cell.name for cell in plan.cells if sweep.outcomes[cell.name].status == "failed"]
    for name in failed:
        say(f"{name}: {sweep.outcomes[name].reason}")
    return bool(sweep.stopped_by), bool(failed)


async def _within(sweep: Sweep, minutes: float | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, sweep.stop, number)
    if minutes is not None:
        loop.call_later(60 * minutes, sweep.stop, signal.SIGALRM)
    await sweep.run()


@dataclass(frozen=True)
class Report:
    """What a study says of its committed files. `figures`: for `--json`; `page`: the text of its page, if it has
    one."""

    figures: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    page: str = ""


def command(
    words: str | None,
    find: Callable[[], Study],
    judge: Callable[[bool], Report],
    argv: Sequence[str] | None,
    *,
    quick: str = "judge the committed files, as without it",
    page: Path | None = None,
) -> int:
    """The command of a study: runs its cells, lists them, or judges the committed files; returns the exit code.
    `words`: its description; `find`: the study; `judge`: the report, which may be cheaper with `--quick`; `page`: where
    `--write` puts the report's page. Ends with exit code 2 if a flag, setting, folder or file is wrong."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the cells and their expected minutes")
    form.add_argument("--run", action="store_true", help="run the cells that are not done")
    form.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="list, run: these parts or cells")
    parser.add_argument("--minutes", type=float, metavar="N", help="run: minutes of running; models are built before")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="run: cells at the same time")
    parser.add_argument("--runs-dir", default="runs", help="run: folder of the study's runs")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="run: further settings")
    parser.add_argument("--json", action="store_true", help="judge: one JSON object instead of the table")
    if page is not None:
        parser.add_argument("--write", action="store_true", help=f"judge: write docs/{page.name}")
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
    if page is not None and chosen.write and report.page:
        page.write_text(report.page)
    print_figures(report.figures, chosen.json, report.columns, report.rows, report.notes)
    return 0


def _idle(chosen: argparse.Namespace) -> tuple[str, str] | None:
    """A flag that was given and has no effect, and where; None without one."""
    run = {"--minutes": chosen.minutes, "--parallel": chosen.parallel > 1, "--set": chosen.set}
    judge = {"--json": chosen.json, "--write": getattr(chosen, "write", False)}
    if not chosen.run and (given := [flag for flag, value in run.items() if value]):
        return given[0], "without --run"
    if chosen.run and (given := [flag for flag, value in judge.items() if value]):
        return given[0], "with --run"
    if chosen.list and judge["--write"]:
        return "--write", "with --list"
    if chosen.only and not (chosen.run or chosen.list):
        return "--only", "without --run or --list, since all committed files are judged together"
    return None


COLUMNS = ("cell", "steps", "minutes", "sum", "state")


def _list(study: Study, cells: Sequence[StudyCell]) -> Report:
    rows = listed(study, cells)
    return Report({"cells": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}, COLUMNS, rows)


def listed(study: Study, cells: Iterable[StudyCell]) -> list[list[Any]]:
    """A row for each cell: name, steps, expected minutes, their sum up to it, and whether it is done."""
    rows, total = [], 0.0
    for cell in cells:
        total += cell.minutes
        state = "done" if study.is_done(cell) else "open"
        rows.append([cell.name, cell.steps, f"{cell.minutes:.1f}", f"{total / 60:.1f} h", state])
    return rows
