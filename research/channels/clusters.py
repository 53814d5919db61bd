"""Channels from tasks of two parts to reasonings, whose hard negatives are known exactly, as a test of
`kit.diagnosis.hard_negatives`.

A task is a pair (a, b), all pairs are equally likely, and p(z|a,b) is given for finitely many reasonings z. A line is
all tasks that differ in a alone, or in b alone. The cluster of a task is it and up to PROBE_TWINS others of one of its
two lines, either as likely, so that twins are mutual. Every expectation is a sum, in nats:

    PartChannel.hard         the estimate's mean over all tasks with whole lines as clusters: KL(p(.|own) || mean of the
                             line)
    PartChannel.within       the information of the reasoning and the place in a line, as a difference of entropies
    PartChannel.information  I(X;Z) of all tasks
    Clustered.hard           the estimate's expectation for given tasks and clusters
    Clustered.information    I(X;Z) of given tasks, which the fixed probe estimates

Pure numpy in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from research.channels import links
from squelch.kit.diagnosis.fixed_probe import ProbeEvaluation, read_probe
from squelch.kit.diagnosis.hard_negatives import HardEvaluation, read_hard
from squelch.kit.scoring.settings import PROBE_TWINS


@dataclass(frozen=True)
class PartChannel:
    """`log_p`: (num_first, num_second, num_reasonings) log p(z|a,b)."""

    log_p: np.ndarray

    def information(self) -> float:
        """I(X;Z) of all tasks."""
        return self._gain(np.exp(self.log_p).mean(axis=(0, 1), keepdims=True))

    def hard(self) -> float:
        """The estimate's mean, with whole lines as clusters."""
        return float(np.mean([self._gain(np.exp(self.log_p).mean(axis=part, keepdims=True)) for part in (0, 1)]))

    def within(self) -> float:
        """The information of the reasoning and the place in a line."""
        p = np.exp(self.log_p)
        noise = -(p * self.log_p).sum(axis=2).mean()
        mixtures = (p.mean(axis=part) for part in (0, 1))
        return float(np.mean([-(q * np.log(q)).sum(axis=1).mean() - noise for q in mixtures]))

    def _gain(self, mixture: np.ndarray) -> float:
        return float((np.exp(self.log_p) * (self.log_p - np.log(mixture))).sum(axis=2).mean())


@dataclass(frozen=True)
class Clustered:
    """Tasks with their clusters. `own`: (num_tasks, num_reasonings) log p(z|x); `twins`: (num_tasks, m,
    num_reasonings)."""

    own: np.ndarray
    twins: np.ndarray

    def hard(self) -> float:
        """The estimate's expectation."""
        cluster = np.concatenate([self.own[:, None], self.twins], axis=1)
        return self._gain(np.exp(cluster).mean(axis=1))

    def information(self) -> float:
        """I(X;Z) of these tasks."""
        return self._gain(np.exp(self.own).mean(axis=0, keepdims=True))

    def _gain(self, mixture: np.ndarray) -> float:
        return float((np.exp(self.own) * (self.own - np.log(mixture))).sum(axis=1).mean())


def part_channel(sizes: tuple[int, int], strengths: tuple[float, float], seed: int, strings: int = 24) -> PartChannel:
    """A channel of Gaussian logits; `strengths`: how much the reasoning depends on the first and on the second part."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, 1, strings))
    logits = logits + strengths[0] * rng.normal(size=(sizes[0], 1, strings))
    logits = logits + strengths[1] * rng.normal(size=(1, sizes[1], strings))
    return PartChannel(np.log(np.maximum(links.softmax(logits), 1e-300)))


def clustered(channel: PartChannel, num_tasks: int, seed: int) -> Clustered:
    """`num_tasks` distinct random tasks, and the twins of each in one of its lines."""
    rng, (first, second) = np.random.default_rng(seed), channel.log_p.shape[:2]
    most = min(PROBE_TWINS, first - 1, second - 1)
    own, twins = [], []
    for task in rng.choice(first * second, size=num_tasks, replace=False):
        a, b = divmod(int(task), second)
        line, place = (channel.log_p[:, b], a) if rng.integers(2) == 0 else (channel.log_p[a], b)
        own.append(line[place])
        twins.append(line[rng.choice(np.delete(np.arange(len(line)), place), size=most, replace=False)])
    return Clustered(np.array(own), np.array(twins))


def draw_hard(drawn: Clustered, samples: int, seed: int) -> tuple[HardEvaluation, ProbeEvaluation]:
    """An evaluation from `samples` reasonings of each task against its twins, and that of the fixed probe from the same
    reasonings."""
    num, rng = len(drawn.own), np.random.default_rng(seed)
    task = np.repeat(np.arange(num), samples)
    z = links.drawn(np.exp(drawn.own[task]), rng)
    others = np.take_along_axis(drawn.twins[task], z[:, None, None], axis=2)[..., 0]
    hard = read_hard(drawn.own[task, z], others, task, num)
    names = [f"probe-{place:03d}" for place in range(num)]
    matrix = drawn.own[:, z].T
    return hard, read_probe(matrix, np.ones(len(z)), task, task, names, np.ones(num), (seed,), nulls=False)
