"""How long after its limit each hostile program has ended, with all of its processes and files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from squelch.envs.sandbox import Limits, Pool, Question
from tests.envs.sandbox.corpus import Hostile, corpus

LIMIT_S = 0.4
LIMITS = Limits(wall_s=LIMIT_S, total_s=60, cpu_s=5)


@dataclass(frozen=True)
class Late:
    """A program that reached its limit: `seconds` from the limit until the caller has its answer."""

    name: str
    seconds: float
    is_flood: bool


def measure(pool: Pool, repeats: int) -> dict[str, Any]:
    """Runs the whole corpus `repeats` times, one program at a time; the metrics are of the programs that reach the
    limit."""
    pool.run("print(1)", [Question()], LIMITS)
    found = [late for _ in range(repeats) for hostile in corpus() if (late := run(pool, hostile)) is not None]
    floods = [late.seconds for late in found if late.is_flood]
    return {
        "runs": len(found),
        "programs": len({late.name for late in found}),
        "median_s": median(late.seconds for late in found),
        "largest_s": max(late.seconds for late in found),
        "floods_median_s": median(floods),
        "floods_largest_s": max(floods),
    }


def run(pool: Pool, hostile: Hostile) -> Late | None:
    """The lateness of one program; None if it ends before its limit."""
    started = time.perf_counter()
    outcome = pool.run(hostile.program, [Question()], LIMITS)[0].outcome
    seconds = time.perf_counter() - started - LIMIT_S
    return Late(hostile.name, seconds, hostile.name.startswith("flood")) if outcome == "late" else None
