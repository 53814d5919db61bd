"""What the reasonings of a file take from their prompts' pictures, and what from the text (D_V and D_T of
`actors.diagnosis.modality`): each prompt is a task."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from squelch.actors.scorer.modality_scoring import modality_metrics
from squelch.actors.scorer.probe_drawing import ProbeDraw
from squelch.api.samples import Reasonings

if TYPE_CHECKING:
    from squelch.actors.scorer.linking import Engine


def by_modality(engine: Engine, found: Reasonings, matrix: np.ndarray, seed: int) -> dict[str, float] | None:
    """The metrics of `actors.scorer.modality_scoring`, of which unknown ones are NaN; None without pictures. `matrix`:
    (num_samples, num_prompts) nats per sequence."""
    if not found.pictures:
        return None
    num, source = len(found.prompts), found.source
    draw = ProbeDraw(
        tasks=tuple(map(str, range(num))),
        prompts=found.prompts,
        weights=np.ones(num),
        reasonings=found.ids,
        after=[np.zeros(0, np.int64)] * len(source),
        task=source,
        source=source,
        slot=np.arange(len(source)),
        slots=source,
        excluded=Counter(),
        pictures=found.pictures,
    )
    return modality_metrics(engine, draw, matrix, (seed, 5))
