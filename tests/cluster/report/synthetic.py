"""Synthetic runs for the report: a configuration and metrics of as many steps as wanted, in milliseconds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

SCOPES = ("first_turn", "trajectory")


@dataclass(frozen=True)
class Made:
    """What a synthetic run records. Without a filter its reasoning collapses from the middle on."""

    name: str
    seed: int = 0
    rule: str = "top_p"
    environment: str = "FrozenLake"
    entropy: float = 0.001
    kl: float = 0.001
    slip: float = 0.02
    steps: int = 60
    scored_every: int = 3
    """0: never scored, as `scorer.enabled: false`."""
    validated_every: int = 10
    gradients_every: int = 0
    bands: bool = True
    """Whether tasks_mixed and its like are recorded; older versions did not."""
    turns: int = 3
    """The turns that trajectories reach; a run has keys, without values, of later ones too."""
    kinds: tuple[str, ...] = ("2 moves", "10 moves")


def write_run(parent: Path, made: Made) -> Path:
    """Writes the run's folder and returns it."""
    folder = parent / made.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config(made)))
    with (folder / "metrics.jsonl").open("w") as file:
        for line in lines(made):
            file.write(json.dumps(line) + "\n")
    return folder


def config(made: Made) -> dict[str, Any]:
    """The part of a resolved configuration that tells arms apart."""
    return {
        "name": made.name,
        "seed": made.seed,
        "environment": {"name": made.environment, "train_seed": made.seed * 7, "options": {"slip_rate": made.slip}},
        "loop": {"steps": made.steps},
        "filter": {"rule": made.rule, "rho": 0.9},
        "learner": {"objective": {"entropy_coefficient": made.entropy, "kl": {"coefficient": made.kl}}},
        "recorder": {"port": 9464},
    }


def lines(made: Made) -> list[Mapping[str, float | None]]:
    """The lines of metrics.jsonl."""
    rng = np.random.default_rng(list(repr(made).encode()))
    return [_line(made, step, rng) for step in range(made.steps + 1)]


def _line(made: Made, step: int, rng: np.random.Generator) -> dict[str, float | None]:
    at, noise = step / made.steps, rng.normal(0, 0.02, size=8)
    loss = {"none": 1.0, "top_k": 0.4}.get(made.rule, 0.15) + 6 * made.entropy
    left = math.exp(-3 * loss * max(0.0, at - 0.35))
    success = max(0.0, 0.35 + 0.35 * math.sqrt(at) * (0.35 + 0.65 * left) * (1 - made.slip) - 0.3 * made.slip)
    line: dict[str, float | None] = {"step": step, "time": 1.7e9 + 2.5 * step}
    if made.validated_every and step % made.validated_every == 0:
        line |= interval("validation/success", min(1.0, success + noise[0] / 2), 0.04) | {"validation/step": step}
    if step == 0:
        return line
    line |= {
        "success": success + noise[1],
        "format_validity": min(1.0, 0.9 + 0.1 * math.sqrt(at) + noise[2] / 9),
        "reasoning_length": 20 - 8 * at * (1 - 0.5 * left) + 9 * noise[3],
        "rollout_entropy": 0.8 - 0.1 * at + noise[4],
        "reward_variance_mean": 0.2 - 0.1 * at + noise[5] / 2,
        "kept_fraction": 1.0 if made.rule == "none" else 0.85 - 0.3 * at + noise[6],
        "zero_variance_groups": float(max(0, round(5 * at + 20 * noise[7]))),
    }
    if made.bands:
        line |= {"tasks_all_fail": 0.4 - 0.3 * at, "tasks_mixed": 0.5, "tasks_all_succeed": 0.1 + 0.3 * at}
    for turn in range(1, made.turns + 1):
        line |= {f"turns/kept/{turn}": 0.8, f"turns/success/{turn}": success * left**turn}
    line |= {f"turns/{name}/{turn}": None for turn in range(made.turns + 1, 6) for name in ("kept", "success")}
    for place, kind in enumerate(made.kinds):
        line |= {f"kinds/kept/{kind}": 0.7, f"kinds/success/{kind}": success * left**place}
    if made.scored_every and step % made.scored_every == 0:
        line |= _scoring(step, left, noise) | {"scorer/step": step}
        line |= {f"turn/{turn}/mi_est": 0.3 * left**turn for turn in range(1, made.turns + 1)}
        line |= {f"kind/{kind}/mi_est": 0.3 * left for kind in made.kinds}
    if made.gradients_every and step % made.gradients_every == 0:
        line |= _gradients(noise)
    return line


def _scoring(step: int, left: float, noise: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for scope in SCOPES:
        found |= interval(f"{scope}/retrieval_accuracy", 0.12 + 0.6 * left + noise[1], 0.06)
        found |= interval(f"{scope}/mi_est", 0.14 * left + noise[2] / 8, 0.015)
        found |= interval(f"{scope}/conditional_entropy", 0.85 - 0.1 * left + noise[3] / 2, 0.05)
        found |= {f"{scope}/{name}": left + noise[4] for name in ("mi_zscore", "mi_zscore_ema", "mi_seq_est")}
        found |= {f"{scope}/marginal_entropy": 0.9 + 0.1 * left, f"{scope}/retrieval_chance": 0.125}
    return found


def _gradients(noise: Sequence[float]) -> dict[str, float]:
    found = {}
    for bucket in range(1, 7):
        found[f"gradients/q{bucket}/task"] = 0.15 * bucket + abs(noise[bucket])
        found[f"gradients/q{bucket}/regulariser"] = 0.2 + abs(noise[bucket]) / 5
        found[f"gradients/q{bucket}/reward_variance"] = 0.05 * bucket
    return found


def interval(key: str, value: float, half: float) -> dict[str, float]:
    """A figure with its interval."""
    return {key: value, f"{key}_low": value - half, f"{key}_high": value + half}
