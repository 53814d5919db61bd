"""What the reasonings of a file take from their prompts' pictures, and what from the text (D_V and D_T of
`actors.diagnosis.modality`): each prompt is a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squelch.actors.content import Picture
from squelch.actors.scorer.modality_scoring import modality_metrics
from squelch.api.samples import Reasonings

if TYPE_CHECKING:
    from squelch.actors.scorer.linking import Engine


class _Drawn(NamedTuple):
    prompts: list[np.ndarray]
    pictures: list[tuple[Picture, ...]]
    reasonings: list[np.ndarray]
    source: np.ndarray


def by_modality(engine: Engine, found: Reasonings, matrix: np.ndarray, seed: int) -> dict[str, float] | None:
    """The metrics of `actors.scorer.modality_scoring`, of which unknown ones are NaN; None without pictures. `matrix`:
    (num_samples, num_prompts) nats per sequence."""
    if not found.pictures:
        return None
    return modality_metrics(engine, _Drawn(found.prompts, found.pictures, found.ids, found.source), matrix, (seed, 5))
