"""The statistics of the claims: a metric of each run, its mean over seeds, and its paired difference of two arms. Pure.

A metric reads a run up to a horizon, a number of steps, and ignores whatever the run did later, so that a longer run
serves a claim about fewer steps. Only the correlations over groups (`of_groups`) are those of the whole run, which is
all that is kept of it. The beginning and the end of a run are the first and the last fifth of the horizon.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from research.kept import BLOCK, SUCCESS, Kept, apart
from squelch.cluster.sweep.table import t_interval
from squelch.kit.diagnosis.grounding import spearman
from squelch.kit.diagnosis.uncertainty import t_quantile, wilson_interval

Metric = Callable[[Kept, int], float | None]
"""(run, horizon) -> the metric; None if the run lacks it."""
Pairs = Sequence[tuple[str, str]]
"""Pairs of arms."""
ENDS = 0.2
LEVEL = 0.025
"""Error of each side of a 95% interval."""
FELL = 0.05
"""Loss of validation success since its best value that counts as a fall."""
LOST = 0.15
"""Share of the best smoothed MI whose loss counts as a fall, the tolerance of the alarm (docs/guide/reasoning.md)."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval. `runs`: seeds, pairs of seeds, or runs that it rests on."""

    mean: float | None
    low: float | None
    high: float | None
    runs: int
    interval: str = "t over seeds"
    note: str = ""
    """Which runs are left out, and why; an estimate without runs or note is of no run at all."""


def over(values: Iterable[float | None]) -> Estimate:
    """The mean of the known values with its t-interval."""
    found = t_interval([value for value in values if value is not None and math.isfinite(value)])
    return Estimate(found["mean"], found["low"], found["high"], int(found["n"] or 0))


@dataclass(frozen=True)
class Pool:
    """Every condensed run."""

    runs: Sequence[Kept]

    @cached_property
    def _by_arm(self) -> Mapping[tuple[str, str], list[Kept]]:
        found: dict[tuple[str, str], list[Kept]] = {}
        for run in self.runs:
            found.setdefault((run.recipe, run.arm), []).append(run)
        return found

    def arm(self, recipe: str, arm: str, steps: int) -> dict[int, Kept]:
        """The runs of an arm of at least so many steps by seed; of two with one seed, the longer. A run that ended for
        lack of signal counts with its planned steps."""
        own = sorted(self._by_arm.get((recipe, arm), ()), key=lambda run: run.horizon)
        return {run.seed: run for run in own if run.horizon >= steps}

    def mean(self, recipe: str, arm: str, metric: Metric, steps: int) -> Estimate:
        """Mean over seeds of an arm's metric."""
        runs = self.arm(recipe, arm, steps).values()
        return noted(over(metric(run, steps) for run in runs), len(runs))

    def paired(self, recipe: str, more: str, less: str, metric: Metric, steps: int) -> Estimate:
        """Mean over seeds of the metric of arm `more` minus that of arm `less`."""
        own, base = self.arm(recipe, more, steps), self.arm(recipe, less, steps)
        seeds = sorted(own.keys() & base.keys())
        both = [(metric(own[seed], steps), metric(base[seed], steps)) for seed in seeds]
        found = noted(over(a - b for a, b in both if a is not None and b is not None), len(seeds))
        return also(found, apart((own[seed], base[seed]) for seed in seeds))

    def ordered(self, recipe: str, arms: Sequence[str], metric: Metric, steps: int) -> Estimate:
        """Mean over seeds of the rank correlation of an arm's place with its metric; see `over_orders`."""
        places = {arm: float(place) for place, arm in enumerate(arms)}
        return self.across(recipe, arms, lambda run, _: places[run.arm], metric, steps)

    def across(self, recipe: str, arms: Sequence[str], first: Metric, second: Metric, steps: int) -> Estimate:
        """Mean over seeds of the rank correlation of two metrics over the arms, 0 if one of them does not differ; seeds
        that have every arm. Runs of one seed play the same tasks, so only seeds count as independent."""
        runs = [self.arm(recipe, arm, steps) for arm in arms]
        found, seeds = [], set.intersection(*(set(own) for own in runs))
        for seed in sorted(seeds):
            pairs = [(first(own[seed], steps), second(own[seed], steps)) for own in runs]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if len(known) == len(pairs):
                correlation = spearman([a for a, _ in known], [b for _, b in known])
                found.append(correlation if math.isfinite(correlation) else 0.0)
        estimate = noted(over_orders(found, len(arms)), len(seeds))
        return also(estimate, apart([own[seed] for own in runs] for seed in sorted(seeds)))


