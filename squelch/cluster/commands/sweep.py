"""`squelch sweep`: runs a recipe over settings and seeds and prints one table at the end (docs/guide/sweep.md).

`cluster.sweep.plan` defines the cells, `cluster.sweep.file` reads sweeps over several recipes, `cluster.sweep.cells`
runs the cells, and `cluster.sweep.table` makes the tables.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import aligned, say

if TYPE_CHECKING:
    from squelch.cluster.sweep.plan import Plan


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
