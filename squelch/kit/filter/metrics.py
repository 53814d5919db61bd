"""The filter's metrics, and the values of a step that feed them. The run, its checkpoint and `squelch filter` all
compute values over groups with the functions of this module. Pure.

A refused group counts in the number of groups, but in no mean, sum or count of zeros. Sums are exact (`math.fsum`), so
no value depends on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from squelch.kit.filter.statistics import ZERO
from squelch.kit.metrics.specification import MetricSpec, Section, counter, gauge, product

DECISIONS = ("kept", "dropped", "refused")
VARIANCE_BANDS = ("0", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1", "3", "10", "+Inf")
"""Upper ends of the bands of reward variance in which groups are counted."""
_SMALLER = 2.0**-64
"""Scales values whose sum no float holds; their shares stay."""
_BY_DECISION = {f"{decision}_groups": (decision,) for decision in DECISIONS}
REWARD_MEANS = {"reward_mean": ("all",), "reward_mean_kept": ("kept",), "reward_mean_dropped": ("dropped",)}


def _of_environments(name: str, key: str, help: str) -> MetricSpec:
    """A gauge of each of a run's several environments; a run of one has none."""
    return gauge(name, f"environment/{key}/{{environment}}", help)


METRICS = {
    Section.LEARNING: (
        gauge(
            "squelch_reward_mean",
            REWARD_MEANS,
            "Mean episode return, without format penalty, of all, kept and dropped groups",
            labels=("groups",),
        ),
    ),
    Section.FILTER: (
        gauge(
            "squelch_reward_variance_mean", "reward_variance_mean", "Mean over groups of the reward variance (ddof 1)"
        ),
        gauge(
            "squelch_reward_variance_groups",
            "reward_variance_up_to/{up_to}",
            "Groups of the last step whose reward variance is at most `up_to`: a cumulative histogram",
            product(VARIANCE_BANDS),
        ),
        gauge(
            "squelch_kept_mass_ratio",
            "kept_mass",
            "Share of the window's reward variance in kept groups; NaN if it is 0",
        ),
        gauge("squelch_kept_groups_ratio", "kept_fraction", "Share of the window's groups that was kept"),
        gauge("squelch_window_groups", "num_groups", "Groups that the filter ranked in the step"),
        gauge(
            "squelch_step_groups",
            _BY_DECISION,
            "Groups of the last step by decision of the filter",
            labels=("decision",),
        ),
        counter("squelch_groups_total", _BY_DECISION, "Groups by decision of the filter", labels=("decision",)),
        gauge(
            "squelch_zero_variance_groups", "zero_variance_groups", "Groups of the last step without reward variance"
        ),
        gauge(
            "squelch_dropped_with_variance_ratio",
            "dropped_with_variance",
            "Share of the last step's dropped groups that have reward variance; NaN if none was dropped",
        ),
        gauge("squelch_floor_groups", "floor_groups", "Groups of the last step that a floor of the filter added"),
        gauge("squelch_kinds", "kinds/played", "Kinds of tasks among the last filter.kind_window groups"),
        gauge(
            "squelch_kinds_effective",
            "kinds/effective",
            "Effective number of kinds among kept groups, (sum w)^2 / sum w^2 of their numbers; NaN if none is kept",
        ),
        gauge("squelch_kinds_effective_played", "kinds/effective_played", "Effective number of kinds among all groups"),
        gauge("squelch_kinds_starved", "kinds/starved", "Kinds that were played and of which no group was kept"),
        gauge(
            "squelch_kinds_starved_success_ratio",
            "kinds/starved_success",
            "Success of the groups of starved kinds: near 1 they are solved, near 0 they are too hard; NaN without any",
        ),
        gauge(
            "squelch_kinds_oldest_steps",
            "kinds/oldest_steps",
            "Steps since the kind that has waited longest was last kept",
        ),
        gauge(
            "squelch_kind_kept_ratio",
            "kinds/kept/{kind}",
            "Share of a kind's groups that was kept, over the last filter.kind_window groups; NaN if it was not played",
        ),
        gauge("squelch_kind_starved_steps", "kinds/age/{kind}", "Steps since a kind of task was last kept"),
        gauge(
            "squelch_kind_success_ratio",
            "kinds/success/{kind}",
            "Success of a kind's groups over the last filter.kind_window groups",
        ),
        _of_environments("squelch_environment_groups", "groups", "Groups of the last step, of each environment"),
        _of_environments(
            "squelch_environment_kept_groups_ratio",
            "kept",
            "Share of an environment's groups in the step that was kept",
        ),
        _of_environments(
            "squelch_environment_reward_mean", "reward", "Mean episode return of an environment, without format penalty"
        ),
        _of_environments(
            "squelch_environment_reward_variance_mean",
            "variance",
            "Mean over an environment's groups of the reward variance (ddof 1)",
        ),
        gauge("squelch_loss_scale", "loss_scale", "Factor on the loss of a filtered step"),
        gauge("squelch_refill_rounds", "refill_rounds", "Rounds that asked for further groups in the last step"),
        counter("squelch_refills_total", "refill_rounds", "Rounds that asked for further groups"),
        gauge("squelch_no_signal_streak", "no_signal_streak", "Steps in a row in which the filter selected nothing"),
    ),
}