def also(found: Estimate, note: str) -> Estimate:
    """The estimate with one more note, which may be empty."""
    return replace(found, note="; ".join(part for part in (found.note, note) if part))


def noted(found: Estimate, seeds: int) -> Estimate:
    """The estimate, with a note if it rests on none of the seeds that were run."""
    return replace(found, note=f"none of {seeds} runs has the metric") if seeds and not found.runs else found


def over_orders(correlations: Sequence[float], size: int) -> Estimate:
    """Mean of rank correlations over `size` places each, with a t-interval.

    Few places have few orders, so that seeds may agree by chance. The interval is never narrower than that of
    correlations whose errors are (1 - mean^2) / sqrt(size - 1) each, and it also holds 0 unless in an exact test the
    mean differs significantly from that of random orders.
    """
    estimate = over(correlations)
    if estimate.mean is None or estimate.low is None or estimate.high is None:
        return estimate
    count = len(correlations)
    least = t_quantile(0.975, count - 1) * (1 - estimate.mean**2) / math.sqrt((size - 1) * count)
    low, high = min(estimate.low, estimate.mean - least), max(estimate.high, estimate.mean + least)
    if not by_chance(correlations, size):
        return replace(estimate, low=low, high=high)
    return replace(estimate, low=min(low, 0.0), high=max(high, 0.0), note="not significant against random orders")


def by_chance(correlations: Sequence[float], size: int) -> bool:
    """Whether random orders of `size` places agree as well with the wanted order, or as badly, with a probability above
    `LEVEL` on either side; exact, by enumeration."""
    squares = Counter(sum((a - b) ** 2 for a, b in enumerate(order)) for order in itertools.permutations(range(size)))
    sums: Counter[int] = Counter({0: 1})
    for _ in correlations:
        sums = _convolved(sums, squares)
    total = math.factorial(size) ** len(correlations)
    observed = sum((1 - found) * (size**3 - size) / 6 for found in correlations)  # Spearman's sum of squares
    above = sum(count for value, count in sums.items() if value <= observed + 1e-9) / total
    below = sum(count for value, count in sums.items() if value >= observed - 1e-9) / total
    return min(above, below) > LEVEL


