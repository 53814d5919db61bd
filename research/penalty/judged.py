"""The verdicts on the four questions of `plan`, from the condensed runs. Pure.

A comparison rests on the seeds whose runs all began with weights of one checksum; the others are named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.answers import change_of, early_actions, late_actions
from research.claims.statistics import known, latest, mean
from research.kept import DEPENDENCE, SHARE, SUCCESS, Kept, last_success, start
from research.mechanism import weighted
from research.penalty.plan import LONG, LONG_SEEDS, PARTS, SEEDS
from squelch.cluster.sweep.table import t_interval, text
from squelch.kit.process.terminal import known as told

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

    def over_seeds(self, level: float = 0.95) -> Mapping[str, Any]:
        """Mean and interval over the seeds, as of `t_interval`."""
        return t_interval([*self.values.values()], level)

    def ends(self, level: float = 0.95) -> tuple[float, float]:
        """The ends of the interval; infinite with fewer than two seeds."""
        found = self.over_seeds(level)
        return (-math.inf, math.inf) if found["low"] is None else (found["low"], found["high"])

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
        low, high = self.ends(0.9)
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
        value = weighted(weights, arms, measure, seed)
        if value is not None and seed not in left_out:
            found[seed] = value
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
    elif at_0.ends(0.9)[0] > NEAR:
        says = "falsified"
    elif interaction.ends()[0] > 0 and at_0.within:
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
    falls = {arm for arm, found in change.items() if found.over_seeds()["mean"] <= ACTIONS_FALL}
    late = difference("", arms, {"std_none": 1}, late_actions)
    lost = difference("", arms, {"std_none": 1}, change_of(SUCCESS))
    verdict = "as predicted" if falls == {"std_none"} else f"not as predicted: {', '.join(sorted(falls)) or 'none'}"
    if lost.ends()[1] < 0 and late.over_seeds()["mean"] > ACTIONS_STAY:
        verdict += "; success falls in std_none while its actions stay: the account is wrong"
    return [*said, f"secondary, {ACTIONS_FALL} or lower in std_none alone: {verdict}"]


def actions_change(run: Kept) -> float | None:
    """Actions an episode of the last ten steps minus those of the first ten."""
    early, late = early_actions(run), late_actions(run)
    return None if early is None or late is None else late - early


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
        low, high = then.ends(0.9)
        apart = "worse than the filter" if high < -NEAR else "better than the filter" if low > NEAR else ""
        says += f"; {'as good as the filter' if then.within else apart or 'undecided whether as good as the filter'}"
    return Verdict("A", says, decided, (first, then, record))


def above_0(found: Difference) -> tuple[str, bool]:
    """Whether a difference is above 0, and whether that is decided."""
    low, high = found.ends()
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
            mi, noise = (told(change_of(key)(run), "+.2f") for key in (MI, NOISE))
            at_end = told(validity(run, run.steps), ".2f")
            said.append(f"{arm}, seed {seed}: {kind(run)} (MI {mi}, H(Z|X) {noise} nats, validity {at_end})")
    runs = sum(len(arms[arm]) for arm in LONG)
    return Verdict("C", f"exploratory, {runs} of {len(LONG) * len(LONG_SEEDS)} runs", False, (), said)


def kind(run: Kept) -> str:
    """What became of the reasoning, by MI, H(Z|X) and the format validity at the end."""
    mi, noise, at_end = change_of(MI)(run), change_of(NOISE)(run), validity(run, run.steps)
    if at_end is None or mi is None or noise is None:
        return "unknown"
    first = next(iter(run.series(NOISE).values()))
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
    each = ", ".join(f"{seed}: {value:+.3f}" for seed, value in found.values.items())
    return f"{text(found.over_seeds(), '+')} ({each})"


def arm_measures(run: Kept) -> dict[str, float | None]:
    """What is printed of a run beside the questions."""
    return {
        "success before": start(run),
        "success": last_success(run),
        "actions, first ten": early_actions(run),
        "actions, last ten": late_actions(run),
        "D": latest(run, DEPENDENCE, run.steps),
        "D / surprise": latest(run, SHARE, run.steps),
        "MI": latest(run, MI, run.steps),
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
