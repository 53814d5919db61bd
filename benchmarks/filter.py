"""Measures groups per second of the filter's pure logic.

    python -m benchmarks.filter [--quick] [--json]

Each rate is the best of several passes over steps of 8 groups of 16 (the paper's setting) or over one large window. The
filter's work is the path from group statistics to decisions with reasons, metrics and state for a checkpoint. The
benchmark needs none of Ray, vLLM and torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.common import arguments, print_targets
from squelch.kit.filter.measure import GroupStatistics
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import FilterWindow, SlidingWindow

GROUP_SIZE = 16
STEP_GROUPS = 8
TARGET = 20_000
"""Groups per second that the filter must reach."""


def make_groups(num_groups: int, per_step: int) -> list[GroupStatistics]:
    """Groups of 16 binary rewards with uniformly distributed success rates; every tenth has a failed trajectory."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((num_groups, GROUP_SIZE)) < rng.random((num_groups, 1))).astype(np.float64)
    rewards[::10, 3] = np.nan
    return [
        GroupStatistics.from_row(f"{i // per_step:06d}-{i:06d}", i // per_step, row) for i, row in enumerate(rewards)
    ]


def through_window(window: FilterWindow, groups: list[GroupStatistics], per_step: int) -> None:
    """Admits and closes one step after another."""
    for start in range(0, len(groups), per_step):
        for group in groups[start : start + per_step]:
            window.admit(group)
        window.close(groups[start].step)


def rate(work: Callable[[], object], num_groups: int, passes: int) -> float:
    """Groups per second, the best of `passes` passes."""
    seconds = []
    for _ in range(passes):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return num_groups / min(seconds)


def measure(num_groups: int, passes: int) -> dict[str, float]:
    """All metrics, in groups per second."""
    config = FilterConfig()
    sliding = FilterConfig(window="sliding", window_size=64)
    small, large = make_groups(num_groups, STEP_GROUPS), make_groups(num_groups, num_groups)
    ways: dict[str, Callable[[], None]] = {
        "steps_of_8": lambda: through_window(FilterWindow(config), small, STEP_GROUPS),
        "one_window": lambda: through_window(FilterWindow(config), large, num_groups),
        "sliding_64": lambda: through_window(SlidingWindow(sliding), small, STEP_GROUPS),
    }
    return {f"groups_per_s_{name}": rate(work, num_groups, passes) for name, work in ways.items()}


def main() -> int:
    """Prints the metrics; returns 1 if the target was missed, else 0."""
    args = arguments(__doc__, "2,000 groups instead of 20,000")
    found = measure(2_000 if args.quick else 20_000, 5 if args.quick else 7)
    print_targets(found, args.json, dict.fromkeys(found, f">= {TARGET:,}"))
    return int(min(found.values()) < TARGET)


if __name__ == "__main__":
    sys.exit(main())
