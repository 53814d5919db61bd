"""The line that the terminal shows for a training step. Pure."""

from __future__ import annotations

import math


def step_line(step: int, steps: int, flat: dict[str, float]) -> str:
    """One line of text for a training step, from its flat metrics."""
    parts = [
        f"step {step:4d}/{steps}",
        f"success {flat['success']:.3f}",
        f"reward {flat['reward_mean']:+.3f}",
        f"kept {flat.get('kept_groups', 0):.0f}/{flat.get('num_groups', 0):.0f}",
    ]
    if flat.get("kept_mass") is not None:
        parts.append(f"mass {flat['kept_mass']:.2f}")
    if not math.isnan(flat.get("first_turn/retrieval_accuracy", math.nan)):
        accuracy, chance = flat["first_turn/retrieval_accuracy"], flat["first_turn/retrieval_chance"]
        parts.append(f"retrieval {accuracy:.2f} (chance {chance:.2f})")
    if flat.get("alarm/raised") == 1:
        parts.append(f"input dependence falling since step {flat['alarm/since']:.0f}")
    parts.append(f"{flat['seconds/step']:.2f} s")
    return "  ".join(parts)
