"""The verdicts on the four questions of `plan`, from the condensed runs. Pure.

A comparison rests on the seeds whose runs all began with weights of one checksum; the others are named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.answers import early_actions, late_actions
from research.claims.statistics import known, mean
from research.kept import DEPENDENCE, SHARE, Kept, last_success, start
from research.penalty.plan import LONG, LONG_SEEDS, PARTS, SEEDS
from squelch.kit.diagnosis.uncertainty import t_quantile

NEAR = 0.05
"""Of success: two arms within it are as good as each other."""
ACTIONS_FALL, ACTIONS_STAY = -2.5, 7.0
VALID, STEADY, EDGE = 0.9, 0.1, 10
SAME_DOSE = 0.01
MI, NOISE, VALIDITY = "probe/mi", "probe/conditional_entropy", "format_validity"
BONUS_WEIGHT = "bonus_weight"
Value = Callable[[Kept], float | None]
Arms = Mapping[str, Mapping[int, Kept]]
"""The runs of each arm, by seed."""


@dataclass(frozen=True)
class Difference:
    """A weighted sum of a measure of arms, within each seed. `values`: by seed."""

    says: str
    values: Mapping[int, float]
    wanted: int

    @property
    def mean(self) -> float:
        """The mean over the seeds; NaN without any."""
        return statistics.fmean(self.values.values()) if self.values else math.nan

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided t-interval; infinite with fewer than two seeds."""
        found = [*self.values.values()]
        if len(found) < 2:
            return -math.inf, math.inf
        half = t_quantile((1 + level) / 2, len(found) - 1) * statistics.stdev(found) / math.sqrt(len(found))
        return self.mean - half, self.mean + half

    @property
    def counted(self) -> str:
        """The seeds that are there, of those that are wanted."""
        return f"{len(self.values)} of {self.wanted} seeds"

    @property
    def whole(self) -> bool:
        """Whether every seed is there, so that it may be judged."""
        return len(self.values) == self.wanted

    @property
    def within(self) -> bool:
        """Whether the 90% interval lies within `NEAR` of 0."""
        low, high = self.interval(0.9)
        return low > -NEAR and high < NEAR


def by_arm(runs: Sequence[Kept]) -> Arms:
    """The runs of every arm, by seed."""
    names = [arm for arms in PARTS.values() for arm in arms]
    return {arm: {run.seed: run for run in runs if run.arm == arm} for arm in names}


def changed_start(arms: Arms) -> list[int]:
    """The seeds whose runs did not all begin with the same weights, which no comparison counts."""
    found = {seed: {run.began for own in arms.values() if (run := own.get(seed))} for seed in (*SEEDS, *LONG_SEEDS)}
    return sorted(seed for seed, starts in found.items() if len(starts) > 1 or "" in starts)


def difference(says: str, arms: Arms, weights: Mapping[str, int], measure: Value = last_success) -> Difference:
    """The weighted sum of the arms' measures in every seed that has all of them."""
    found, left_out = dict[int, float](), changed_start(arms)
    for seed in SEEDS:
        own = [(weight, arms[arm].get(seed)) for arm, weight in weights.items()]
        values = [weight * value for weight, run in own if run and (value := measure(run)) is not None]
        if len(values) == len(own) and seed not in left_out:
            found[seed] = math.fsum(values)
    return Difference(says, found, len(SEEDS))


@dataclass(frozen=True)
class Verdict:
    """What is said of a question. `decided`: whether the questions after it may be confirmatory."""

    question: str
    says: str
    decided: bool
    differences: Sequence[Difference]
    notes: Sequence[str] = ()


def is_it_the_penalty(arms: Arms) -> Verdict:
    """P."""
    own = {"std_top_p": 1, "std_none": -1}
    free = {"free_top_p": 1, "free_none": -1}
    interaction = difference(
        "interaction: (top_p - none at -0.1) - (top_p - none at 0)",
        arms,
        {**own, "free_top_p": -1, "free_none": 1},
    )
    at_0, at_penalty = difference("top_p - none at 0", arms, free), difference("top_p - none at -0.1", arms, own)
    if not (interaction.whole and at_0.whole):
        says = interaction.counted
    elif at_0.interval(0.9)[0] > NEAR:
        says = "falsified"
    elif interaction.interval()[0] > 0 and at_0.within:
        says = "holds"
    else:
        says = "undecided"
    return Verdict("P", says, says in ("falsified", "holds"), (interaction, at_0, at_penalty), of_actions(arms))


