"""`squelch.score(..., scorer=True)`: what a model that did not sample the completions shows of them.

The mathematics and its conditions are in `kit.diagnosis.evidence`. What scores cannot show is asked of the caller: a
verdict holds if the answer to each question is yes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from squelch.kit.api.samples import Reasonings, notes_on
from squelch.kit.diagnosis.evidence import Evidence, evidence_of
from squelch.kit.diagnosis.proxies import usable

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer


@dataclass(frozen=True, eq=False)
class EvidenceResult:
    """What a scorer shows of one step's samples."""

    matrix: np.ndarray
    """(num_samples, num_prompts) float64: log q(Z_s | X_j) under the scorer, nats, summed over the tokens of Z_s."""
    samples: Reasonings
    """As of `squelch.ScoreResult`."""
    evidence: Evidence
    """Retrieval with its exact test; the bound on the mutual information; `excluded`: rows left out, by reason."""
    questions: tuple[str, ...]
    """What the caller must be able to answer with yes: otherwise the verdict means nothing."""
    notes: tuple[str, ...]
    """What to know before believing the rest."""

    @property
    def verdict(self) -> str:
        """`depends on its prompt`, or `not shown under this scorer`, which says nothing about the reasoning."""
        return self.evidence.verdict

    def metrics(self) -> dict[str, float]:
        """Retrieval with its chance, p-value and null, and the bound with its interval, flat; NaN if unknown."""
        return self.evidence.metrics()


def evidenced(engine: CrossScorer, found: Reasonings, seed: int = 0) -> EvidenceResult:
    """The result of samples of two prompts or more; arguments as of `squelch.score`."""
    matrix = engine.matrix(found.prompts, found.ids, pictures=found.pictures or None)
    evidence = evidence_of(usable(matrix, np.array([len(z) for z in found.ids]), found.source), seed)
    evidence = replace(evidence, excluded=dict(found.excluded) | evidence.excluded)
    return EvidenceResult(
        matrix, found, evidence, tuple(questions(found)), (*found.notes, *notes_on(found, first_only=True))
    )


def questions(found: Reasonings) -> Iterator[str]:
    """The conditions that neither the file nor the scores show."""
    counts = np.bincount(found.source)
    each = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    yield (
        "Is every rollout of these prompts here, whatever its reward, and was no prompt left out for its rewards? "
        f"Among successes alone a template depends on its prompt too. Reasonings of a prompt: {each}"
    )
    yield "Does each prompt show all that the policy was shown?"
    yield "Was the scorer never trained on these rows?"
    yield (
        "Are these the sampled reasonings? Many closed APIs return a summary, which is not Z: its writer may have read "
        "the prompt"
    )
