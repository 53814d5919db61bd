"""The fault study: random faults thrown at real runs on two hosts of this machine, and what became of every ticket.

python -m benchmarks.faults --out FOLDER [--boots 10] [--faults 10] [--seed 0] [--model FOLDER]
python -m benchmarks.faults --report FOLDER [--json]
python -m benchmarks.faults --quick [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.faults.cell import run_cell
from benchmarks.faults.plan import cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"))
    parser.add_argument("--boots", type=int, default=10)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="tiny")
    chosen = parser.parse_args()
    for boot, faults in enumerate(cells(chosen.seed, chosen.boots, chosen.faults)):
        done = chosen.out / f"cell-{boot:02d}.json"
        if done.exists():
            continue
        folder = chosen.out / f"cell-{boot:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        found = run_cell(faults, chosen.model, folder.resolve())
        done.write_text(json.dumps(found, indent=1))
        print(json.dumps(found, indent=1))
    return 0


sys.exit(main())