FOUR = ("std_none", "std_top_p", "free_none", "free_top_p")


def of_actions(arms: Arms) -> list[str]:
    """The secondary prediction: by how much the actions change in each arm, and whether only std_none stops acting."""
    change = {arm: difference(f"change of actions, {arm}", arms, {arm: 1}, actions_change) for arm in FOUR}
    said = [f"{found.says}: {shown(found)}" for found in change.values()]
    if not all(found.whole for found in change.values()):
        return [*said, f"secondary: {change['std_none'].counted}"]
    falls = {arm for arm, found in change.items() if found.mean <= ACTIONS_FALL}
    late = difference("", arms, {"std_none": 1}, late_actions)
    lost = difference("", arms, {"std_none": 1}, gained)
    verdict = "as predicted" if falls == {"std_none"} else f"not as predicted: {', '.join(sorted(falls)) or 'none'}"
    if lost.interval()[1] < 0 and late.mean > ACTIONS_STAY:
        verdict += "; success falls in std_none while its actions stay: the account is wrong"
    return [*said, f"secondary, {ACTIONS_FALL} or lower in std_none alone: {verdict}"]


def actions_change(run: Kept) -> float | None:
    """Actions an episode of the last ten steps minus those of the first ten."""
    early, late = early_actions(run), late_actions(run)
    return None if early is None or late is None else late - early


def gained(run: Kept) -> float | None:
    """Success after the last step minus that before training."""
    before = start(run)
    return None if before is None else last_success(run) - before


def does_one_divisor_do_it(arms: Arms) -> Verdict:
    """A."""
    first = difference("window_none - std_none", arms, {"window_none": 1, "std_none": -1})
    then = difference("window_none - std_top_p", arms, {"window_none": 1, "std_top_p": -1})
    record = difference(
        "interaction of divisor and filter, for the record",
        arms,
        {"std_top_p": 1, "std_none": -1, "window_top_p": -1, "window_none": 1},
    )
    says, decided = above_0(first)
    if decided and then.whole:
        low, high = then.interval(0.9)
        apart = "worse than the filter" if high < -NEAR else "better than the filter" if low > NEAR else ""
        says += f"; {'as good as the filter' if then.within else apart or 'undecided whether as good as the filter'}"
    return Verdict("A", says, decided, (first, then, record))


def above_0(found: Difference) -> tuple[str, bool]:
    """Whether a difference is above 0, and whether that is decided."""
    low, high = found.interval()
    if not found.whole:
        return found.counted, False
    return ("holds", True) if low > 0 else ("fails", True) if high < 0 else ("undecided", False)


def do_regularisers_harm(arms: Arms) -> Verdict:
    """B."""
    pair = {"largest": 1, "smallest": -1}
    success = difference("largest - smallest", arms, pair)
    says, decided = above_0(success)
    doses = {arm: [value for run in arms[arm].values() if (value := dose(run)) is not None] for arm in pair}
    if success.whole and all(doses.values()):
        large, small = (statistics.fmean(doses[arm]) for arm in pair)
        if abs(large / small - 1) > SAME_DOSE:
            says, decided = f"not judged: the bonus weighs {large:.3f} in largest and {small:.3f} in smallest", False
        elif success.within:
            says, decided = f"{says}; only the dose matters", True
    return Verdict("B", says, decided, (success, difference_of_mi(arms)), [_doses(doses)])


def _doses(doses: Mapping[str, Sequence[float]]) -> str:
    said = ", ".join(f"{statistics.fmean(own):.4f} in {arm}" for arm, own in doses.items() if own)
    return f"summed weight of the bonus, of 1: {said or 'no run yet'}"


def dose(run: Kept) -> float | None:
    """The summed weight of the entropy bonus in a step, mean over the run: 1 if it is on every trajectory."""
    return mean(run.series(BONUS_WEIGHT).values())


