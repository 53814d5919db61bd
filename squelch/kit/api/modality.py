"""What the reasonings of a file take from their prompts' pictures, and what from the text (D_V and D_T of
`kit.diagnosis.modality`): each prompt is a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squelch.kit.api.samples import Reasonings
from squelch.kit.records.content import Picture
from squelch.kit.scoring.modality_scoring import modality_metrics

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer


class _Drawn(NamedTuple):
    prompts: list[np.ndarray]
    pictures: list[tuple[Picture, ...]]
    reasonings: list[np.ndarray]
    source: np.ndarray


def by_modality(engine: CrossScorer, found: Reasonings, matrix: np.ndarray, seed: int) -> dict[str, float] | None:
    """The metrics of `kit.scoring.modality_scoring`, of which unknown ones are NaN; None without pictures. `matrix`:
    (num_samples, num_prompts) nats per sequence."""
    if not found.pictures:
        return None
    return modality_metrics(engine, _Drawn(found.prompts, found.pictures, found.ids, found.source), matrix, (seed, 5))
