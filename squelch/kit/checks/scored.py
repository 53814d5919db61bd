"""Scores the drawn rows under every checkpoint. Loads torch and transformers when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from squelch.kit.checks.weights_data import Candidate, Sample, Scores
from squelch.kit.readers.weights import WeightsRule


def candidates_in(folder: Path | None, rule: WeightsRule, base: Path | None = None) -> list[Candidate]:
    """The checkpoints of a trainer's folder, by number, and the base model as the initial one, before them.

    Raises UserError if the folder holds none.
    """
    raise NotImplementedError


def score(
    samples: Sequence[Sample],
    candidates: Sequence[Candidate],
    temperature: float | None = None,
    *,
    base: Path | None = None,
    device: str | None = None,
) -> Scores:
    """The samples' scores under every candidate, in float32; one model is loaded at a time.

    Args:
        samples: as `Draw.samples` gives them.
        candidates: of `candidates_in`.
        temperature: the claimed one.
        base: folder of the base model, for adapters that do not find it.
        device: e.g. "cuda"; None for a GPU if there is one.

    Raises:
        UserError: a model cannot be loaded, or its vocabulary lacks an id of the samples.
    """
    raise NotImplementedError
