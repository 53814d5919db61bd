"""Which of the four regimes of section 2.2 (Figure 1, right) the reasoning is in, relative to the run's own start.

    |                | depends on the input      | does not                   |
    |----------------|---------------------------|----------------------------|
    | H(Z|X) kept    | diverse                   | template_collapse          |
    | H(Z|X) lost    | compressed                | low_entropy_collapse       |

Neither axis has a scale of its own, so each is held against what the run itself showed first: the baseline is the
median of the first `BASELINE_SCORINGS` scorings (of those so far, until there are as many). Dependence is also held
against chance and against the null, which need no baseline: a run that starts collapsed is told so at its first
scoring. A low H(Z|X) is only ever low against the baseline.

Invariants: without an estimate, or without a null (fewer than 4 distinct prompts), the regime is `unknown` and the
baseline stays as it is. Pure; plain JSON state.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.diagnosis.metrics import REGIMES

DIVERSE, COMPRESSED, TEMPLATE, LOW_ENTROPY, UNKNOWN = REGIMES
BASELINE_SCORINGS = 3
P_VALUE = 0.05
"""Dependence is told from the null below it."""
ABOVE_CHANCE = 0.1
"""Least share of the way from chance to 1 that retrieval must have gone."""
DEPENDENCE_SHARE = 0.5
"""Least share of the baseline's MI-Seq-Est."""
ENTROPY_SHARE = 0.5
"""Least share of the baseline's H(Z|X)."""


@dataclass(frozen=True)
class Reading:
    """One scoring of one scope; NaN where a figure is not known."""

    mi_seq_est: float
    """Nats a sequence."""
    p_value: float
    """Of MI-Seq-Est under permuted prompts."""
    retrieval_accuracy: float
    retrieval_chance: float
    conditional_entropy: float
    """H(Z|X), nats a token."""
    low: float = math.nan
    """Lower end of MI-Seq-Est's 95% interval."""

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> Reading:
        """From a scope's figures, scope left out."""
        names = ("mi_seq_est", "mi_seq_est_p_value", "retrieval_accuracy", "retrieval_chance", "conditional_entropy")
        return cls(*(figures.get(name, math.nan) for name in (*names, "mi_seq_est_low")))

    @property
    def known(self) -> bool:
        """But for the interval, which few prompts do not have."""
        return not any(math.isnan(value) for name, value in vars(self).items() if name != "low")

    @property
    def told_from_null(self) -> bool:
        """Whether permuted prompts seldom do as well, and retrieval is visibly above chance. A part of the pairs cannot
        be permuted: then the interval has to lie above 0."""
        headroom = self.retrieval_accuracy - self.retrieval_chance
        beyond = self.low > 0 if math.isnan(self.p_value) else self.p_value <= P_VALUE
        return beyond and headroom >= ABOVE_CHANCE * (1 - self.retrieval_chance)


@dataclass
class RegimeGauge:
    """Reads one scope's scorings in order of their steps."""

    mi: list[float] = field(default_factory=list)
    """MI-Seq-Est of the first scorings."""
    entropy: list[float] = field(default_factory=list)

    def read(self, reading: Reading) -> str:
        """The regime, one of REGIMES; the first scorings make the baseline."""
        if not reading.known:
            return UNKNOWN
        if len(self.mi) < BASELINE_SCORINGS:
            self.mi.append(reading.mi_seq_est)
            self.entropy.append(reading.conditional_entropy)
        kept = reading.mi_seq_est >= DEPENDENCE_SHARE * statistics.median(self.mi)
        varied = reading.conditional_entropy >= ENTROPY_SHARE * statistics.median(self.entropy)
        if reading.told_from_null and kept:
            return DIVERSE if varied else COMPRESSED
        return TEMPLATE if varied else LOW_ENTROPY

    def state(self) -> dict[str, Any]:
        return {"mi": self.mi, "entropy": self.entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.mi, self.entropy = list(state["mi"]), list(state["entropy"])


def one_hot(regime: str) -> dict[str, float]:
    """By `regime/NAME`: 1 for this regime, 0 for the others."""
    return {f"regime/{name}": float(name == regime) for name in REGIMES}
