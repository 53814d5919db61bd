"""Compares the demo's training step in this checkout with another checkout, in alternating blocks.

    python -m benchmarks.before_after --other DIR [--model DIR] [--blocks N] [--steps N] [--quick] [--json] [KEY=VALUE]

`--other` names another checkout whose `.venv` is set up. Each block is one run of the recipe `frozenlake` in its own
process, without validation, checkpoint and scorer. The checkouts alternate, and so does the one that starts. Both
play the same tasks with the same seeds from the same model, so step k of a block is paired with step k of the other
checkout's block; the first two steps of a block are warm-up and left out. The benchmark prints the geometric mean of
the paired ratios (this checkout / other) of the step's wall seconds and of its parts, with 95% t-intervals over
the pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paired
from benchmarks.common import parser_of, print_metrics
from squelch.cluster.config import load
from squelch.cluster.loop.initial_policy import prepare_model

BLOCK_S = 1200.0
"""Longest wait for a block."""
PARTS = ("step", "rollout", "train", "publish", "orchestration")


def measure(other: Path, model: str, blocks: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Runs the blocks; returns the ratios by part of the step, and whether both checkouts did the same work."""
    found = paired.alternating(
        other, blocks, lambda at, k: paired.demo_steps(at, model, steps, [f"seed={k}", *overrides], BLOCK_S)
    )
    pairs = [pair for mine, theirs in found for pair in zip(mine, theirs, strict=True)]
    same = [mine["tokens/sampled"] == theirs["tokens/sampled"] for mine, theirs in pairs]
    parts = {part: paired.ratio([(a[f"seconds/{part}"], b[f"seconds/{part}"]) for a, b in pairs]) for part in PARTS}
    return {"parts": parts, "blocks": blocks, "same_work": float(np.mean(same))}


def main() -> None:
    """Prints the ratios."""
    parser = parser_of(__doc__, "one block of 4 steps per checkout")
    parser.add_argument("--other", type=Path, help="another checkout, set up; needed")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--model", default="", help="model folder; default: the tiny policy, built if missing")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.other is None:
        parser.error("--other DIR: name the checkout to compare with")
    model = options.model or str(prepare_model(load("frozenlake"), lambda _: None))
    blocks, steps = (1, 4) if options.quick else (options.blocks, options.steps)
    found = measure(options.other.resolve(), str(Path(model).resolve()), blocks, steps, options.overrides)
    count = found["parts"]["step"]["pairs"]
    notes = [
        f"{count} paired steps in {blocks} blocks a checkout; the same tokens were sampled in {found['same_work']:.0%}"
    ]
    print_metrics(found, options.json, ("part (seconds)", *paired.COLUMNS), paired.rows(found["parts"]), notes)


if __name__ == "__main__":
    main()
