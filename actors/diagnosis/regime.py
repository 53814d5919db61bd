"""Classifies the reasoning into the four regimes of section 2.2 (Figure 1, right), relative to the run's own start.

    |                | depends on the input      | does not                   |
    |----------------|---------------------------|----------------------------|
    | H(Z|X) kept    | diverse                   | template_collapse          |
    | H(Z|X) lost    | compressed                | low_entropy_collapse       |

Neither axis has an absolute scale, so each is compared with the run's own baseline: the median of the first
`BASELINE_SCORINGS` scorings (or of all scorings so far, if there are fewer). Dependence is also compared with chance
and with the null distribution. Both need no baseline, so a run that starts collapsed is reported at its first scoring.
H(Z|X) is compared with the baseline only.

Invariants: without an estimate, or without a null (fewer than 4 distinct prompts), the regime is `unknown` and the
baseline does not change. Pure; plain JSON state.
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
"""Largest p-value at which dependence is significant."""
ABOVE_CHANCE = 0.1
"""Smallest (accuracy - chance) / (1 - chance) of retrieval that counts as dependence."""
DEPENDENCE_SHARE = 0.5
"""Smallest share of the baseline's MI-Seq-Est at which dependence counts as kept."""
ENTROPY_SHARE = 0.5
"""Smallest share of the baseline's H(Z|X) at which the variety of reasoning counts as kept."""


@dataclass(frozen=True)
class Reading:
    """Metrics of one scoring in one scope; an unknown metric is NaN."""

    mi_seq_est: float
    """Nats per sequence."""
    p_value: float
    """Of MI-Seq-Est under permuted prompts."""
    retrieval_accuracy: float
    retrieval_chance: float
    conditional_entropy: float
    """H(Z|X), nats per token."""
    low: float = math.nan
    """Lower end of MI-Seq-Est's 95% interval."""

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> Reading:
        """The reading in a scope's metrics, whose keys do not contain the scope."""
        names = ("mi_seq_est", "mi_seq_est_p_value", "retrieval_accuracy", "retrieval_chance", "conditional_entropy")
        return cls(*(figures.get(name, math.nan) for name in (*names, "mi_seq_est_low")))

    @property
    def known(self) -> bool:
        """Whether all metrics but the interval are known; with few prompts there is no interval."""
        return not any(math.isnan(value) for name, value in vars(self).items() if name != "low")

    @property
    def told_from_null(self) -> bool:
        """Whether MI-Seq-Est is significant under the null (p-value at most `P_VALUE`) and retrieval is at least
        `ABOVE_CHANCE` above chance. If only a part of the pairs was scored there is no p-value; then the 95% interval
        must lie above 0."""
        headroom = self.retrieval_accuracy - self.retrieval_chance
        beyond = self.low > 0 if math.isnan(self.p_value) else self.p_value <= P_VALUE
        return beyond and headroom >= ABOVE_CHANCE * (1 - self.retrieval_chance)


@dataclass
class RegimeGauge:
    """Classifies one scope's scorings, which must come in order of their steps."""

    mi: list[float] = field(default_factory=list)
    """MI-Seq-Est of the first scorings."""
    entropy: list[float] = field(default_factory=list)

    def read(self, reading: Reading) -> str:
        """The regime, one of REGIMES; the first scorings define the baseline."""
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
        """For the checkpoint; plain JSON."""
        return {"mi": self.mi, "entropy": self.entropy}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the baseline from a checkpoint."""
        self.mi, self.entropy = list(state["mi"]), list(state["entropy"])


def one_hot(regime: str) -> dict[str, float]:
    """Flat keys `regime/NAME`: 1 for this regime, 0 for the others."""
    return {f"regime/{name}": float(name == regime) for name in REGIMES}
