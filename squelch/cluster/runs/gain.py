"""The success of a validation, and the gain in success between two, each with its interval. Pure.

The tasks of a run's environments follow one another, as many of each. The run's figure is the mean of the environments'
figures by their weights; its interval adds up their variances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.envs.mixture import Mixture
from squelch.kit.diagnosis.uncertainty import paired_interval, wilson_interval


@dataclass(frozen=True)
class Part:
    """The tasks of one environment: its label, its share of the weights, and where its tasks are."""

    label: str
    share: float
    place: slice


def parts_of(mixture: Mixture, tasks: int) -> list[Part]:
    """The parts of a validation of so many tasks of each environment."""
    shares = mixture.shares.items()
    return [Part(label, share, slice(i * tasks, (i + 1) * tasks)) for i, (label, share) in enumerate(shares)]


def success_of(solved: np.ndarray, parts: Sequence[Part]) -> float:
    """Share of the tasks that were solved, by the environments' shares. `solved`: (num_tasks,) bool."""
    if len(parts) == 1:
        return float(solved.mean())
    return math.fsum(part.share * float(solved[part.place].mean()) for part in parts)


def success_interval(solved: np.ndarray, parts: Sequence[Part]) -> tuple[float, float]:
    """Wilson's 95% interval of `success_of`; of several environments for the number of tasks of one environment that
    would have no smaller variance, 1 / sum(share^2 / tasks)."""
    if len(parts) == 1:
        return wilson_interval(int(solved.sum()), len(solved))
    trials = 1 / math.fsum(part.share**2 / len(solved[part.place]) for part in parts)
    return wilson_interval(success_of(solved, parts) * trials, trials)


def pass_at(solved: np.ndarray, draws: int) -> np.ndarray:
    """(num_tasks,), the probability that one of `draws` samples of a task, drawn from those played without replacement,
    solves it (Chen et al. 2021, Eq. 1). `solved`: (num_tasks, num_samples) bool, num_samples >= draws."""
    total, right = solved.shape[1], solved.sum(axis=1)
    none = [math.comb(total - int(one), draws) / math.comb(total, draws) for one in right]
    return 1.0 - np.array(none)


def mean_interval(values: np.ndarray, parts: Sequence[Part]) -> tuple[float, float, float]:
    """(mean, low, high) of a share of each task, (num_tasks,), by the environments' shares, over the tasks."""
    mean, low, high = weighted_gain(np.zeros_like(values), values, parts)
    return mean, max(0.0, low), min(1.0, high)


def weighted_gain(before: np.ndarray, after: np.ndarray, parts: Sequence[Part]) -> tuple[float, float, float]:
    """As `gain_interval`, by the environments' shares."""
    gains = [(part.share, *gain_interval(before[part.place], after[part.place])) for part in parts]
    if len(gains) == 1:
        return gains[0][1:]
    mean = math.fsum(share * gain for share, gain, _, _ in gains)
    below = math.hypot(*(share * (gain - low) for share, gain, low, _ in gains))
    above = math.hypot(*(share * (high - gain) for share, gain, _, high in gains))
    return mean, mean - below, mean + above


def gain_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high): the paired gain in success on the same tasks, with its 95% interval, as `paired_interval`: it
    has a width even where no task was solved before or after.

    Args:
        before, after: (num_tasks,), success of the same tasks in the same order: bool, or the share of their samples.
    """
    return paired_interval(after.astype(np.float64) - before.astype(np.float64))
