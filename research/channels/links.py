"""Channels from prompt to reasoning to answer whose links are known exactly, as a test of `kit.diagnosis.links`, and
from prompt to reasoning alone, as a test of `kit.diagnosis.fixed_probe`.

A channel has N prompts, which are the fixed tasks, finitely many reasonings and finitely many answers, with given
p(z|x) and p(a|x,z). All are enumerated, so every link is a sum:

    I(A;Z|X)   mean over x of E log p(a|x,z) - log p(a|x)                  p(a|x) = E_z p(a|x,z)
    D          mean over x of E log p(a|x,z) - log q(a|x)      q(a|x) the mean of p(a|x,z) over reasonings z of other x
    X past Z   mean over x of E log p(a|x,z) - log mean over x' of p(a|x',z)

Pure numpy in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.fixed_probe import ProbeEvaluation, read_probe
from squelch.kit.diagnosis.links import LinksEvaluation, read_links
from squelch.kit.diagnosis.metrics import SHARES
from squelch.kit.diagnosis.pair_budget import draw_pairs


@dataclass(frozen=True)
class LinkChannel:
    """`reasoning`: (num_prompts, num_reasonings) p(z|x); `answer`: (num_prompts, num_reasonings, num_answers)
    p(a|x,z), all above 0."""

    reasoning: np.ndarray
    answer: np.ndarray

    def information(self) -> float:
        """I(A;Z|X), nats."""
        return self._gain(np.einsum("xz,xza->xa", self.reasoning, self.answer)[:, None])

    def dependence(self) -> float:
        """D, nats."""
        num = len(self.reasoning)
        others = (self.reasoning.sum(axis=0) - self.reasoning) / (num - 1)
        return self._gain(np.einsum("xz,xza->xa", others, self.answer)[:, None])

    def past_reasoning(self) -> float:
        """X to A past Z, nats."""
        return self._gain(self.answer.mean(axis=0)[None])

    def expected_log(self) -> float:
        """E log p(a|x,z), -H(A|X,Z)."""
        return self._gain(np.ones((1, 1, 1)))

    def _gain(self, mixture: np.ndarray) -> float:
        """E log p(a|x,z) - log mixture; `mixture`: an array that broadcasts to the answers' shape."""
        joint = self.reasoning[:, :, None] * self.answer
        return float((joint * (np.log(self.answer) - np.log(mixture))).sum() / len(joint))


def named_channel(
    name: str, seed: int, num_prompts: int = 8, num_reasonings: int = 12, num_answers: int = 4
) -> LinkChannel:
    """One of CHANNELS. `decorative`: the answer depends on the prompt alone; `load_bearing`: on the reasoning alone,
    which varies within its prompt; `compressed`: on the reasoning alone, which is always the same for its prompt;
    `both`: on prompt and reasoning."""
    rng = np.random.default_rng(seed)
    by_prompt, by_reasoning = CHANNELS[name]
    logits = by_prompt * rng.normal(size=(num_prompts, 1, num_answers))
    logits = logits + by_reasoning * rng.normal(size=(1, num_reasonings, num_answers))
    logits = np.broadcast_to(logits, (num_prompts, num_reasonings, num_answers))
    reasoning = softmax(1.5 * rng.normal(size=(num_prompts, num_reasonings)))
    if name == "compressed":
        reasoning = np.eye(num_reasonings)[np.arange(num_prompts) % num_reasonings]
    return LinkChannel(reasoning, softmax(logits))


CHANNELS = {
    "decorative": (1.5, 0.0),
    "load_bearing": (0.0, 1.5),
    "compressed": (0.0, 1.5),
    "both": (1.0, 1.0),
}
"""By name: scale of the part of the answer's logits that depends on the prompt, and of that on the reasoning."""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def draw_links(
    channel: LinkChannel,
    samples: int | Sequence[int],
    rng: np.random.Generator,
    nulls: bool = True,
    references: int | None = None,
    others: int | None = None,
) -> LinksEvaluation:
    """An evaluation from `samples` pairs of each prompt, one number for all or one for each, with or without `nulls`.
    `references`: reasonings of each other prompt under which a prompt's answers are scored (with one number of samples
    for all only); `others`: other prompts under which an answer is; None: all. The curve repeats the answer's own
    likelihood, because the reasonings of a channel have no parts."""
    num = len(channel.reasoning)
    task = np.repeat(np.arange(num), samples)
    z = drawn(channel.reasoning[task], rng)
    a = drawn(channel.answer[task, z], rng)
    log_p = np.log(channel.answer)
    swapped, prompts = log_p[task[:, None], z, a[:, None]], log_p[np.arange(num), z[:, None], a[:, None]]
    curve = np.repeat(np.diag(swapped)[:, None], len(SHARES), axis=1)
    seed = (int(rng.integers(2**31)),)
    if references is not None:
        assert isinstance(samples, int)
        ranks = rng.random((num, num, samples)).argsort(axis=2).argsort(axis=2)
        chosen = (ranks < references).reshape(num, num * samples)[task] | (task[:, None] == task)
        swapped = np.where(chosen, swapped, np.nan)
    if others is not None:
        prompts = np.where(draw_pairs(task, num, others, seed), prompts, np.nan)
    return read_links(swapped, prompts, curve, task, task, np.ones(num), num, seed, nulls)


def probe_channel(num_tasks: int, strength: float, seed: int, strings: int = 12) -> np.ndarray:
    """(num_tasks, strings) log p(z|x), normalised; with strength 0 the same for every task."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, strings)) + strength * rng.normal(size=(num_tasks, strings))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def probe_information(log_p: np.ndarray) -> float:
    """I(X;Z) of a `probe_channel` with X uniform over its tasks, nats."""
    return float((np.exp(log_p) * (log_p - np.log(np.exp(log_p).mean(axis=0)))).sum(axis=1).mean())


def draw_probe(
    log_p: np.ndarray, samples: int, seed: int, others: int | None = None, nulls: bool = True
) -> ProbeEvaluation:
    """An evaluation from `samples` reasonings of each task of a `probe_channel`, each scored under `others` other
    tasks, or under all, with or without `nulls`."""
    rng, num = np.random.default_rng(seed), len(log_p)
    task = np.repeat(np.arange(num), samples)
    matrix = log_p[:, drawn(np.exp(log_p)[task], rng)].T.copy()
    if others is not None:
        matrix[~draw_pairs(task, num, others, (seed,))] = np.nan
    names = [f"probe-{i:03d}" for i in range(num)]
    return read_probe(matrix, np.ones(len(task)), task, task, names, np.ones(num), (seed,), nulls)


def drawn(probabilities: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,) one index from each row of (n, m) probabilities."""
    edges = np.cumsum(probabilities, axis=1)
    return (rng.random((len(edges), 1)) * edges[:, -1:] > edges).sum(axis=1)
