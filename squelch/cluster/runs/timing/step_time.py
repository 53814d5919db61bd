"""A model of a training step's wall time against the number of rollout workers. Pure.

A step plays a window of G groups; the learner's part follows: the filter's decision, the update, the weight sync, and
the step's records. Alone on W rollout workers a window takes

    window(W) = serial + parallel * ceil(G / W) / G

`parallel` are the seconds that one worker needs for what can be divided among workers. A group stays on one worker, so
the busiest worker plays ceil(G / W) of G groups, and a window does not use more workers than groups. `serial` are
the seconds that a window takes however many workers share it: the decoding of its longest trajectories, one token after
another.

At `max_staleness` S = 0 a step takes window(W) + learner. At S > 0 up to S + 1 windows are under way, and the model
follows the loop with constant times (`_followed`): windows under way share the workers equally, the learner takes them
one after another, and a window is issued as soon as admission allows it. It assumes that rollout workers and learner
share no processor.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MIN_STEPS = 4
"""Fewest steps from which a run's times are taken."""
MIN_STEPS_OF_A_SPLIT, MIN_SPREAD = 8, 0.1
"""Fewest steps, and smallest range of sampled tokens (10th to 90th percentile, as a share of the median), from which
`serial` and `parallel` can be separated within a run of one number of workers."""
FOLLOWED_STEPS = 120
"""Steps of the loop that the model follows. Half of them are a multiple of S + 1 for S up to 5, so that the mean covers
whole rounds."""
NEARLY = 1.05
"""Workers suffice if a step takes at most this multiple of the shortest possible."""


@dataclass(frozen=True)
class StepModel:
    """The constants of the model's head; seconds of one step. `groups`: G."""

    groups: int
    serial: float
    parallel: float
    train: float
    publish: float
    other: float
    """Seconds of filter, records and everything else between the last group and the step's record."""
    split: str = "measured"
    """How `serial` and `parallel` were separated, in words."""

    @property
    def learner(self) -> float:
        """Seconds from a window's last group to the step's record."""
        return self.train + self.publish + self.other

    def window(self, workers: int) -> float:
        """Seconds in which `workers` workers play a window alone."""
        return self.serial + self.parallel * self._busiest(workers)

    def _busiest(self, workers: int) -> float:
        """Share of a window's groups that the busiest worker plays."""
        return math.ceil(self.groups / workers) / self.groups

    def step(self, workers: int, staleness: int) -> float:
        """Seconds of a step in the long run. Steps that are followed may fall below the bound, by what the last ones
        have left to later ones."""
        if staleness == 0:
            return self.window(workers) + self.learner
        busiest = self._busiest(workers)
        followed = _followed(self.parallel * busiest, workers * busiest, self.serial, self.learner, staleness)
        return max(followed, self.bound(workers, staleness))

    def bound(self, workers: int, staleness: int) -> float:
        """Seconds below which no step can be in the long run: the learner is never idle, or the workers are not, or all
        S + 1 windows are always under way (Denning and Buzen, 1978)."""
        windows = staleness + 1
        capacity = self.parallel / min(workers, windows * self.groups)
        return max(self.learner, capacity, (self.window(workers) + self.learner) / windows)

    def idle_learner(self, workers: int, staleness: int) -> float:
        """Share of the time in which the learner neither trains nor publishes."""
        return 1.0 - (self.train + self.publish) / self.step(workers, staleness)

    def idle_workers(self, workers: int, staleness: int) -> float:
        """Mean share of the time in which a rollout worker has no group. Windows that overlap share the serial part."""
        used = min(workers, (staleness + 1) * self.groups)
        busy = self.serial * min(workers, self.groups) / workers + self.parallel / workers
        return max(0.0, 1.0 - min(busy / self.step(workers, staleness), used / workers))

    def enough(self, staleness: int) -> int:
        """The fewest workers with which a step is nearly as short as with any number of them (`NEARLY`)."""
        steps = {workers: self.step(workers, staleness) for workers in _counts((staleness + 1) * self.groups)}
        return next(workers for workers, step in steps.items() if step <= NEARLY * min(steps.values()))

    def limit(self, workers: int, staleness: int) -> str:
        """The actor that a step waits for: `learner`, `rollout workers`, or `one another` if more workers cannot help
        and the learner still waits."""
        if self.step(workers, staleness) <= NEARLY * self.learner:
            return "learner"
        return "rollout workers" if workers < self.enough(staleness) else "one another"

    def scaled(self, groups: int, group_size_ratio: float = 1.0) -> StepModel:
        """The model of steps with `groups` groups, each `group_size_ratio` times as large: generation that can be
        divided and training grow with the number of trajectories; all else stays."""
        ratio = groups / self.groups * group_size_ratio
        return replace(self, groups=groups, parallel=self.parallel * ratio, train=self.train * ratio)


def _counts(most: int) -> list[int]:
    """Numbers of workers from 1 to `most`: all of them to begin with, then each a tenth more than the one before."""
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, counts[-1] * 11 // 10)))
    return counts


