"""Where a run's validation success peaks, and what was measured there: the columns of the paper's Tables 4 and 5. Pure.

| column | definition (appendix C of the paper) |
|---|---|
| success, step | largest validation success after step 0, and the step of the first validation that reached it |
| retrieval | retrieval accuracy of the first turn, at the last scorer step up to the peak; the paper's column MI |
| entropy | H(Z given X) of the first turn there, nats per token |
| stable | whether validation success was never below 0.01, before training included |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from squelch.cluster.runs.series import last_value, series

SUCCESS, RETRIEVAL, ENTROPY = "validation/success", "first_turn/retrieval_accuracy", "first_turn/conditional_entropy"
COLLAPSE = 0.01
"""Success below which the paper calls a run collapsed (appendix C)."""


@dataclass(frozen=True)
class Peak:
    """The columns of one run; None for what it did not record."""

    success: float | None = None
    step: int | None = None
    retrieval: float | None = None
    entropy: float | None = None
    stable: bool | None = None


def peak_of(lines: Sequence[Mapping[str, Any]]) -> Peak:
    """The columns of a run, from its metrics, one line a step."""
    validated = series(lines, SUCCESS)
    trained = {step: value for step, value in validated.items() if step > 0}
    if not trained:
        return Peak()
    most = max(trained.values())
    step = next(step for step, value in trained.items() if value == most)
    retrieval, entropy = (last_value(series(lines, key), step) for key in (RETRIEVAL, ENTROPY))
    return Peak(most, step, retrieval, entropy, min(validated.values()) >= COLLAPSE)
