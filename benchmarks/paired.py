"""Blocks that alternate between two sides, and the ratios of what they measured."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.common import REPOSITORY, output_of
from squelch.kit.diagnosis.uncertainty import t_quantile

T = TypeVar("T")
WARM_UP = 2
STEPS_ALONE = ("validation.every=0", "loop.checkpoint_every=1000000", "recorder.port=0", "scorer.enabled=false")
"""Settings under which a run does nothing beside its steps."""
COLUMNS = ("before", "after", "ratio", "low", "high")


@dataclass(frozen=True)
class Side:
    """One of the two that are compared: a checkout's code, and settings."""

    checkout: Path
    overrides: tuple[str, ...] = ()


def demo_steps(side: Side, model: str, steps: int, overrides: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """The metrics of a run of the recipe `frozenlake` by a side, without those of the first two steps."""
    python = side.checkout / ".venv/bin/python" if side.checkout != REPOSITORY else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "squelch.cluster.cli", "train", "frozenlake", f"model.path={model}", "name=block"]
        command += [f"runs_dir={folder}", f"loop.steps={steps}", *STEPS_ALONE, *overrides, *side.overrides]
        output_of(command, {"PYTHONPATH": str(side.checkout)}, timeout_s, side.checkout)
        lines = (Path(folder) / "block" / "metrics.jsonl").read_text().splitlines()
    return [metrics for metrics in map(json.loads, lines) if metrics["step"] > WARM_UP]


def alternating(after: Side, before: Side, blocks: int, block: Callable[[Side, int], T]) -> list[tuple[T, T]]:
    """Runs `block(side, number)` for both sides in turn; the one that begins alternates. Returns a pair (after, before)
    for each number."""
    pairs = []
    for number in range(blocks):
        order = [after, before] if number % 2 else [before, after]
        found = {side: block(side, number) for side in order}
        pairs.append((found[after], found[before]))
    return pairs


def ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Geometric mean of the ratios of pairs (after, before), its 95% t-interval, the medians `before` and `after`."""
    after, before = np.array(pairs).T
    logs = np.log(after / before)
    half = t_quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    mean = float(logs.mean())
    return {
        "before": float(np.median(before)),
        "after": float(np.median(after)),
        "ratio": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "pairs": len(logs),
    }


def rows(parts: dict[str, dict[str, float]]) -> list[list[Any]]:
    """A row for each ratio."""
    return [[part, *(metrics[key] for key in COLUMNS)] for part, metrics in parts.items()]