def _followed(work: float, room: float, serial: float, learner: float, staleness: int) -> float:
    """Seconds a step of a loop with constant times, over the second half of `FOLLOWED_STEPS` steps.

    Args:
        work: seconds in which the workers play the part of a window that can be divided, if it is alone.
        room: number of windows that the workers could play at this speed at once; at least 1.
    """
    playing, played, training = dict[int, tuple[float, float]](), set[int](), None
    now, ends, issued = 0.0, list[float](), 0
    while len(ends) < FOLLOWED_STEPS:
        while issued <= len(ends) + staleness:
            playing[issued], issued = (work, serial), issued + 1
        if training is None and len(ends) in played:
            training = learner
        sharing = sum(left > 0 for left, _ in playing.values())
        rate = min(1.0, room / max(1, sharing))
        waits = [left / rate if left > 0 else rest for left, rest in playing.values()]
        tick = min([*waits, *([] if training is None else [training])])
        now += tick
        for (number, (left, rest)), wait in zip(list(playing.items()), waits, strict=True):
            ended = wait <= tick * (1 + 1e-9)
            playing[number] = (0.0 if ended else left - tick * rate, rest) if left > 0 else (0.0, rest - tick)
            if ended and left <= 0:
                del playing[number]
                played.add(number)
        if training is not None:
            training -= tick
            if training <= 1e-9 * learner:
                training = None
                ends.append(now)
    half = FOLLOWED_STEPS // 2
    return (ends[-1] - ends[half - 1]) / half


@dataclass(frozen=True)
class Observed:
    """Times of one run with a constant number of workers at staleness 0; one entry per usable step, seconds."""

    workers: int
    groups: int
    windows: tuple[float, ...]
    tokens: tuple[float, ...]
    """Tokens sampled in each window."""
    train: float
    publish: float
    other: float
    """Medians over the steps."""


def observed(lines: Sequence[Mapping[str, Any]], groups: int) -> list[Observed]:
    """The times in a run's metrics (`metrics.jsonl`) for each number of rollout workers that was up for `MIN_STEPS`
    usable steps. Not usable are the first step, which warms up, and steps during which validation, a checkpoint or a
    recovery hid a part of the play.

    Raises:
        ValueError: too few steps are usable.
    """
    steps = [line for line in lines if line["step"] > 0]
    usable = [line for before, line in itertools.pairwise(steps) if _undisturbed(before, line)]
    counts = Counter(_workers(line) for line in usable)
    found = [[line for line in usable if _workers(line) == count] for count in sorted(counts) if count]
    if not any(len(same) >= MIN_STEPS for same in found):
        raise ValueError(f"{len(usable)} of {len(steps)} steps are usable; at least {MIN_STEPS} are needed")
    return [_observed(same, groups) for same in found if len(same) >= MIN_STEPS]


def _observed(lines: Sequence[Mapping[str, Any]], groups: int) -> Observed:
    return Observed(
        _workers(lines[0]),
        groups,
        windows=tuple(line["seconds/rollout"] for line in lines),
        tokens=tuple(line["tokens/sampled"] for line in lines),
        train=statistics.median(line["seconds/train"] for line in lines),
        publish=statistics.median(line["seconds/publish"] for line in lines),
        other=statistics.median(_other(line) for line in lines),
    )


def _workers(line: Mapping[str, Any]) -> int:
    """Rollout workers that were up at the end of the step."""
    return sum(value == 1 for key, value in line.items() if key.startswith("up/rollout-"))


def _undisturbed(before: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    hidden = "seconds/validation" in before or "seconds/checkpoint" in line or "seconds/recovery" in line
    return not hidden and bool(line.get("seconds/train")) and line.get("seconds/rollout") is not None


def _other(line: Mapping[str, Any]) -> float:
    """Seconds of a step outside of play, update and weight sync."""
    known = sum(line[f"seconds/{part}"] for part in ("rollout", "train", "publish"))
    return max(0.0, line["seconds/step"] - known)


def fitted(runs: Sequence[Observed]) -> StepModel:
    """The model that fits these runs, which have the same number of groups a step. Runs with several numbers of workers
    separate `serial` and `parallel`; with one number, steps of more and of fewer tokens do.

    Raises:
        ValueError: the runs have different numbers of groups, or there is no run.
    """
    if len({run.groups for run in runs}) != 1:
        raise ValueError("the runs must have the same loop.prompts")
    groups = runs[0].groups
    points = [(math.ceil(groups / run.workers) / groups, statistics.median(run.windows)) for run in runs]
    if len({share for share, _ in points}) > 1:
        serial, parallel = _line(points)
        counts = ", ".join(str(count) for count in sorted({run.workers for run in runs}))
        split = f"measured with {counts} workers"
    else:
        serial, split = _serial_within(runs)
        share, window = points[0][0], statistics.median(window for _, window in points)
        serial = min(serial, window)
        parallel = (window - serial) / share
    return StepModel(
        groups,
        serial,
        parallel,
        train=statistics.fmean(run.train for run in runs),
        publish=statistics.fmean(run.publish for run in runs),
        other=statistics.fmean(run.other for run in runs),
        split=split,
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line, neither of them negative."""
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    if slope < 0:
        return statistics.fmean(y for _, y in points), 0.0
    if intercept < 0:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return intercept, slope


def _serial_within(runs: Sequence[Observed]) -> tuple[float, str]:
    """(`serial`, how it was found) from steps of different numbers of tokens: the seconds that a window without tokens
    would take, by the median of the slopes of all pairs of steps (Theil, 1950; Sen, 1968)."""
    steps = sorted(step for run in runs for step in zip(run.tokens, run.windows, strict=True))
    tokens = [count for count, _ in steps]
    unknown = "not known: all of it is taken as divisible, so more workers may help less"
    if len(steps) < MIN_STEPS_OF_A_SPLIT:
        return 0.0, unknown
    tenths = statistics.quantiles(tokens, n=10)
    if tenths[-1] - tenths[0] < MIN_SPREAD * statistics.median(tokens):
        return 0.0, unknown
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(steps) for b in steps[i + 1 :] if b[0] > a[0]]
    slope = max(0.0, statistics.median(slopes))
    serial = statistics.median(window - slope * count for count, window in steps)
    return max(0.0, serial), f"estimated from {len(steps)} steps of {tokens[0]:.0f} to {tokens[-1]:.0f} tokens"
