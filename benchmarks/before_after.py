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

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paired
from benchmarks.common import parser_of, print_metrics
from squelch.cluster.config import load
from squelch.cluster.loop.initial_policy import prepare_model

WARM_UP = 2
BLOCK_S = 1200.0
"""Longest wait for a block."""
PARTS = ("step", "rollout", "train", "publish", "orchestration")
OVERRIDES = ("validation.every=0", "loop.checkpoint_every=1000000", "recorder.port=0", "scorer.enabled=false")


def block(checkout: Path, model: str, steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """The metrics of the measured steps of one run in a checkout."""
    python = checkout / ".venv/bin/python" if checkout != paired.HERE else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "frozenlake", f"model.path={model}", f"runs_dir={folder}", "name=block"]
        words += [f"loop.steps={steps}", *OVERRIDES, *overrides]
        paired.run_in(checkout, [str(python), "-m", "squelch.cluster.cli", *words], BLOCK_S)
        lines = (Path(folder) / "block" / "metrics.jsonl").read_text().splitlines()
    return [metrics for metrics in map(json.loads, lines) if metrics["step"] > WARM_UP]


def measure(other: Path, model: str, blocks: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Runs the blocks; returns the ratios by part of the step, and whether both checkouts did the same work."""
    found = paired.alternating(other, blocks, lambda at, k: block(at, model, steps, [f"seed={k}", *overrides]))
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
