"""The plan of a sweep: arms x seeds, where each cell is a complete configuration. Pure; reads only recipes and the
files of finished cells.

Invariants:

- Every cell is validated before the first cell starts; the error names the cell.
- A cell's name, hence its folder, depends only on its own settings and seed, so that a sweep with more values or seeds
  reuses the cells of an earlier sweep.
- Cells of one seed play the same training and validation tasks in every arm (paired); other seeds play other tasks.
- A cell that started with other settings is refused, not continued; only its placement (`cluster`, `recorder`) may
  change.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squelch.actors.scorer.share import as_chosen
from squelch.cluster.config import Make, RunConfig, changes, load
from squelch.cluster.first_task import MadeOfCache, made
from squelch.cluster.kept_secrets import without_secrets
from squelch.cluster.runs.ending import is_complete
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.setting_keys import below, flat, read_yaml, unplaced
from squelch.envs.mixture import Mixture
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import brief, state

SEED_STRIDE = 1_000_003
"""Distance between the task seeds of neighbouring seeds; a prime, so that they differ in data sets of any size too."""
OWN_KEYS = ("seed", "name")
"""Keys that the sweep sets; they are refused as overrides and in the grid."""
NO_GRID = (
    *OWN_KEYS,
    "runs_dir",
    "store",
    "upload",
    "environment.train_seed",
    "environment.validation_seed",
    "cluster",
    "recorder",
)
"""Keys that a grid must not vary: they define the location of a run, or would break the pairing."""
LIST = "environments"
PLACEMENT = ("runs_dir", "name", "store", "upload", "cluster", "recorder")
LONGEST_NAME = 100
MAX_CELLS = 1000


@dataclass(frozen=True)
class Arm:
    """One combination of settings: its label (folder-safe) and the dotted settings that make it; its recipe, if that is
    not the sweep's, and the hardware that a sweep file names."""

    label: str
    settings: Mapping[str, Any]
    recipe: str = ""
    hardware: str = ""

    @property
    def overrides(self) -> list[str]:
        """The settings as overrides for `load`; values are JSON, which is valid YAML."""
        return [f"{key}={json.dumps(value, default=str)}" for key, value in self.settings.items()]

    def over(self, overrides: Sequence[str]) -> list[str]:
        """The sweep's overrides and these. A whole list of environments takes the place of the recipe's environment,
        but not of one that the overrides name."""
        return [*(["environment=null"] if LIST in self.settings else []), *overrides, *self.overrides]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. `lacking`: the data sets of the hub that a dry run did not find in the local cache."""

    arm: Arm
    seed: int
    config: RunConfig
    lacking: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the cell's run."""
        return self.config.name

    @property
    def folder(self) -> Path:
        """The folder of the cell's run."""
        return self.config.run_dir


@dataclass(frozen=True)
class Plan:
    """A sweep before it runs. `cells` are ordered by seed, so that an unfinished sweep already compares all arms."""

    name: str
    recipe: str
    overrides: list[str]
    arms: list[Arm]
    cells: list[Cell]
    folder: Path


