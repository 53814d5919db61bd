"""Settings of the filter. Imports neither numpy, Ray nor torch, because the command line imports this at start."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from squelch.kit.base.settings import Settings
from squelch.kit.filter.rules import RULES, EpsilonUnit, Keep
from squelch.kit.filter.statistics import STATISTICS, Compat


class FilterConfig(Settings):
    """Selection of the groups that are learned from (paper, section 3.3 and appendix G)."""

    statistic: Literal[*STATISTICS] = "reward_variance"
    """Statistic by which groups are scored, an entry of `kit.filter.statistics.STATISTICS`."""
    rule: Literal[*RULES] = "top_p"
    """Rule by which groups are selected from their scores, an entry of `kit.filter.rules.RULES`."""
    rho: float = Field(0.9, gt=0, le=1)
    """top_p: kept mass. top_k: kept share of groups. min_p: share of the largest score."""
    band: tuple[float, float] = (0.0, 1.0)
    """band: lower and upper quantile of the scores that are kept."""
    keep: Keep = "largest"
    """Whether the groups with the largest or with the smallest scores are kept."""
    include_zero: bool = False
    """Whether groups whose |score| <= 1e-10 may be kept."""
    epsilon: float = Field(0.01, ge=0)
    """top_p: tolerance of the threshold, in `epsilon_unit`."""
    epsilon_unit: EpsilonUnit | None = None
    """top_p: unit of `epsilon`. `relative`: a share of the largest eligible score, so that the rewards' scale does not
    matter and only a window of zeros is rejected. `absolute`: the statistic's unit, which rejects a window whose scores
    sum to no more than `epsilon / rho`. Unset: relative; under `compat=ragen` absolute, the only one there."""
    compat: Compat = "paper"
    """`paper`: as in the paper. `ragen`: as in the authors' released code (standard deviation of rewards with format
    penalties, at least one group for top_k)."""
    window: Literal["whole", "sliding"] = "whole"
    """whole: a step's groups are ranked together. sliding: each group is ranked on arrival, among the last
    `window_size` groups."""
    window_size: int = Field(64, ge=1)
    """Number of groups in the sliding window."""
    scope: Literal["run", "environment"] = "run"
    """In a run of several environments, what a group is ranked among. `run`: the whole window. `environment`: the
    window's groups of its own environment, so that rewards of different scales are not compared; floors hold within
    each then."""
    refill: bool = False
    """Play as many further groups as were dropped, up to `max_refill_rounds` times."""
    max_refill_rounds: int = Field(3, ge=0)
    """Most refill rounds in one step."""
    target: Literal["groups", "regulariser", "task"] = "groups"
    """What dropped groups do not enter. `groups`: the step, as in the paper. `regulariser`: entropy bonus and KL term
    alone; `task`: the policy's surrogate alone. In the last two every group counts in the loss's means, and the loss is
    not scaled; a step of which nothing is kept is skipped under each (docs/guide/filter.md)."""
    on_no_signal: Literal["warn", "abort", "passthrough"] = "warn"
    """Action if nothing is selected: skip the update (warn), end the run (abort), or learn from all valid groups
    (passthrough)."""
    no_signal_limit: int = Field(5, ge=1)
    """Number of consecutive steps without signal after which the run ends under every `on_no_signal`."""
    kind_window: int = Field(64, ge=1)
    """Number of groups over which the coverage of kinds of tasks is measured (docs/guide/filter.md)."""
    kind_floor: float = Field(0.0, ge=0, le=1)
    """Least share of the groups of each kind of task that is kept, over `kind_window` groups and the present step;
    the best of the dropped groups are added. 0: no floor."""
    min_groups: int = Field(0, ge=0)
    """Fewest groups that a step keeps if the rule keeps any and so many have a score above zero; the best of the
    dropped groups are added. 0: no floor."""

    def _faults(self) -> Iterator[str]:
        if self.rule == "none" and (self.kind_floor or self.min_groups):
            yield "kind_floor and min_groups do nothing with rule=none, which keeps every group; drop them"
        if self.window == "sliding" and self.min_groups:
            yield (
                f"min_groups={self.min_groups} counts the groups of a step, and window=sliding decides on each on its "
                "arrival; set filter.window=whole"
            )
        if self.compat == "ragen" and self.epsilon_unit == "relative":
            yield "epsilon_unit=relative is not in the authors' code; set filter.compat=paper, or drop epsilon_unit"
        if self.rule == "top_p" and self.unit_of_epsilon == "relative" and self.epsilon > 1:
            yield (
                f"epsilon={self.epsilon:g} is a share of the largest score and cannot exceed 1; lower it, or set "
                "filter.epsilon_unit=absolute"
            )
        low, high = self.band
        if not 0 <= low <= high <= 1:
            yield f"band is {low:g}..{high:g}; it needs two quantiles with 0 <= lower <= upper <= 1"

    @property
    def limit_reached(self) -> str:
        """The setting that ended a run without signal."""
        aborts = self.on_no_signal == "abort"
        return "filter.on_no_signal=abort" if aborts else f"filter.no_signal_limit={self.no_signal_limit}"

    def describe(self) -> str:
        """The rule and its settings as text, which is archived with every decision."""
        names = ("statistic", "keep", "include_zero", *RULES[self.rule].settings)
        values = vars(self) | {"epsilon_unit": self.unit_of_epsilon}
        parts = [f"{name}={_text(values[name])}" for name in names]
        window = f"sliding/{self.window_size}" if self.window == "sliding" else "whole"
        scope = [] if self.scope == "run" else [f"scope={self.scope}"]
        return " ".join([self.rule, *parts, f"window={window}", *scope, f"compat={self.compat}"])

    @property
    def unit_of_epsilon(self) -> EpsilonUnit:
        """`epsilon_unit`; the default depends on `compat`."""
        return self.epsilon_unit or ("absolute" if self.compat == "ragen" else "relative")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "..".join(_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool | str) else f"{value:g}"
