"""What the filter decides: on each group, on each step, and how a step's loss is scaled. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from actors.filter.rules import RULES

if TYPE_CHECKING:
    from actors.filter.selection import Code

Verdict = Literal["kept", "dropped", "refused"]
Action = Literal["learn", "skip", "abort"]
LossScale = Literal["none", "rho", "kept_mass", "kept_fraction", "sqrt_kept_fraction"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one group."""

    group_id: str
    step: int
    decision: Verdict
    code: Code
    """Short cause: selected, passthrough, zero, below_threshold, no_signal, refused."""
    reason: str
    """The same for people, with the numbers."""
    score: float | None
    """The statistic; None if refused."""
    reward_variance: float | None
    """Sample variance of the returns, penalty left out; None if refused."""
    mean_return: float | None


@dataclass(frozen=True)
class StepDecision:
    """A step after its window was ranked. The lists hold all of the step's groups so far, in order of tickets."""

    step: int
    kept: list[Decision]
    dropped: list[Decision]
    refused: list[Decision]
    kept_mass: float | None
    """Share of the step's summed reward variance in the kept groups; None when the sum is 0."""
    kept_fraction: float
    """Kept over all of the step's groups."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    threshold: float | None
    """What the rule last compared with, in its own unit; None in a sliding window, where each group had its own."""
    wanted: int
    """Further groups that a refill asks for; 0 when the step is closed."""
    action: Action
    """learn: train on `kept`. skip: no update, no new version. abort: end the run."""
    filtered: bool
    """False where no rule was applied (rule none, passthrough): the loss is then not scaled."""
    rule: str
    filter: str
    """The rule and its settings as text, for the archive."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The step's figures by flat key, `actors.filter.metrics.step_figures`."""

    @property
    def closed(self) -> bool:
        """Whether the step has ended; while it has not, the caller plays `wanted` more tickets and closes again."""
        return self.wanted == 0

    @property
    def decisions(self) -> list[Decision]:
        return [*self.kept, *self.dropped, *self.refused]


def loss_scale(kind: LossScale, decision: StepDecision, rho: float) -> float:
    """Factor on a loss that was normalised over the kept groups (paper, section 4.1; design decision 3), in [0, 1].

    1 where nothing was filtered (rule none, passthrough), for `rho` under a rule that has no rho (band), and for
    `kept_mass` when the window has no reward variance to share out.
    """
    if kind == "none" or not decision.filtered:
        return 1.0
    if kind == "rho":
        return rho if "rho" in RULES[decision.rule].settings else 1.0
    if kind == "kept_mass":
        return 1.0 if decision.kept_mass is None else decision.kept_mass
    return decision.kept_fraction if kind == "kept_fraction" else math.sqrt(decision.kept_fraction)