def _convolved(first: Counter[int], second: Counter[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (a, m), (b, n) in itertools.product(first.items(), second.items()):
        found[a + b] += m * n
    return found


def known(run: Kept, key: str, above: float, until: float) -> list[float]:
    """The values of a metric at the steps in (above, until]."""
    return [value for step, value in run.series(key).items() if above < step <= until]


def mean(values: Collection[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def last(key: str) -> Metric:
    """The mean over the end of the run."""
    return lambda run, steps: mean(known(run, key, (1 - ENDS) * steps, steps))


def change(key: str) -> Metric:
    """The mean over the end minus the mean over the beginning."""

    def metric(run: Kept, steps: int) -> float | None:
        begin = mean(known(run, key, -1, ENDS * steps))
        end = mean(known(run, key, (1 - ENDS) * steps, steps))
        return None if begin is None or end is None else end - begin

    return metric


def at_end(key: str) -> Metric:
    """The last value; for validations and evaluations of the probe, which are few and large. None if the run ended
    before the horizon, unless its last value counts for the horizon, as that of a validation does (`kept.carried`)."""
    return lambda run, steps: None if ended_before(run, key, steps) else latest(run, key, steps)


def ended_before(run: Kept, key: str, steps: int) -> bool:
    """Whether a run ended before the horizon, so that its metric there is unknown."""
    return key != SUCCESS and steps > run.steps


def latest(run: Kept, key: str, steps: int) -> float | None:
    """The last value up to a step."""
    return next(iter(known(run, key, -1, steps)[::-1]), None)


def gained(key: str) -> Metric:
    """The last value minus the first; None as for `at_end`."""

    def metric(run: Kept, steps: int) -> float | None:
        values = known(run, key, -1, steps)
        return values[-1] - values[0] if len(values) > 1 and not ended_before(run, key, steps) else None

    return metric


def peak(key: str) -> Metric:
    """The largest value after the first, which was measured before training."""
    return lambda run, steps: max(known(run, key, 0, steps), default=None)


def least(key: str) -> Metric:
    """The smallest value after the first."""
    return lambda run, steps: min(known(run, key, 0, steps), default=None)


def trend(key: str) -> Metric:
    """Rank correlation of a metric with the step."""

    def metric(run: Kept, steps: int) -> float | None:
        found = [(step, value) for step, value in run.series(key).items() if step <= steps]
        return spearman([a for a, _ in found], [b for _, b in found]) if len(found) > 2 else None

    return metric


def of_block(run: Kept, key: str, step: int) -> float | None:
    """The mean of a metric over the ten steps that a step belongs to, by which such metrics are kept."""
    return run.series(key).get(math.ceil(step / BLOCK) * BLOCK)


def together(scored: str, each: str) -> Metric:
    """Rank correlation over the scorings of a scored metric with the mean of another over the ten steps around."""

    def metric(run: Kept, steps: int) -> float | None:
        pairs = [(value, of_block(run, each, step)) for step, value in run.series(scored).items() if step <= steps]
        known = [(a, b) for a, b in pairs if b is not None]
        return spearman([a for a, _ in known], [b for _, b in known]) if len(known) > 2 else None

    return metric


def where_least(each: str, scored: str, low: float) -> Metric:
    """The mean of the metric `each` over the ten steps around the scoring at which the metric `scored` is least; None
    if it never was below `low`."""

    def metric(run: Kept, steps: int) -> float | None:
        own = {step: value for step, value in run.series(scored).items() if step <= steps}
        at = min(own, key=lambda step: own[step], default=None)
        return None if at is None or own[at] >= low else of_block(run, each, at)

    return metric


def at_best(key: str) -> Metric:
    """A scored metric at the last scoring up to the best validation after the first; the paper's Table 5."""

    def metric(run: Kept, steps: int) -> float | None:
        checked = {step: value for step, value in run.series(SUCCESS).items() if 0 < step <= steps}
        if not checked:
            return None
        return latest(run, key, max(checked, key=lambda step: checked[step]))

    return metric


def of_groups(name: str) -> Metric:
    """The rank correlation over all groups of a run of reward variance with `name`, whatever the horizon."""
    return lambda run, steps: run.groups.get(name)


def true_share(run: Kept, steps: int) -> float | None:
    """At the end of the run, the judge's share of true first reasonings among those that name anything."""
    return _true(run, (1 - ENDS) * steps, steps)


def true_share_change(run: Kept, steps: int) -> float | None:
    """The same share at the end minus at the beginning."""
    begin, end = _true(run, -1, ENDS * steps), _true(run, (1 - ENDS) * steps, steps)
    return None if begin is None or end is None else end - begin


def true_share_since_first(run: Kept, steps: int) -> float | None:
    """The same share at the end minus at the first scoring."""
    first = next(iter(run.series("judge/names")), None)
    begin = None if first is None else _true(run, first - 1, first)
    end = _true(run, (1 - ENDS) * steps, steps)
    return None if begin is None or end is None else end - begin


def _true(run: Kept, above: float, until: float) -> float | None:
    right, names = (mean(known(run, f"judge/{name}", above, until)) for name in ("right", "names"))
    return right / names if right is not None and names else None


def bucket_ratio(part: str, low: int = 1, high: int = 6) -> Metric:
    """Log of the ratio of a part's gradient norm in one bucket of reward variance to another; mean over a run."""
    return _log_ratio(f"gradients/q{high}/{part}", f"gradients/q{low}/{part}")


def part_ratio(bucket: int, part: str, other: str) -> Metric:
    """Log of the ratio of two parts' gradient norms in one bucket of reward variance; mean over a run."""
    return _log_ratio(f"gradients/q{bucket}/{part}", f"gradients/q{bucket}/{other}")


def _log_ratio(above: str, below: str) -> Metric:
    def metric(run: Kept, steps: int) -> float | None:
        a, b = run.series(above), run.series(below)
        at = [step for step in a if step <= steps and step in b and a[step] > 0 and b[step] > 0]
        return mean([math.log(a[step] / b[step]) for step in at])

    return metric


def bucket_trend(part: str) -> Metric:
    """Rank correlation over the six buckets of reward variance with a part's gradient norm; mean over a run."""

    def metric(run: Kept, steps: int) -> float | None:
        by_bucket = [run.series(f"gradients/q{bucket}/{part}") for bucket in range(1, 7)]
        at = [step for step in by_bucket[0] if step <= steps and all(step in series for series in by_bucket)]
        found = [spearman(range(6), [series[step] for series in by_bucket]) for step in at]
        return mean([value for value in found if math.isfinite(value)])

    return metric


def shift(first: str, second: str, pool: Pool, recipe: str, more: str, less: str, steps: int) -> Estimate:
    """By how much more one arm moves the metric `first` from another arm than it moves `second`: mean over seeds of the
    difference of `first` at the end in the direction of its mean, minus the same of `second`. Absolute differences of
    single seeds would be moved by noise alone, and the noisier metric by more."""
    own, base = pool.arm(recipe, more, steps), pool.arm(recipe, less, steps)
    found = []
    for seed in sorted(own.keys() & base.keys()):
        ends = [(last(key)(own[seed], steps), last(key)(base[seed], steps)) for key in (first, second)]
        moved = [a - b for a, b in ends if a is not None and b is not None]
        if len(moved) == len(ends):
            found.append(moved)
    signs = [math.copysign(1.0, statistics.fmean(column)) for column in zip(*found, strict=True)]
    seeds = sorted(own.keys() & base.keys())
    estimate = noted(over(signs[0] * a - signs[1] * b for a, b in found), len(seeds))
    return also(estimate, apart((own[seed], base[seed]) for seed in seeds))


def narrowing(pool: Pool, recipe: str, near: Pairs, far: Pairs, metric: Metric, steps: int) -> Estimate:
    """By how much the paired difference of two arms, more minus less, is larger over the pairs `near` than over the
    pairs `far`: mean over the seeds that have all of them, of the mean over `near` minus the mean over `far`."""
    runs = [[(pool.arm(recipe, a, steps), pool.arm(recipe, b, steps)) for a, b in pairs] for pairs in (near, far)]
    seeds = sorted(set.intersection(*(set(a) & set(b) for pairs in runs for a, b in pairs)))
    found = []
    for seed in seeds:
        sides = [[(metric(a[seed], steps), metric(b[seed], steps)) for a, b in pairs] for pairs in runs]
        gaps = [[a - b for a, b in side if a is not None and b is not None] for side in sides]
        if all(len(gap) == len(side) for gap, side in zip(gaps, sides, strict=True)):
            found.append(statistics.fmean(gaps[0]) - statistics.fmean(gaps[1]))
    within = [(a[seed], b[seed]) for seed in seeds for pairs in runs for a, b in pairs]
    return also(noted(over(found), len(seeds)), apart(within, "pairs that"))


def warned(runs: Iterable[Kept], key: str, steps: int) -> Estimate:
    """Among runs whose success fell, the share in which the metric had fallen before, with Wilson's interval.

    A run whose success fell no later than the metric can warn at the earliest (`first_warning`) says nothing about the
    order. It is left out and counted in the note. This was changed after one run of the study had been seen: its
    success fell at step 30, the first validation, and no warning can come before step 30, so it counted as not warned
    whatever its MI did.
    """
    asked = list(runs)
    fell = [(run, at) for run in asked if (at := success_fell(run, steps)) is not None]
    firsts = [first_warning(run, key, steps) for run, _ in fell]
    early = [one for one, first in zip(fell, firsts, strict=True) if first is not None and first < one[1]]
    warnings = [(mi_fell(run, key, steps), at) for run, at in early]
    count = sum(warning is not None and warning < at for warning, at in warnings)
    left = len(fell) - len(early)
    note = f"left out, success fell before MI could warn: {left}" if left else ""
    if not early:
        quiet = f"success fell in none of {len(asked)}" if asked and not fell else ""
        return Estimate(None, None, None, 0, "Wilson", note or quiet)
    return Estimate(count / len(early), *wilson_interval(count, len(early)), len(early), "Wilson", note)


def first_warning(run: Kept, key: str, steps: int) -> int | None:
    """The earliest step at which `mi_fell` can find a fall: the fourth scoring, whose mean of three has another before
    it; None if there is none."""
    scored = [step for step in run.series(key) if step <= steps]
    return scored[3] if len(scored) > 3 else None


def success_fell(run: Kept, steps: int) -> int | None:
    """The first validation `FELL` below the best one before it; None if success never fell."""
    best = -math.inf
    for step, value in run.series(SUCCESS).items():
        if step <= steps and value <= best - FELL:
            return step
        best = max(best, value)
    return None


def mi_fell(run: Kept, key: str, steps: int) -> int | None:
    """The first scoring at which the mean of three in a row is `LOST` below the best such mean before it. MI that was
    never above 0 cannot fall."""
    best = -math.inf
    series = [(step, value) for step, value in run.series(key).items() if step <= steps]
    for three in zip(series, series[1:], series[2:], strict=False):
        value = statistics.fmean(each for _, each in three)
        if best > 0 and value < (1 - LOST) * best:
            return three[-1][0]
        best = max(best, value)
    return None