def read_seeds(text: str) -> list[int]:
    """`0,1,2` -> [0, 1, 2]; UserError unless the text lists distinct whole numbers of 0 or more."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,18}", word) for word in words):
        raise UserError(
            f"--seeds {brief(text)}: give whole numbers of 0 or more and at most 18 digits, e.g. --seeds 0,1,2"
        )
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text!r}: a seed occurs twice")
    return seeds


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`key=a,b` words -> the values of each key. A value may itself be a list: `filter.band=[0,0.5],[0.5,1]`."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        if not text.isascii() and text != text.encode(errors="replace").decode():
            raise UserError(f"--grid {brief(text)} is no UTF-8 text")
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise UserError(f"--grid {brief(text)} is not of the form key=a,b, e.g. --grid filter.rule=none,top_p")
        if key in grid:
            raise UserError(f"--grid {brief(key)} is given twice; list its values in one, e.g. key=a,b")
        grid[key] = _values(text, values)
    return grid


def _values(text: str, values: str) -> list[Any]:
    found = read_yaml(f"[{values}]", f"--grid {brief(text)}")
    if not isinstance(found, list):
        raise UserError(f"--grid {brief(text)}: the form is key=a,b")
    if not found or any(value is None and "null" not in values for value in found):
        raise UserError(f"--grid {brief(text)}: a value is missing; the form is key=a,b")
    if len({json.dumps(value) for value in found}) < len(found):
        raise UserError(f"--grid {brief(text)}: a value occurs twice")
    return found


def grid_arms(grid: Mapping[str, Sequence[Any]]) -> list[Arm]:
    """Every combination of the grid's values; the last key varies fastest. An empty grid gives one arm, `base`.

    Raises:
        UserError: there are more than `MAX_CELLS` combinations.
    """
    _bound_cells(math.prod(len(values) for values in grid.values()))
    arms = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        words = [f"{_short(key, grid)}-{_word(value)}" for key, value in settings.items()]
        arms.append(Arm(safe_name("_".join(words) or "base"), settings))
    return arms


def _short(key: str, keys: Mapping[str, Any]) -> str:
    leaf = key.rpartition(".")[2]
    return leaf if sum(other.rpartition(".")[2] == leaf for other in keys) == 1 else key


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def safe_name(label: str) -> str:
    """The label as a folder name. If it had to be changed or cut, a digest keeps it distinct."""
    clean = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip(".-")
    if clean == label and len(clean) <= LONGEST_NAME:
        return clean
    return f"{clean[:LONGEST_NAME]}-{hashlib.blake2b(label.encode(), digest_size=4).hexdigest()}"


def make_plan(
    recipe: str,
    overrides: Sequence[str],
    arms: Sequence[Arm],
    seeds: Sequence[int] | Mapping[str, Sequence[int]],
    *,
    name: str = "",
    address: str = "",
    parallel: int = 1,
    download: bool = True,
) -> Plan:
    """The plan of a sweep; every cell is validated.

    Args:
        recipe: the recipe of the arms that name none.
        seeds: the seeds of every arm, or of each arm by its label.
        name: the sweep's name, and its folder under `runs_dir`. If empty, the recipe's name and `-sweep`.
        parallel: number of cells that run at once; with more than one, metrics endpoints take free ports.
        download: whether published data are downloaded; else a cell lists those that it lacks, and its environment,
            which could not be made, is unchecked.

    Raises:
        UserError: a key or value is wrong; the text names the cell.
    """
    _refuse_own_keys(overrides, arms)
    _bound_cells(sum(map(len, seeds.values())) if isinstance(seeds, Mapping) else len(seeds) * len(arms))
    make = made if download else MadeOfCache()
    of = {arm.label: arm.recipe or recipe for arm in arms}
    bases = {own: load(own, list(overrides), make) for own in dict.fromkeys(of.values())}
    base = next(iter(bases.values()))
    if base.store:
        raise UserError(
            f"store={base.store}: the cells of a sweep are continued on the host that ran them; leave store out, and "
            "copy the sweep's folder when it has ended"
        )
    name = name or f"{base.name}-sweep"
    if safe_name(name) != name:
        raise UserError(f"--name {name!r}: give letters, digits, . _ + or -; it is a folder's name")
    by_arm = seeds if isinstance(seeds, Mapping) else {arm.label: seeds for arm in arms}
    placed = [f"cluster.address={json.dumps(address)}"] if address else []
    placed += ["recorder.port=0"] if parallel > 1 else []
    folder = Path(base.runs_dir) / name
    every_seed = list(dict.fromkeys(seed for arm in arms for seed in by_arm[arm.label]))
    mixtures = {arm.label: _mixture(of[arm.label], overrides, arm, bases[of[arm.label]], make) for arm in arms}
    cells = [
        _cell(of[arm.label], [*arm.over(overrides), *placed], arm, seed, mixtures[arm.label], folder, download)
        for seed in every_seed
        for arm in arms
        if seed in by_arm[arm.label]
    ]
    return Plan(name, recipe, list(overrides), list(arms), cells, folder)


def _bound_cells(number: int) -> None:
    if number > MAX_CELLS:
        raise UserError(f"the sweep has {number} cells; at most {MAX_CELLS} are planned at once, because each is a run")


def _refuse_own_keys(overrides: Sequence[str], arms: Sequence[Arm]) -> None:
    remedy = {"seed": "use --seeds", "name": "use --name"}
    for override in overrides:
        if (key := override.partition("=")[0]) in OWN_KEYS:
            raise UserError(f"override {override!r}: a sweep sets {key} itself; {remedy[key]}")
    for key in dict.fromkeys(key for arm in arms for key in arm.settings):
        if below(unplaced(key), NO_GRID):
            raise UserError(
                f"--grid {key}: the sweep sets this key itself, or it only says where a run is stored; vary another key"
            )
    listed = [entry for arm in arms for entry in arm.settings.get(LIST) or () if isinstance(entry, dict)]
    for name in dict.fromkeys(name for entry in listed for name in entry if f"environment.{name}" in NO_GRID):
        raise UserError(f"--grid {LIST}: the sweep sets {name} itself; leave it out of the lists")
    for arm in arms:
        if sum(arm.label == other.label for other in arms) > 1:
            raise UserError(f"two arms of the sweep would have the same folder, {arm.label}; give other values")


def _mixture(recipe: str, overrides: Sequence[str], arm: Arm, base: RunConfig, make: Make) -> Mixture:
    """The environments of an arm's cells, whose task seeds are shifted."""
    if LIST not in arm.settings:
        return base.mixture
    try:
        return load(recipe, arm.over(overrides), make).mixture
    except UserError as error:
        raise UserError(f"cells {arm.label} ({' '.join(arm.overrides)}): {error}") from error


