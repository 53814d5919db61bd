"""The filter's decisions on groups and steps, and the scale of a step's loss. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from squelch.kit.filter.rules import RULES

if TYPE_CHECKING:
    from squelch.kit.filter.selection import Code

Verdict = Literal["kept", "dropped", "refused"]
Action = Literal["learn", "skip", "abort"]
LossScale = Literal["none", "rho", "kept_mass", "kept_fraction", "sqrt_kept_fraction"]


@dataclass(frozen=True)
class Decision:
    """The filter's decision on one group."""

    group_id: str
    step: int
    decision: Verdict
    code: Code
    """Short cause: selected, floor, passthrough, zero, below_threshold, no_signal, refused."""
    reason: str
    """The cause in words, with the numbers."""
    score: float | None
    """The statistic; None if refused."""
    reward_variance: float | None
    """Sample variance of the returns, without penalties; None if refused."""
    mean_return: float | None


@dataclass(frozen=True)
class StepDecision:
    """A step after its window was ranked. The lists contain all of the step's groups so far, in order of tickets."""

    step: int
    kept: list[Decision]
    dropped: list[Decision]
    refused: list[Decision]
    kept_mass: float | None
    """Share of the step's summed reward variance in the kept groups; None if the sum is 0."""
    kept_fraction: float
    """Kept groups divided by all of the step's groups."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    threshold: float | None
    """The rule's last threshold, in its own unit; None in a sliding window, where each group had its own threshold."""
    wanted: int
    """Number of further groups that a refill requests; 0 if the step is closed."""
    action: Action
    """learn: train on `kept`. skip: no update, no new version. abort: end the run."""
    filtered: bool
    """False if no rule was applied (rule none, passthrough); the loss is then not scaled."""
    rule: str
    filter: str
    """The rule and its settings as text, for the archive."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The step's metrics by flat key (`kit.filter.metrics.step_metrics`)."""
    rejection: str = ""
    """Why the rule selected nothing, and which setting would have kept groups; empty in a sliding window, and if it
    selected a group."""

    @property
    def closed(self) -> bool:
        """Whether the step has ended. If not, the caller plays `wanted` more tickets and closes the step again."""
        return self.wanted == 0

    @property
    def decisions(self) -> list[Decision]:
        """All decisions of the step: kept, then dropped, then refused."""
        return [*self.kept, *self.dropped, *self.refused]

    @property
    def window_std(self) -> float:
        """Root of the mean reward variance of the step's groups, kept or dropped; 0 if there are none."""
        variances = [one.reward_variance for one in (*self.kept, *self.dropped) if one.reward_variance is not None]
        return math.sqrt(sum(variances) / len(variances)) if variances else 0.0

    @property
    def why_nothing(self) -> str:
        """The rejection; in a sliding window, or if every group was refused, with the reason of the group with the
        highest score."""
        best = max(self.decisions, key=lambda one: -math.inf if one.score is None else one.score, default=None)
        if best is None or (self.rejection and best.score is not None):
            return self.rejection or "no group arrived"
        return ": ".join(filter(None, (self.rejection, f"the best: {best.reason}")))


def loss_scale(kind: LossScale, decision: StepDecision, rho: float) -> float:
    """Factor, in [0, 1], on a loss that is normalised over the kept groups (paper, section 4.1).

    The factor is 1 if no rule was applied (rule none, passthrough), for `rho` if the rule has no rho (band), and for
    `kept_mass` if the window has no reward variance.
    """
    if kind == "none" or not decision.filtered:
        return 1.0
    if kind == "rho":
        return rho if "rho" in RULES[decision.rule].settings else 1.0
    if kind == "kept_mass":
        return 1.0 if decision.kept_mass is None else decision.kept_mass
    return decision.kept_fraction if kind == "kept_fraction" else math.sqrt(decision.kept_fraction)
