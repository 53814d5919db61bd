"""Measures the demo's training step where an agent plays FrozenLake over HTTP, against the built-in game.

    python -m benchmarks.agents [--model DIR] [--blocks N] [--steps N] [--quick] [--json] [key=value]

The agent is `docs/examples/frozen_lake_agent.py`: as `call`, a function in one process, and as `command`, a process a
trajectory, at most `PROCESSES` at once. Each block is one run of the recipe `frozenlake` in its own process, without
validation, checkpoint and scorer, and the three ways alternate. They play the same tasks with the same seeds from the
same model, and sample the same tokens; so step k of a block is paired with step k of the built-in game's, and the first
two steps of a block are left out. The benchmark prints the geometric mean of the paired ratios of the step's wall
seconds and of its rollouts', with 95% t-intervals over the pairs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paired
from benchmarks.common import parser_of, print_metrics
from squelch.cluster.config import load
from squelch.cluster.loop.initial_policy import prepare_model

BLOCK_S = 3000.0
"""Longest wait for a block."""
PROCESSES = 4
PARTS = ("step", "rollout")
AGENT = paired.HERE / "docs" / "examples" / "frozen_lake_agent.py"
OPTIONS: dict[str, dict[str, Any]] = {
    "call": {"call": f"{AGENT}:play", "turns": "squelch"},
    "command": {"command": [sys.executable, str(AGENT)], "turns": "squelch", "max_processes": PROCESSES},
}
WAYS = ("built in", *OPTIONS)


def block(way: str, model: str, steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """The metrics of the measured steps of one run."""
    options = OPTIONS.get(way)
    chosen = [] if options is None else ["environment.name=Agent", f"environment.options={json.dumps(options)}"]
    return paired.demo_steps(paired.HERE, model, steps, [*chosen, *overrides], BLOCK_S)


def measure(model: str, blocks: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Runs the blocks; returns the ratios by way and part, and the share of steps in which the tokens were the same."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(blocks):
        first = number % len(WAYS)
        for way in (*WAYS[first:], *WAYS[:first]):
            runs[way] += block(way, model, steps, [f"seed={number}", *overrides])
    found: dict[str, Any] = {"blocks": blocks, "steps": len(runs["built in"]), "ways": {}}
    for way in OPTIONS:
        pairs = list(zip(runs[way], runs["built in"], strict=True))
        parts = {part: paired.ratio([(a[f"seconds/{part}"], b[f"seconds/{part}"]) for a, b in pairs]) for part in PARTS}
        same = float(np.mean([a["tokens/sampled"] == b["tokens/sampled"] for a, b in pairs]))
        found["ways"][way] = {**parts, "same_work": same, "failed": sum(a["trajectories_failed"] for a, _ in pairs)}
    return found


def main() -> None:
    """Prints the ratios."""
    parser = parser_of(__doc__, "one block of 4 steps a way")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--model", default="", help="model folder; default: the tiny policy, built if missing")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    model = options.model or str(prepare_model(load("frozenlake"), lambda _: None))
    blocks, steps = (1, 4) if options.quick else (options.blocks, options.steps)
    found = measure(str(Path(model).resolve()), blocks, steps, options.overrides)
    rows = [
        row
        for way, parts in found["ways"].items()
        for row in paired.rows({f"{way}, {part}": parts[part] for part in PARTS})
    ]
    notes = [f"{found['steps']} paired steps in {blocks} blocks a way; before: the built-in game, after: the agent"]
    for way, parts in found["ways"].items():
        notes.append(f"{way}: the same tokens in {parts['same_work']:.0%} of the steps, {parts['failed']:.0f} failed")
    print_metrics(found, options.json, ("part (seconds)", *paired.COLUMNS), rows, notes)


if __name__ == "__main__":
    main()
