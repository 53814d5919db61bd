"""Measures how long a step is held by a checkpoint that is written beside the next step's play.

    python -m benchmarks.checkpoints [--steps N] [--quick] [--json]

Generation, training, the write and the disk are sleeps (`tests.stand_ins.paced`); coordinator, fleet, filter and
archive are the real ones. A checkpoint follows every second step. "written" is what a checkpoint takes, which a loop
that waits for it would be held, and "held" what this loop waits for it. The write is shorter and longer than a play of
the next step; with `loop.max_staleness` 1 that play is partly over when the write begins. On a slow disk most of the
time passes after the files are complete. `benchmarks.learner` has the seconds of a real checkpoint's parts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import parser_of, print_metrics
from benchmarks.overlap import measured, run, settings
from squelch.cluster.loop.learner_client import learning
from squelch.learner.checkpoint.seal import seal
from tests.stand_ins.paced import PacedActors, Times

CASES = {
    "S=0, short": (0, 0.3, 0.0),
    "S=0, long": (0, 1.5, 0.0),
    "S=0, slow disk": (0, 0.3, 1.2),
    "S=1, short": (1, 0.3, 0.0),
    "S=1, long": (1, 1.5, 0.0),
    "S=1, slow disk": (1, 0.3, 1.2),
}
"""`loop.max_staleness`, and seconds of a write and of its disk; a play takes 1 s and an update 0.8."""
EVERY = ("loop.checkpoint_every=2",)


def measure(bound: int, save_s: float, disk_s: float, steps: int, folder: Path) -> dict[str, float]:
    """Mean seconds of one run's steps: of the write, what the loop waited of it, and of the step."""
    config = settings(bound, steps, folder, EVERY)

    def slowly(path: Path) -> None:
        time.sleep(disk_s)
        seal(path)

    learning.seal = slowly
    asyncio.run(run(config, PacedActors(config, Times(1.0, 0.8, 0.1, 0.05, save_s))))
    lines = measured(config)
    keys = {"written": "seconds/checkpoint_write", "held": "seconds/checkpoint", "step": "seconds/step"}
    found = {name: [line[key] for line in lines if key in line] for name, key in keys.items()}
    return {"written": float(np.mean(found["written"])), "held": sum(found["held"]) / len(found["written"])} | {
        "step": float(np.mean(found["step"]))
    }


def main() -> int:
    """Prints the table."""
    parser = parser_of(__doc__, "7 steps a case")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    steps = 7 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as name:
        found = {
            case: measure(*own, steps, Path(name) / str(number)) for number, (case, own) in enumerate(CASES.items())
        }
    rows = [[case, own["written"], own["held"], own["step"]] for case, own in found.items()]
    columns = ("case", "written", "held", "seconds a step")
    print_metrics(found, options.json, columns, rows, [f"mean seconds; {steps} steps a case, both ends not measured"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
