"""Compares the demo's training step with that of another checkout, or under other settings, in alternating blocks.

    python -m benchmarks.before_after --other DIR [--model DIR] [--blocks N] [--steps N] [--quick] [--json] [KEY=VALUE]
    python -m benchmarks.before_after --to KEY=VALUE ... [the same]

`--other` names another checkout whose `.venv` is set up: this one is "after". With `--to`, the recipe as it is is
"before" and the recipe with these settings "after": with `environment.name=Agent` and the options
`{call: docs/examples/frozen_lake_agent.py:play, turns: squelch}` the game is played by an agent over HTTP, with
`scorer.enabled=true` (every block has it off) the scorer works beside it. Other settings are those of both sides.

Each block is one run of the recipe `frozenlake` in its own process, without validation, checkpoint and scorer. The
sides alternate, and so does the one that starts. Both play the same tasks with the same seeds from the same model, so
step k of a block is paired with step k of the other side's block; the first two steps of a block are warm-up and left
out. The benchmark prints the geometric mean of the paired ratios (after / before) of the step's wall seconds and of its
parts, with 95% t-intervals over the pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paired
from benchmarks.common import REPOSITORY, parser_of, print_metrics
from squelch.cluster.config import load
from squelch.cluster.loop.initial_policy import prepare_model

BLOCK_S = 3000.0
"""Longest wait for a block."""
PARTS = ("step", "rollout", "train", "publish", "orchestration")


def measure(before: paired.Side, after: paired.Side, model: str, blocks: int, steps: int) -> dict[str, Any]:
    """Runs the blocks; returns the ratios by part of the step, and whether both sides did the same work."""
    found = paired.alternating(
        after, before, blocks, lambda side, k: paired.demo_steps(side, model, steps, [f"seed={k}"], BLOCK_S)
    )
    pairs = [pair for mine, theirs in found for pair in zip(mine, theirs, strict=True)]
    same = [mine["tokens/sampled"] == theirs["tokens/sampled"] for mine, theirs in pairs]
    parts = {part: paired.ratio([(a[f"seconds/{part}"], b[f"seconds/{part}"]) for a, b in pairs]) for part in PARTS}
    failed = sum(mine["trajectories_failed"] for mine, _ in pairs)
    return {"parts": parts, "blocks": blocks, "same_work": float(np.mean(same)), "failed": failed}


def main() -> None:
    """Prints the ratios."""
    parser = parser_of(__doc__, "one block of 4 steps a side")
    sides = parser.add_mutually_exclusive_group()
    sides.add_argument("--other", type=Path, help="another checkout, set up")
    sides.add_argument("--to", nargs="+", metavar="KEY=VALUE", help="settings of the side after")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--model", default="", help="model folder; default: the tiny policy, built if missing")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.other is None and options.to is None:
        parser.error("--other DIR or --to KEY=VALUE: say what to compare with")
    model = options.model or str(prepare_model(load("frozenlake"), lambda _: None))
    blocks, steps = (1, 4) if options.quick else (options.blocks, options.steps)
    before = paired.Side((options.other or REPOSITORY).resolve(), tuple(options.overrides))
    after = paired.Side(REPOSITORY, (*options.overrides, *(options.to or ())))
    found = measure(before, after, str(Path(model).resolve()), blocks, steps)
    notes = [
        f"{found['parts']['step']['pairs']} paired steps in {blocks} blocks a side; the same tokens were sampled in "
        f"{found['same_work']:.0%}, {found['failed']:.0f} trajectories failed after"
    ]
    print_metrics(found, options.json, ("part (seconds)", *paired.COLUMNS), paired.rows(found["parts"]), notes)


if __name__ == "__main__":
    main()
