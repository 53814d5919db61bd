"""Cells of a study: training runs that `squelch sweep` runs and continues, condensed into the study's table once they
have ended (`research.tables`). A cell that is in the table is done, also where its run no longer exists.

All cells of a study are run at one commit of the product, which the table records: their runs lie in a folder with its
name. A cell under way at a signal saves a checkpoint, from which the next call continues it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research import tables
from squelch.cluster.sweep.cells import execute
from squelch.cluster.sweep.plan import Arm, Plan, make_plan
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import checkout

CODE = ("squelch", ":!squelch/deploy", ":!squelch/kit/findings", "pyproject.toml")
"""What a run executes, in the repository: other files may change while a study runs, its own table first of all. The
findings only say what they see, unless a run pauses for them."""
ENDED_BY_SIGNAL = 128
"""The exit code of a sweep that a signal ended is this and the signal's number."""


@dataclass(frozen=True, eq=False)
class StudyCell:
    """One run of a study. `part`: the group of cells that it belongs to; `settings`: by dotted key, what the arm
    changes of the recipe."""

    part: str
    recipe: str
    arm: str
    settings: Mapping[str, Any]
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """The name of the cell and of its run."""
        return f"{self.part}-{self.recipe}-{self.arm}_s{self.seed}"


@dataclass(frozen=True)
class Study:
    """A study: its name; the settings of every cell; its cells in order of value; the table of the runs that are done,
    or its folder. `condense`: what is kept of a run; `complete`: whether a run has nothing left to do."""

    name: str
    common: Sequence[str]
    cells: Sequence[StudyCell]
    results: Path
    condense: Callable[..., dict[str, Any]]
    complete: Callable[[Path], bool]


def plan_of(study: Study, cell: StudyCell, runs_dir: str) -> Plan:
    """The validated run of a cell, alone. UserError if a setting is wrong."""
    arm = Arm(f"{cell.part}-{cell.recipe}-{cell.arm}", cell.settings)
    overrides = [f"runs_dir={runs_dir}", f"loop.steps={cell.steps}", *study.common]
    return make_plan(cell.recipe, overrides, [arm], [cell.seed], name=study.name)


def run(study: Study, names: Sequence[str], runs_dir: Path) -> int:
    """Runs the open ones of these cells in order, until a signal comes; returns the exit code: 1 if one has not ended.

    Raises:
        UserError: a setting or folder is wrong, a model cannot be used, the study's runs are of another commit, or the
            code changes meanwhile.
    """
    kept, commit = tables.read(study.results), code_commit()
    tables.of_one_commit(study.results, [commit, *(one.get("commit") for one in kept)])
    done = {one["name"] for one in kept}
    plans = {cell: plan_of(study, cell, str(runs_dir / commit)) for cell in study.cells if cell.name in {*names} - done}
    for cell, plan in plans.items():
        folder = plan.cells[0].folder
        code = 0 if study.complete(folder) else execute(plan, 1)
        tables.of_one_commit(study.results, [commit, code_commit()])
        if study.complete(folder):
            labels = {"part": cell.part, "recipe": cell.recipe, "arm": cell.arm}
            own = {"commit": commit, "changed": plan.arms[0].overrides}
            tables.add(study.results, [study.condense(folder, **labels) | own])
            done.add(cell.name)
        if code > ENDED_BY_SIGNAL:
            return code
    return int(not done.issuperset(cell.name for cell in plans))


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