def _cell(
    recipe: str, overrides: list[str], arm: Arm, seed: int, mixture: Mixture, folder: Path, download: bool
) -> Cell:
    shift = SEED_STRIDE * seed
    own = [
        f"seed={seed}",
        *(
            f"{entry.key}.{name}={first + shift}"
            for entry in mixture.entries
            for name, first in (
                ("train_seed", entry.environment.train_seed),
                ("validation_seed", entry.environment.validation_seed),
            )
        ),
        f"runs_dir={json.dumps(str(folder))}",
        f"name={json.dumps(f'{arm.label}_s{seed}')}",
    ]
    cached = MadeOfCache()
    try:
        config = load(recipe, [*overrides, *own], made if download else cached)
        return Cell(arm, seed, config, frozenset(cached.lacking))
    except UserError as error:
        where = " ".join(arm.overrides) or f"seed {seed}"
        raise UserError(f"cell {arm.label}_s{seed} ({where}): {error}") from error


def check_folders(plan: Plan) -> None:
    """Raises UserError if the sweep's folder is a run, or if a cell started with other settings; the text names it."""
    if _holds_run(plan.folder):
        raise UserError(f"{plan.folder} holds a run, not a sweep; choose another folder with --name NAME")
    for cell in plan.cells:
        if _holds_run(cell.folder) and (different := _different(cell)):
            raise UserError(
                f"{cell.folder} was started with other settings ({'; '.join(different)}). Give another --name, or "
                f"remove {cell.folder} to run this cell again from the start."
            )


def _holds_run(folder: Path) -> bool:
    with bad_files_are_the_users():
        return state(folder / "config.yaml") is not None


def started(cell: Cell) -> RunConfig:
    """The cell's configuration; of a cell that has started, with what `scorer.share` and an automatic token budget
    became at its start, and the day that its prompts name."""
    return _continued(cell, RunFolder(cell.folder).config()) if _holds_run(cell.folder) else cell.config


def _continued(cell: Cell, before: RunConfig) -> RunConfig:
    scorer, model = cell.config.scorer, cell.config.model
    chosen = as_chosen(scorer, before.scorer) if scorer.every is None else scorer
    dated = model.model_copy(update={"date": model.date or before.model.date})
    learner = cell.config.learner
    if learner.token_budget == "auto":
        learner = learner.model_copy(update={"token_budget": before.learner.token_budget})
    return cell.config.model_copy(update={"scorer": chosen, "model": dated, "learner": learner})


def _different(cell: Cell) -> list[str]:
    before = RunFolder(cell.folder).config()
    found = changes(flat(without_secrets(before.model_dump(mode="json"))), _continued(cell, before))
    return [change for change in found if change.split(":")[0].split(".")[0] not in PLACEMENT]


def is_finished(run_dir: Path) -> bool:
    """Whether the run of a cell is complete, so that it is not started again. UserError if its summary is damaged."""
    return is_complete(RunFolder(run_dir).summary())
