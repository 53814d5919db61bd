"""The rules that stop a run which no longer learns (appendix B.2). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from squelch.kit.filter.decisions import StepDecision
from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.metrics import mean as exact_mean
from squelch.kit.records.records import GroupSummary


@dataclass
class EarlyStop:
    """The two rules of appendix B.2.

    (i) The mean reward variance is below 10% of its mean over the first 10 steps for 5 steps in a row (`ragen`: the
    mean standard deviation, 10 steps in a row); steps of which every group was refused do not count. (ii) Validation
    success is below `collapse_threshold` at 5 validations in a row. `off` counts as well, but never stops the run.
    """

    kind: str
    collapse_threshold: float
    baseline: list[float] = field(default_factory=list)
    low_steps: int = 0
    low_validations: int = 0
    relative: float = math.nan
    """The last step's spread divided by the mean over the first 10 steps."""

    def spread(self, decision: StepDecision, summaries: Sequence[GroupSummary]) -> float:
        """The metric of a step for rule (i): the mean reward variance that the filter reports; with `ragen`, the mean
        standard deviation of rewards with format penalties. Groups that the filter refused do not count; NaN if it
        refused every group.

        Args:
            summaries: every group of the step.
        """
        if self.kind != "ragen":
            return decision.metrics["reward_variance_mean"]
        refused = {item.group_id for item in decision.refused}
        groups = [GroupStatistics.of(summary) for summary in summaries if summary.group_id not in refused]
        scores = measure(groups, "reward_std", "ragen", rule="none").scores.tolist()
        return exact_mean(score for score in scores if not math.isnan(score))

    def step(self, spread: float) -> str | None:
        """Takes a step's `spread`; returns the reason to stop, or None."""
        self.relative = math.nan
        if math.isnan(spread):
            return None
        if len(self.baseline) < 10:
            self.baseline.append(spread)
            return None
        mean = sum(self.baseline) / len(self.baseline)
        self.relative = spread / mean if mean > 0 else math.nan
        self.low_steps = self.low_steps + 1 if spread < 0.1 * mean else 0
        limit = 10 if self.kind == "ragen" else 5
        if self.kind == "off" or self.low_steps < limit:
            return None
        return f"{self._spread_name} below 10% of its baseline {mean:.4g} for {self.low_steps} steps"

    def validation(self, success: float) -> str | None:
        """Takes the success (0 to 1) of a validation; returns the reason to stop, or None."""
        self.low_validations = self.low_validations + 1 if success < self.collapse_threshold else 0
        if self.kind == "off" or self.low_validations < 5:
            return None
        return f"validation success below {self.collapse_threshold:.0%} at {self.low_validations} validations in a row"

    def metrics(self) -> dict[str, float]:
        """The flat metrics of rule (i) after a step."""
        return {"reward_spread_ratio": self.relative, "low_spread_streak": float(self.low_steps)}

    @property
    def _spread_name(self) -> str:
        return "reward std" if self.kind == "ragen" else "reward variance"

    def state(self) -> dict[str, Any]:
        """The counters as JSON-able data, for a checkpoint."""
        return {
            "spread": self._spread_name,
            "baseline": self.baseline,
            "low_steps": self.low_steps,
            "low_validations": self.low_validations,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from the counters of a checkpoint. If that checkpoint used another `spread`, its steps do not
        count and the baseline is measured again."""
        self.low_validations = state["low_validations"]
        if state.get("spread", self._spread_name) == self._spread_name:  # older checkpoints lack the name
            self.baseline, self.low_steps = list(state["baseline"]), state["low_steps"]
