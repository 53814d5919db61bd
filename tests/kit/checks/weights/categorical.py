"""Policies that draw each token from a known distribution: a table of contexts, whose scores are exact and fast."""

from __future__ import annotations

import numpy as np

from squelch.kit.checks.weights.data import HEAD, HEAD_MASS, Candidate, Sample, Scores, TokenScores
from squelch.kit.checks.weights.likelihood import NODE_TEMPERATURES

CONTEXTS, VOCABULARY = 2000, 40


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def language_like(seed: int = 0) -> np.ndarray:
    """(CONTEXTS, VOCABULARY) logits: from nearly certain contexts to open ones."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(CONTEXTS, VOCABULARY)) * rng.uniform(1.0, 4.0, (CONTEXTS, 1))


def trained(logits: np.ndarray, size: float, seed: int) -> np.ndarray:
    """The logits after a training step: each moves by about `size`."""
    return logits + size * np.random.default_rng(seed).normal(size=logits.shape)


class World:
    """Candidates by number, each a table of logits, and what they make of sampled tokens."""

    def __init__(self, tables: dict[int, np.ndarray], temperature: float = 1.0, **kinds: dict[int, bool]) -> None:
        self.tables, self.temperatures = tables, (1.0,) if temperature == 1 else (1.0, temperature)
        self.temperature = temperature
        self.candidates = [
            Candidate(n, f"checkpoint-{n}", **{kind: of.get(n, False) for kind, of in kinds.items()}) for n in tables
        ]
        every = [*NODE_TEMPERATURES, *self.temperatures]
        self.log_probs = {
            n: np.stack([log_softmax(table / one) for one in every]).astype(np.float64) for n, table in tables.items()
        }
        first = np.exp(log_softmax(next(iter(tables.values()))))
        order = np.argsort(-first, axis=1)[:, :HEAD]
        mass = np.take_along_axis(first, order, axis=1)
        self.order, self.inside = order, mass.cumsum(axis=1) - mass < HEAD_MASS

    def scores(self, samples: list[tuple[Sample, np.ndarray]]) -> Scores:
        """The samples with the contexts of their tokens."""
        tokens = [[self._tokens(n, one.completion, at) for one, at in samples] for n in self.tables]
        return Scores([one for one, _ in samples], self.candidates, self.temperatures, tokens)

    def _tokens(self, number: int, ids: np.ndarray, at: np.ndarray) -> TokenScores:
        found = self.log_probs[number][:, at, ids]
        last = np.exp(self.log_probs[number][-1, at])
        above = np.where(last > last[np.arange(len(ids)), ids][:, None], last, 0).sum(axis=1)
        logits = np.take_along_axis(self.tables[number][at], self.order[at], axis=1)
        head = np.where(self.inside[at], logits - logits.max(axis=1, keepdims=True), -np.inf)
        matches = (self.order[at] == ids[:, None]) & self.inside[at]
        place = np.where(matches.any(axis=1), matches.argmax(axis=1), -1)
        size = len(NODE_TEMPERATURES)
        return TokenScores(found[:size], found[size:], above, head, place)

    def recorded(self, number: int, ids: np.ndarray, at: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """What an exact engine records."""
        return log_softmax(self.tables[number][at] / temperature)[np.arange(len(ids)), ids]


def drawn(
    rng: np.random.Generator,
    logits: np.ndarray,
    temperature: float = 1.0,
    rollouts: int = 30,
    length: int = 60,
    top_p: float = 1.0,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, contexts) of each rollout, sampled from the logits."""
    found = []
    for _ in range(rollouts):
        at = rng.integers(0, len(logits), length)
        masses = np.exp(log_softmax(logits[at] / temperature))
        if top_p < 1:
            order = np.argsort(-masses, axis=1)
            sorted_ = np.take_along_axis(masses, order, axis=1)
            kept = np.where(sorted_.cumsum(axis=1) - sorted_ < top_p, sorted_, 0)
            np.put_along_axis(masses, order, kept, axis=1)
            masses /= masses.sum(axis=1, keepdims=True)
        draws = rng.random((length, 1))
        ids = np.minimum((masses.cumsum(axis=1) < draws).sum(axis=1), logits.shape[1] - 1)
        found.append((ids, at))
    return found


def sample_of(index: int, ids: np.ndarray, step: int = 1, claimed: tuple[int, int] | None = None, **more) -> Sample:
    """One rollout of one turn."""
    name = f"step {step}, row {index}"
    return Sample(name, step, name, np.array([0]), ids, claimed=claimed, **more)


def run_of(
    world: World,
    rng: np.random.Generator,
    sampled_by: dict[int, int | np.ndarray],
    claimed: dict[int, tuple[int, int]] | None = None,
    *,
    temperature: float | None = None,
    engine: float | None = None,
    recorded_at: float | None = None,
    recorded: bool = False,
    **how,
) -> Scores:
    """Scores of a run. `sampled_by`: of each step the number of the candidate, or its logits; `claimed`: by step, as
    `sampled_by` if None; `engine`: standard deviation of the error of recorded log-probabilities, None for none;
    `recorded_at`: their temperature, that of the sampling if None."""
    temperature = world.temperature if temperature is None else temperature
    samples = []
    for step, source in sampled_by.items():
        logits = world.tables[source] if isinstance(source, int) else source
        for index, (ids, at) in enumerate(drawn(rng, logits, temperature, **how)):
            claim = claimed[step] if claimed is not None else (source, source)
            values = None
            if engine is not None:
                exact = log_softmax(logits[at] / (recorded_at or temperature))[np.arange(len(ids)), ids]
                values = exact + engine * rng.normal(size=len(ids))
            samples.append((sample_of(index, ids, step, claim, engine=values, recorded=recorded), at))
    return world.scores(samples)
