"""The answers' cross-scoring (squelch/kit/scoring/linking.py) against the method's plain form, and its counted floor.

An evaluation of the fixed probe scores every reasoning under every prompt, and every answer after its own reasoning and
after those of other tasks. The plain form feeds prompt, reasoning and answer of each pair as one sequence. The engine
feeds trees: what continuations share is fed once. `floor` is the ratio of the counted operations of both for the same
likelihoods, `reached` how much of it the engine's time shows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.cross_scoring.work import Operations, padded, random_policy, random_rows, small_shape
from squelch.kit.records.content import Picture
from squelch.kit.scoring.cross_scoring import CPU_TOKENS, CrossScorer
from squelch.kit.scoring.linking import Pairs, draw_references, score_links
from squelch.kit.scoring.token_trees import Path, tree_of

REASONING, ANSWER, SAMPLES = 22, 12, 4
TIMED_PAIRS = 256


class Counting:
    """The engine, which counts the operations that its continuations need."""

    def __init__(self, engine: CrossScorer, operations: Operations) -> None:
        self.engine, self.operations, self.counted = engine, operations, 0.0

    def path_sums(
        self,
        prompts: Sequence[np.ndarray],
        rows: Sequence[Sequence[Sequence[Path]]],
        pictures: Sequence[Sequence[Picture]] | None = None,
    ) -> list[list[np.ndarray]]:
        """As `CrossScorer.path_sums`."""
        for prompt, own in zip(prompts, rows, strict=True):
            self.counted += trees_cost(self.operations, len(prompt), own)
        return self.engine.path_sums(prompts, rows, pictures)


def trees_cost(operations: Operations, prompt: int, rows: Sequence[Sequence[Path]]) -> float:
    """Operations of a prompt's continuations: the prompt is read once, each node is fed once, and each state from which
    a token is predicted meets the output head once."""
    cost = operations.linear * prompt + operations.attention * prompt * (prompt + 1) / 2 + operations.head
    for row in rows:
        tree = tree_of(row)
        seen = float((prompt + tree.depth + 1).sum())
        states = len(np.unique(tree.before[tree.before >= 0]))
        cost += operations.linear * len(tree.fed) + operations.attention * seen + operations.head * states
    return cost


def answers(name: str, prompt: int, tasks: int) -> dict[str, Any]:
    """One row: an evaluation of `tasks` tasks with SAMPLES pairs each, and TIMED_PAIRS random pairs by the plain
    form."""
    shape = small_shape(name)
    plain, operations = random_policy(shape), Operations.of(random_policy(shape))
    engine = Counting(CrossScorer(random_policy(shape), CPU_TOKENS), operations)
    prompts = random_rows(tasks, prompt, shape.vocab_size, 0)
    reasonings = random_rows(tasks * SAMPLES, REASONING, shape.vocab_size, 1)
    found = random_rows(tasks * SAMPLES, ANSWER, shape.vocab_size, 2)
    source = np.repeat(np.arange(tasks), SAMPLES)
    pairs = Pairs(reasonings, found, source, source)
    everything = np.ones((len(source), tasks), dtype=bool)
    references = draw_references(pairs, tasks, None, (0,))
    warm = Pairs(reasonings[:8], found[:8], source[:8], source[:8])
    score_links(engine.engine, prompts[:2], warm, everything[:8, :2], everything[:8, :2], references[:2, :8])
    start = time.thread_time()
    scores = score_links(engine, prompts, pairs, everything, everything, references)
    seconds = time.thread_time() - start
    drawn = np.random.default_rng(0).integers(len(source), size=(TIMED_PAIRS, 2))
    before = [np.concatenate([prompts[source[s]], reasonings[r]]) for s, r in drawn]
    start = time.thread_time()
    values = padded(plain, before, [found[s] for s, _ in drawn], [(i, i) for i in range(len(drawn))], CPU_TOKENS)
    peer = (time.thread_time() - start) / len(drawn)
    each = operations.plain(prompt + REASONING, ANSWER)
    likelihoods = len(source) ** 2 + len(source) * tasks
    return {
        "policy": f"{name}, answers",
        "vocabulary": shape.vocab_size,
        "prompt_tokens": prompt,
        "pairs": likelihoods,
        "engine_seconds": seconds,
        "peer_seconds": peer * likelihoods,
        "ratio": peer * likelihoods / seconds,
        "floor": each * likelihoods / engine.counted,
        "reached": (engine.counted / seconds) / (each / peer),
        "largest_difference_nats_per_token": float(np.abs(scores.swapped[tuple(drawn.T)] - values).max()) / ANSWER,
    }