def difference_of_mi(arms: Arms) -> Difference:
    """MI of largest - smallest at the last evaluation at which both have the wanted validity."""
    found, left_out = dict[int, float](), changed_start(arms)
    for seed in sorted(arms["largest"].keys() & arms["smallest"].keys()):
        pair = arms["largest"][seed], arms["smallest"][seed]
        both = set.intersection(*(set(run.series(MI)) for run in pair))
        valid = [step for step in both if all((validity(run, step) or 0.0) >= VALID for run in pair)]
        if valid and seed not in left_out:
            found[seed] = pair[0].series(MI)[max(valid)] - pair[1].series(MI)[max(valid)]
    return Difference("MI, largest - smallest, nats", found, len(SEEDS))


def validity(run: Kept, step: int) -> float | None:
    """The format validity of the ten steps that end with this one."""
    return mean(known(run, VALIDITY, step - EDGE, step))


def template_or_noise(arms: Arms) -> Verdict:
    """C, exploratory."""
    said = []
    for arm in LONG:
        for seed, run in sorted(arms[arm].items()):
            mi, noise = (change(run, key) for key in (MI, NOISE))
            at_end = validity(run, run.steps)
            said.append(
                f"{arm}, seed {seed}: {kind(run)} (MI {mi:+.2f}, H(Z|X) {noise:+.2f} nats, validity {at_end:.2f})"
            )
    runs = sum(len(arms[arm]) for arm in LONG)
    return Verdict("C", f"exploratory, {runs} of {len(LONG) * len(LONG_SEEDS)} runs", False, (), said)


def change(run: Kept, key: str) -> float:
    """The last value of a metric minus its first; NaN with fewer than two."""
    values = [*run.series(key).values()]
    return values[-1] - values[0] if len(values) > 1 else math.nan


def kind(run: Kept) -> str:
    """What became of the reasoning, by MI, H(Z|X) and the format validity at the end."""
    first = next(iter(run.series(NOISE).values()), math.nan)
    mi, noise, at_end = change(run, MI), change(run, NOISE), validity(run, run.steps)
    if at_end is None or math.isnan(mi + noise):
        return "unknown"
    if mi >= 0:
        return "neither: MI did not fall"
    if at_end < VALID or noise > STEADY * first:
        return "noise"
    return "template" if abs(noise) <= STEADY * first else "neither: MI and H(Z|X) fell"


def judged(runs: Sequence[Kept]) -> list[Verdict]:
    """The verdicts in their order; the first that is not decided makes those after it exploratory."""
    arms, confirmatory, found = by_arm(runs), True, list[Verdict]()
    for question in (is_it_the_penalty, does_one_divisor_do_it, do_regularisers_harm):
        one = question(arms)
        says = one.says if confirmatory or not one.differences[0].whole else f"{one.says} (exploratory)"
        found.append(Verdict(one.question, says, one.decided, one.differences, one.notes))
        confirmatory = confirmatory and one.decided
    return [*found, template_or_noise(arms)]


def shown(found: Difference) -> str:
    """The mean, its 95% interval, and every seed's value."""
    if not found.values:
        return found.counted
    low, high = found.interval()
    each = ", ".join(f"{seed}: {value:+.3f}" for seed, value in found.values.items())
    span = f" [{low:+.3f}, {high:+.3f}]" if math.isfinite(low) else ""
    return f"{found.mean:+.3f}{span} ({each})"


def arm_measures(run: Kept) -> dict[str, float | None]:
    """What is printed of a run beside the questions."""
    share, dependence = (next(reversed(run.series(key).values()), None) for key in (SHARE, DEPENDENCE))
    return {
        "success before": start(run),
        "success": last_success(run),
        "actions, first ten": early_actions(run),
        "actions, last ten": late_actions(run),
        "D": dependence,
        "D / surprise": share,
        "MI": next(reversed(run.series(MI).values()), None),
        "validity": validity(run, run.steps),
        "kept share": mean(run.series("kept_fraction").values()),
    }


def arm_means(arms: Arms) -> dict[str, dict[str, Any]]:
    """The means of each arm that has runs, with their number."""
    found = dict[str, dict[str, Any]]()
    for arm, own in arms.items():
        rows = [arm_measures(run) for run in own.values()]
        if rows:
            means = {key: mean([v for row in rows if (v := row[key]) is not None]) for key in rows[0]}
            found[arm] = {"runs": len(rows), **means}
    return found