class Group(Protocol):
    """One decided group. `score`, `variance` (of the returns) and `mean` (return) are NaN if it was refused."""

    @property
    def verdict(self) -> str | None: ...

    @property
    def score(self) -> float: ...

    @property
    def variance(self) -> float: ...

    @property
    def mean(self) -> float: ...


def step_metrics(groups: Sequence[Group], refill_rounds: int, no_signal_streak: int) -> dict[str, float]:
    """The metrics of one step's groups by flat key; a mean of no groups, or a share of 0, is NaN."""
    valid = [group for group in groups if group.verdict != "refused"]
    kept = [group.verdict == "kept" for group in groups]
    mass = kept_mass([group.variance for group in groups], kept)
    return {
        "num_groups": float(len(groups)),
        **{f"{name}_groups": float(sum(group.verdict == name for group in groups)) for name in DECISIONS},
        "zero_variance_groups": float(count_zero(group.variance for group in valid)),
        "dropped_with_variance": mean(float(group.variance > ZERO) for group in valid if group.verdict == "dropped"),
        "reward_variance_mean": mean(group.variance for group in valid),
        **_by_variance([group.variance for group in valid]),
        "reward_mean": mean(group.mean for group in valid),
        "reward_mean_kept": mean(group.mean for group in valid if group.verdict == "kept"),
        "reward_mean_dropped": mean(group.mean for group in valid if group.verdict == "dropped"),
        "kept_mass": math.nan if mass is None else mass,
        "kept_fraction": kept_fraction(kept),
        "refill_rounds": float(refill_rounds),
        "no_signal_streak": float(no_signal_streak),
    }


class LabelledGroup(Group, Protocol):
    """A decided group with its environment's label."""

    @property
    def label(self) -> str: ...


def environment_metrics(groups: Sequence[LabelledGroup]) -> dict[str, float]:
    """The metrics of each environment's groups by flat key; none of groups without a label. NaN as `step_metrics`."""
    found: dict[str, float] = {}
    for label in sorted({group.label for group in groups if group.label}):
        own = [group for group in groups if group.label == label]
        valid = [group for group in own if group.verdict != "refused"]
        found |= {
            f"environment/groups/{label}": float(len(own)),
            f"environment/kept/{label}": kept_fraction([group.verdict == "kept" for group in own]),
            f"environment/reward/{label}": mean(group.mean for group in valid),
            f"environment/variance/{label}": mean(group.variance for group in valid),
        }
    return found


def _by_variance(variances: Sequence[float]) -> dict[str, float]:
    """The number of variances up to each band's upper end; one that counts as zero is in the band of 0."""
    return {
        f"reward_variance_up_to/{end}": float(sum(variance <= float(end) + ZERO for variance in variances))
        for end in VARIANCE_BANDS
    }


def kept_mass(variances: Sequence[float], kept: Sequence[bool]) -> float | None:
    """Share of the summed reward variance that the kept groups hold, in [0, 1]; None if the sum is 0.

    `variances`: one per group, NaN for a refused group.
    """
    try:
        total = math.fsum(variance for variance in variances if not math.isnan(variance))
    except OverflowError:
        return kept_mass([variance * _SMALLER for variance in variances], kept)
    if total <= 0:
        return None
    held = (variance for variance, is_kept in zip(variances, kept, strict=True) if is_kept and not math.isnan(variance))
    return min(1.0, math.fsum(held) / total)


def kept_fraction(kept: Sequence[bool]) -> float:
    """Kept groups divided by all groups, including refused ones; 0 without groups."""
    return sum(kept) / len(kept) if kept else 0.0


def count_zero(values: Iterable[float]) -> int:
    """Number of values that are zero, |value| <= 1e-10; NaN does not count."""
    return sum(abs(value) <= ZERO for value in values)


def mean(values: Iterable[float]) -> float:
    """Mean from an exact sum; NaN without values."""
    given = list(values)
    try:
        return math.fsum(given) / len(given) if given else math.nan
    except OverflowError:
        return math.fsum(value / len(given) for value in given)
