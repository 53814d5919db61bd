"""Hard negatives: does the reasoning tell its task from near variations of it?

The fixed probe's MI cannot exceed the entropy of its tasks, and stands there as soon as the reasoning names anything by
which a few random tasks differ. Here each task i has a cluster of prompts: its own, x_i0, and m others that differ from
it in one part (`envs.contract.Twinned`) or are the nearest of many. With l_ikj = log q(Z_ik | x_ij), nats:

    d_ik   = l_ik0 - log(1/(m+1) sum_(j=0..m) exp l_ikj)
    I_hard = mean over i of the mean over k of d_ik  <=  log(m+1)

It is 0 for a template. What it estimates depends on how clusters come about. Let S be a random cluster, whichever of
its members is the own task, J the place of that one in it, w the distribution of J given S, and p_w, p_u the mixtures
of q(.|x_j) with the weights w and with equal weights. If Z is sampled from q, then

    E I_hard = I(J; Z | S) + E KL(p_w || p_u)        and the last term is at most log(m+1) - E H(w)

- The own task is an exchangeable member (w is uniform) if its twins are mutual and equally likely as tasks, or if Z is
  sampled from every member in turn. Then I_hard is unbiased for the information within the cluster. As the others are
  drawn from a family of tasks, that is at most the information within the family, and so a lower bound of I(X;Z) of
  the distribution of the tasks.
- Otherwise I_hard bounds no information. With the nearest of drawn tasks, S shows which task it was made for (its
  centre), so that I(J;Z|S) is 0 and all of I_hard is the divergence. It still compares the steps of a run.

As for the probe's MI, tasks and clusters are fixed and only the sampling of reasonings is random: the same intervals.

Pure numpy in float64; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.fixed_probe import TaskMeans, bounds_of, task_means


@dataclass(frozen=True)
class HardEvaluation:
    """`mi`: I_hard by task, nats per sequence; `ceiling`: its largest possible value, the mean of log(m+1) over the
    tasks with a usable reasoning."""

    mi: TaskMeans
    ceiling: float

    def metrics(self) -> dict[str, float]:
        """Flat keys below `probe/hard/`; unknown values are NaN."""
        tasks = float((self.mi.count > 0).sum())
        return {"mi": self.mi.value, **bounds_of("mi", self.mi.interval()), "ceiling": self.ceiling, "tasks": tasks}


def read_hard(own: np.ndarray, others: np.ndarray, task: np.ndarray, num_tasks: int) -> HardEvaluation:
    """Computes an evaluation from n usable reasonings.

    Args:
        own: (n,) nats per sequence, of each reasoning under its own prompt.
        others: (n, m) of each reasoning under the other prompts of its cluster; NaN where that has fewer.
        task: (n,) index of each reasoning's task, below `num_tasks`.

    Raises ValueError without a reasoning, and for one without another prompt.
    """
    there = ~np.isnan(others)
    if not len(own) or not there.any(axis=1).all():
        raise ValueError(f"{len(own)} reasonings, each with another prompt; needed is one, and another prompt for each")
    terms = np.column_stack([own, np.where(there, others, -np.inf)])
    top = terms.max(axis=1)
    sizes = np.log(1.0 + there.sum(axis=1))
    mixture = top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - sizes
    return HardEvaluation(task_means(own - mixture, task, num_tasks), task_means(sizes, task, num_tasks).value)
