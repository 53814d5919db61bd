"""The fault study: random faults thrown at real runs, what became of every ticket, and how soon each fault was noticed.

python -m benchmarks.faults --out FOLDER [--boots 10] [--faults 10] [--seed 0] [--minutes 60] [--once] [--model FOLDER]
python -m benchmarks.faults [--report FOLDER [--keep]] [--json]
python -m benchmarks.faults --quick [--json]
python -m benchmarks.faults --soak FOLDER [--seeds 0,1,2]

A boot is two hosts in network namespaces of this machine (root, iproute2) and a run on them. The faults are drawn from
the seed before the first boot (`tests.e2e.faults.plan`), ten a cell; FOLDER/cell-SEED-NN.json gets the result of
a boot when it ends. A boot ends after its cell's last fault or after `--minutes`. The same command goes on where it was
interrupted, with the faults that no boot has injected; `--once` stops after one boot. Without `--out` the boots that
were committed (benchmarks/faults/results.parquet) are reported, `--quick` alike, or those in the FOLDER of `--report`,
which `--keep` adds to the committed ones.

`--soak` trains the demo on each seed twice, once with a fault every fifth step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, print_metrics
from benchmarks.faults.report import COLUMNS, keep, read_boots, rows, summary
from tests.e2e.faults.plan import cells

COMMITTED = Path(__file__).parent / "results.parquet"


def main() -> int:
    """Runs what the flags ask for; returns the exit code."""
    chosen = _arguments()
    if chosen.out is not None:
        _study(chosen)
    if chosen.soak is not None:
        from benchmarks.faults.soak import soak

        return soak(chosen.soak, [int(seed) for seed in chosen.seeds.split(",")])
    found = read_boots(chosen.out or chosen.report)
    if chosen.keep:
        keep(found, COMMITTED)
    print_metrics(summary(found), chosen.json, COLUMNS, rows(found), [])
    return 0


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "reports on the committed cells; nothing is run")
    parser.add_argument("--out", type=Path, help="runs the study; folder of its cells")
    parser.add_argument("--boots", type=int, default=10, help="number of cells")
    parser.add_argument("--faults", type=int, default=10, help="faults a cell")
    parser.add_argument("--minutes", type=float, default=60.0, help="no fault is injected later in a boot")
    parser.add_argument("--once", action="store_true", help="one boot only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="tiny", help="folder of the policy; by default the demo's is warmed up")
    parser.add_argument("--report", type=Path, default=COMMITTED, metavar="FOLDER", help="folder of cells")
    parser.add_argument("--keep", action="store_true", help="add the reported cells to the committed ones")
    parser.add_argument("--soak", type=Path, help="runs the soak in this folder")
    parser.add_argument("--seeds", default="0,1,2")
    return parser.parse_args()


def _study(chosen: argparse.Namespace) -> None:
    """Boots until every fault was injected, or once with `--once`."""
    from tests.e2e.faults.cell import run_boot  # imports the tests' hosts, which the report does not need

    for cell, faults in enumerate(cells(chosen.seed, chosen.boots, chosen.faults)):
        folder = chosen.out / f"cell-{chosen.seed}-{cell:02d}"
        file = folder.with_suffix(".json")
        boots: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
        while left := faults[sum(len(boot["faults"]) for boot in boots) :]:
            folder.mkdir(parents=True, exist_ok=True)
            boots.append(run_boot(left, chosen.model, folder.resolve(), chosen.minutes))
            text = json.dumps(boots, indent=1)
            file.write_text(text.replace(str(folder.resolve()), "CELL") + "\n")
            if chosen.once:
                return


if __name__ == "__main__":
    sys.exit(main())
