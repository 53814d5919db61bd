"""Sweep files: the arms of a sweep over several recipes. Pure.

    name: table-4                   # the sweep's folder
    overrides: [preset=published]   # of every cell
    axes:                           # every row is run with each combination of one choice of each axis
    - sokoban: {environment.name: Sokoban}
      countdown: {environment.name: Countdown}
    rows:
      ppo-3b: {recipe: qwen2.5-3b, hardware: 4 GPUs of 80 GiB, settings: {learner.algorithm: ppo}}

Rows vary slowest, the last axis fastest. An arm is named after its row and its choices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from squelch.cluster.config import RECIPES, read_settings, recipe_names
from squelch.cluster.sweep.plan import Arm, safe_name
from squelch.kit.base.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.kit.untrusted.files import brief, is_file, read_bytes, state

SWEEPS = RECIPES / "sweeps"
MAX_FILE = 2**20
Settings = dict[str, Any]


class SweepRow(BaseModel):
    """One row: a recipe, the hardware that `squelch plan` says it needs, and its settings by dotted key."""

    model_config = ConfigDict(extra="forbid")
    recipe: str
    hardware: str = ""
    settings: Settings = {}


class SweepFile(BaseModel):
    """The content of a sweep file."""

    model_config = ConfigDict(extra="forbid")
    name: str
    overrides: list[str] = []
    axes: list[Annotated[dict[str, Settings], Field(min_length=1)]] = []
    rows: Annotated[dict[str, SweepRow], Field(min_length=1)]


@dataclass(frozen=True)
class SweepOfFile:
    """A sweep file's arms."""

    name: str
    overrides: list[str]
    arms: list[Arm]


def sweep_names() -> list[str]:
    """Names of the sweep files that ship with Squelch."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def read_sweep(name: str) -> SweepOfFile | None:
    """The sweep file of a shipped name or a path; None if it is a recipe. UserError if it is bad, or neither."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else SWEEPS / f"{name}.yaml"
    with bad_files_are_the_users():
        if not is_file(path):
            _require_recipe(name)
            return None
        tree = read_settings(read_bytes(path, MAX_FILE), str(path))
    if "rows" not in tree:
        return None
    try:
        file = SweepFile.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {place}: {first['msg']} (got {brief(first['input'])})") from error
    return _arms_of(file, path)


def _require_recipe(name: str) -> None:
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if state(path) is None:
        recipes, sweeps = recipe_names(), sweep_names()
        raise UserError(
            f"no recipe or sweep file {brief(name)}. {did_you_mean(name, [*sweeps, *recipes])}Shipped sweep files: "
            f"{', '.join(sweeps)}; shipped recipes: {', '.join(recipes)}; or give a path that ends in .yaml."
        )


def _arms_of(file: SweepFile, path: Path) -> SweepOfFile:
    arms = []
    for label, row in file.rows.items():
        for chosen in itertools.product(*(axis.items() for axis in file.axes)):
            settings = dict(row.settings)
            for word, more in chosen:
                if again := settings.keys() & more.keys():
                    raise UserError(f"{path}: {label} sets {sorted(again)[0]} twice, also by {word}; leave one out")
                settings |= more
            name = safe_name("_".join([label, *(word for word, _ in chosen)]))
            arms.append(Arm(name, settings, row.recipe, row.hardware))
    return SweepOfFile(file.name, file.overrides, arms)
