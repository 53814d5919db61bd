"""Measures what the findings of a step cost: the views of its groups and texts, their measures, and every level.

    python -m benchmarks.findings [--quick] [--json]

512 trajectories (32 groups of 16) of a healthy run, with every metric that a run can have; the history is full. Times
are CPU milliseconds, medians over steps: `step` of all, `views` and `measures` of the parts that grow with the
trajectories, and `repetition` of 512 first turns of 200 tokens, which environment actors measure as they play. The
target is 1% of the demo's step of 3 s (docs/research/results.md), which has 128 trajectories.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.common import arguments, print_targets
from squelch.cluster.loop.watchers.findings import groups_of, texts_of
from squelch.cluster.metrics import REGISTRY
from squelch.kit.findings.finder import Findings
from squelch.kit.findings.measures import Tasks, measured
from squelch.kit.findings.view import StepView
from squelch.kit.records.records import GroupSummary
from squelch.kit.records.repetition import repetition

GROUPS, SIZE, TOKENS = 32, 16, 200
STEPS, QUICK_STEPS, WARM = 200, 30, 50
TARGETS = {"step_ms": "<= 30"}


def played(rng: np.random.Generator) -> list[GroupSummary]:
    """The summaries of a step's groups."""
    return [_group(f"{number:03d}", rng) for number in range(GROUPS)]


def _group(name: str, rng: np.random.Generator) -> GroupSummary:
    success = rng.random(SIZE) < rng.random()
    return GroupSummary(
        group_id=name,
        step=1,
        environment="FrozenLake",
        task_key=str(rng.integers(1_000_000)),
        group_size=SIZE,
        indices=tuple(range(SIZE)),
        returns=success.astype(float),
        format_penalties=-0.1 * (rng.random(SIZE) < 0.05),
        lengths=rng.integers(20, 200, SIZE),
        surprisals=rng.random(SIZE),
        successes=success,
        truncations=np.zeros(SIZE, dtype=bool),
        format_valid_turns=SIZE,
        num_turns=SIZE,
        num_tokens=200 * SIZE,
        reasoning_tokens=10 * SIZE,
        version_min=0,
        version_max=0,
        cuts=tuple((rng.random(SIZE) < 0.02).tolist()),
        first_texts=tuple((f"{digest:032x}", 0.05) for digest in rng.integers(1 << 62, size=SIZE).tolist()),
    )


def median_ms(call: Callable[[int], object], steps: Sequence[int]) -> float:
    """The median CPU time of a call for each step."""
    found = []
    for step in steps:
        started = time.process_time()
        call(step)
        found.append(1000 * (time.process_time() - started))
    return statistics.median(found)


def measure(steps: int) -> dict[str, float]:
    """The times."""
    rng = np.random.default_rng(0)
    findings, groups = Findings(), played(rng)
    flat: dict[str, float | None] = {key: 0.5 + 0.01 * rng.random() for key in REGISTRY.known_keys}

    def step(number: int) -> None:
        findings.step(StepView(number, flat, groups_of(groups), texts_of(groups)))

    median_ms(step, range(1, WARM))
    view = StepView(1, flat, groups_of(groups), texts_of(groups))
    texts = rng.integers(50, size=(GROUPS * SIZE, TOKENS)).tolist()
    later = range(WARM, WARM + steps)
    return {
        "step_ms": median_ms(step, later),
        "views_ms": median_ms(lambda _: (groups_of(groups), texts_of(groups)), later),
        "measures_ms": median_ms(lambda _: measured(view, Tasks()), later),
        "repetition_ms": median_ms(lambda _: [repetition(text) for text in texts], later[:10]),
    }


def main() -> None:
    """Prints the times."""
    args = arguments(__doc__, f"{QUICK_STEPS} steps instead of {STEPS}")
    found = measure(QUICK_STEPS if args.quick else STEPS)
    print_targets(found, args.json, TARGETS)


if __name__ == "__main__":
    main()
