"""Which weights sampled the rows: the entry point of all checks that score under checkpoints. Pure."""

from __future__ import annotations

from squelch.kit.checks.result import Result
from squelch.kit.checks.weights_data import Scores, WeightClaims

NAMES = (
    "stale_weights",
    "adapter_not_applied",
    "recorded_versions",
    "temperature",
    "recording_mode",
    "precision",
    "engine_against_trainer",
)
"""The results' names, each returned once."""


def check_weights(scores: Scores | None, claims: WeightClaims, why_not: str = "") -> list[Result]:
    """One result for each of `NAMES`.

    Args:
        scores: of `scored.score`; None if nothing could be scored.
        claims: what the run says of its sampling.
        why_not: with None: what is missing, for `Result.needs`; empty: the checkpoints.
    """
    raise NotImplementedError
