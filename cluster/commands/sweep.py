"""`squelch sweep`: runs a recipe over settings and seeds and prints one table at the end (docs/guide/sweep.md).

`cluster.sweep.plan` defines the cells, `cluster.sweep.cells` runs them, and `cluster.sweep.table` makes the table.
"""

from __future__ import annotations

import argparse

from squelch.cluster.commands.arguments import add_recipe
from squelch.cluster.errors import UserError

HELP = """\
Runs a recipe once for every combination of the grid and every seed. Each cell is a normal run in runs/NAME/CELL with
its own config.yaml; its output is in CELL/train.log, and `squelch watch` shows it live. The same command again
continues the sweep: it keeps finished cells and resumes the others from their checkpoints. A seed sets `seed` and
shifts the task seeds, so that cells of one seed play the same tasks in every arm. At the end the command prints one
table with means and 95% t-intervals over seeds, and writes runs/NAME/sweep.json."""

EPILOG = """\
examples:
  squelch sweep frozenlake --seeds 0,1,2 --grid filter.rule=none,top_p,top_k
  squelch sweep sokoban --seeds 0,1,2 --grid filter.rule=none,top_p --grid filter.include_zero=true,false
  squelch sweep frozenlake --seeds 0,1 --parallel 2 --address auto

Exit codes: 0 all cells finished, 1 some did not (the table says which), 2 bad input, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description, parser.epilog = HELP, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_recipe(parser, "overrides for every cell, e.g. filter.rho=0.5")
    parser.add_argument("--seeds", default="0", metavar="0,1,2", help="seeds; each arm runs once per seed (default: 0)")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="key=a,b",
        help="values of one setting; may be repeated",
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="cells that run at once (default: 1)")
    parser.add_argument(
        "--address", default="", help="Ray cluster for all cells (host:port or auto); default: each cell starts one"
    )
    parser.add_argument(
        "--name", default="", help="folder of the sweep under runs_dir (default: the recipe's name with -sweep)"
    )
    parser.add_argument("--json", action="store_true", help="print sweep.json to stdout and progress to stderr")


def run(options: argparse.Namespace) -> int:
    """Plans the cells, runs them, prints the table."""
    from squelch.cluster.sweep.cells import execute
    from squelch.cluster.sweep.plan import grid_arms, make_plan, read_grid, read_seeds

    if options.parallel < 1:
        raise UserError(f"--parallel {options.parallel}: must be at least 1")
    plan = make_plan(
        options.recipe,
        options.overrides,
        grid_arms(read_grid(options.grid)),
        read_seeds(options.seeds),
        name=options.name,
        address=options.address,
        parallel=options.parallel,
    )
    return execute(plan, options.parallel, as_json=options.json)
