"""`squelch sweep`: runs a recipe over settings and seeds and prints one table at the end (docs/guide/sweep.md).

`cluster.sweep.plan` defines the cells, `cluster.sweep.file` reads sweeps over several recipes, `cluster.sweep.cells`
runs the cells, and `cluster.sweep.table` makes the tables.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from squelch.cluster.commands.arguments import add_recipe
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import aligned, say

if TYPE_CHECKING:
    from squelch.cluster.sweep.plan import Plan

HELP = """\
Runs a recipe once for every combination of the grid and every seed. Each cell is a normal run in runs/NAME/CELL with
its own config.yaml; its output is in CELL/train.log, and `squelch watch` shows it live. The same command again
continues the sweep: it keeps finished cells and resumes the others from their checkpoints. A seed sets `seed` and
shifts the task seeds, so that cells of one seed play the same tasks in every arm. At the end the command prints one
table with means and 95% t-intervals over seeds, one with the columns of the paper's Tables 4 and 5, and writes
runs/NAME/sweep.json. RECIPE may be a sweep file, which has arms of several recipes; `table-4` is the paper's."""

EPILOG = """\
examples:
  squelch sweep frozenlake --seeds 0,1,2 --grid filter.rule=none,top_p,top_k
  squelch sweep sokoban --seeds 0,1,2 --grid filter.rule=none,top_p --grid filter.include_zero=true,false
  squelch sweep frozenlake --seeds 0,1 --parallel 2 --address auto
  squelch sweep table-4 --dry-run

Exit codes: 0 all cells finished, 1 some did not (the table says which), 2 bad input, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description, parser.epilog = HELP, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_recipe(parser, "overrides for every cell, e.g. filter.rho=0.5")
    parser.add_argument("--seeds", default="0", metavar="0,1,2", help="seeds; each arm runs once per seed (default: 0)")
    parser.add_argument(
        "--grid", action="append", default=[], metavar="key=a,b", help="values of one setting; may be repeated"
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="cells that run at once (default: 1)")
    parser.add_argument(
        "--address", default="", help="Ray cluster for all cells (host:port or auto); default: each cell starts one"
    )
    parser.add_argument(
        "--name", default="", help="folder of the sweep under runs_dir (default: the recipe's name with -sweep)"
    )
    parser.add_argument("--dry-run", action="store_true", help="check and list the cells; download and run none")
    parser.add_argument("--json", action="store_true", help="print sweep.json to stdout and progress to stderr")


def run(options: argparse.Namespace) -> int:
    """Plans the cells, runs them, prints the tables."""
    from squelch.cluster.sweep.cells import execute

    if options.parallel < 1:
        raise UserError(f"--parallel {options.parallel}: must be at least 1")
    plan = _planned(options)
    if options.dry_run:
        say("\n".join(listing(plan)))
        return 0
    return execute(plan, options.parallel, as_json=options.json)


def _planned(options: argparse.Namespace) -> Plan:
    from squelch.cluster.sweep.file import read_sweep
    from squelch.cluster.sweep.plan import grid_arms, make_plan, read_grid, read_seeds

    file, overrides, name = read_sweep(options.recipe), options.overrides, options.name
    if file is None:
        arms = grid_arms(read_grid(options.grid))
    elif options.grid:
        raise UserError(f"--grid: {options.recipe} is a sweep file, whose rows and axes are the grid; leave --grid out")
    else:
        arms, overrides, name = file.arms, [*file.overrides, *overrides], name or file.name
    return make_plan(
        options.recipe,
        overrides,
        arms,
        read_seeds(options.seeds),
        name=name,
        address=options.address,
        parallel=options.parallel,
        download=not options.dry_run,
    )


def listing(plan: Plan) -> list[str]:
    """The cells of a sweep, with the recipe and the hardware of each, and the published data that are not here."""
    rows = [["cell", "recipe", "hardware"]]
    rows += [[c.name, c.arm.recipe or plan.recipe, c.arm.hardware] for c in plan.cells]
    lacking = Counter(dataset for cell in plan.cells for dataset in cell.lacking)
    notes = [
        f"{number} cells need the data set {dataset} of the Hugging Face hub, which is not in the local cache. The "
        f"sweep downloads it before its first cell; to do so now: hf download {dataset} --repo-type dataset"
        for dataset, number in sorted(lacking.items())
    ]
    return [*aligned(rows), *notes, f"{len(plan.cells)} cells, {len(plan.arms)} arms, in {plan.folder}"]
