"""The line that the terminal shows for a training step. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from squelch.kit.process.terminal import known

GAP = "  "


@dataclass(frozen=True)
class Part:
    """A piece of the line. `rank`: the higher, the sooner it is left out where the line does not fit; 0 is never."""

    text: str
    rank: int = 0


def step_line(step: int, steps: int, flat: Mapping[str, float], width: int | None = None) -> str:
    """One line of text for a training step, from its flat metrics. As wide as `width` allows; None: what a reader of a
    log wants, without the parts that only a wide terminal shows."""
    parts = [part for part in _parts(step, steps, flat) if width is not None or part.rank <= LOGGED]
    while width is not None and len(_joined(parts)) > width and any(part.rank for part in parts):
        parts.remove(max(parts, key=lambda part: part.rank))
    return _joined(parts)


def _joined(parts: list[Part]) -> str:
    return GAP.join(part.text for part in parts)


LOGGED = 5
"""Highest rank of a part that a log shows."""


def _parts(step: int, steps: int, flat: Mapping[str, float]) -> list[Part]:
    """The parts of the line in their order, as far as their metrics are known."""
    success, reward = flat["success"], flat["reward_mean"]
    kept = f"kept {flat.get('kept_groups', 0):.0f}/{flat.get('num_groups', 0):.0f}"
    parts = [Part(f"step {step:4d}/{steps}"), Part(f"success {known(success, '.3f')}")]
    if not math.isclose(success, reward, abs_tol=5e-4) and not math.isnan(reward):  # paid for more than success
        parts.append(Part(f"reward {reward:+.3f}"))
    mass = flat.get("kept_mass")
    parts.append(Part(kept if mass is None else f"{kept}, mass {known(mass, '.2f')}"))
    for key, form, rank in MEASURED:
        value = flat.get(key)
        if value is not None and not math.isnan(value):
            parts.append(Part(form.format(value), rank))
    accuracy = flat.get("first_turn/retrieval_accuracy", math.nan)
    if not math.isnan(accuracy):
        parts.append(Part(f"retrieval {accuracy:.2f} (chance {flat['first_turn/retrieval_chance']:.2f})", 2))
    if flat.get("alarm/raised") == 1:
        parts.append(Part(f"input dependence falling since step {flat['alarm/since']:.0f}"))
    return [*parts, Part(f"{flat['seconds/step']:.2f} s")]


MEASURED = (
    ("format_validity", "format {:.2f}", 3),
    ("reasoning_length", "reasoning {:.1f} tokens", 4),
    ("learner/entropy", "entropy {:.2f}", 1),
    ("learner/kl", "KL {:.4f}", 5),
    ("learner/grad_norm", "gradient {:.2f}", 6),
    ("reward_variance_mean", "variance {:.3f}", 7),
    ("tokens/per_second", "{:.0f} tokens/s", 8),
    ("seconds/rollout", "rollout {:.1f} s", 9),
    ("seconds/train", "train {:.1f} s", 10),
)
"""Flat key, text, and rank of the parts that are one metric each."""
