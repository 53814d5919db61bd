"""Two sets of weights compared by what they say of the drawn tokens: those that the run claims, and others.

Of each comparison, recorded log-probabilities decide where they are exact enough (`recorded.py`), and otherwise the
likelihood of the ids (`likelihood.py`). Invariants:

- Weights are only compared with others. So rows whose own checkpoint was not saved fit something, and of all
  checkpoints one is never excluded.
- A row may be claimed by several checkpoints, one of which sampled it. For those that were not saved stand the nearest
  that were, before and after.
- Divergences below `SMALLEST_KL` are not decided by ids: the engine's rounding is as large.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from squelch.kit.checks.weights.data import Candidate, Sample, Scores, WeightClaims
from squelch.kit.checks.weights.likelihood import at, divergence, head_nodes, log_evidence, peak
from squelch.kit.checks.weights.recorded import Slope, slope, temperature_of

SMALLEST_KL = 1e-5
"""Nats a token."""
ENOUGH = 18.0
"""Nats, the product of tokens and divergence at which a mean log-ratio lies three standard errors from 0."""
SAME = 1e-7
"""Nats a token: weights whose root mean square difference is less are one."""
SAME_TEMPERATURE = 0.003
"""Relative: temperatures of recorded values that differ by less are one."""
LEAST_Z = 2.0
"""Standard errors over rollouts, beside the likelihood ratio, so that no single odd rollout excludes weights."""
FEWEST_ROLLOUTS = 8
FAR, FEWEST_FAR = 0.995, 20
"""The tail that shows whether the distributions were cut: the last `1 - FAR` of the mass, or as much as `FEWEST_FAR`
tokens of those drawn are expected in."""
Winner = Literal["claimed", "other", ""]


@dataclass(frozen=True)
class Comparison:
    """The claimed weights against others.

    Attributes:
        others: index of the candidate, by sample.
        winner: which of the two sampled the rows; empty if that is open.
        kl: divergence, nats a token.
        tokens: of rows for which the two are not the same.
        evidence: log-likelihood ratio in favour of the winner, or of the others if that is open, in nats.
        recorded: the slope from the claimed ones to the others, if log-probabilities were recorded.
    """

    others: tuple[int, ...]
    winner: Winner
    kl: float
    tokens: int
    evidence: float
    recorded: Slope | None

    @property
    def needed(self) -> float:
        """Tokens that decide by ids alone."""
        return ENOUGH / self.kl if self.kl >= SMALLEST_KL else math.inf

    @property
    def by_recorded(self) -> bool:
        """Whether recorded log-probabilities decided it."""
        return self.recorded is not None and self.recorded.decides


class Weighing:
    """The scores of all samples, as comparisons need them."""

    def __init__(self, scores: Scores, claims: WeightClaims) -> None:
        self.scores, self.claims = scores, claims
        order = sorted(range(len(scores.candidates)), key=lambda c: scores.candidates[c].number)
        self.candidates: list[Candidate] = [scores.candidates[c] for c in order]
        """By number."""
        self.samples: list[Sample] = list(scores.samples)
        self._tokens = [scores.tokens[c] for c in order]
        self.claimed = [self._claimed(one) for one in self.samples]
        """Of each sample the indices of the candidates that may have sampled it by the run's claims, the newest last;
        none if the run claims nothing."""
        self.own_saved = [self._is_saved(one) for one in self.samples]

    def by_step(self, of: Sequence[int]) -> dict[int | None, list[int]]:
        """Samples by their step, None where the files say none; steps in the order in which they begin."""
        found: dict[int | None, list[int]] = {}
        for s in of:
            found.setdefault(self.samples[s].step, []).append(s)
        return found

    # -- curves

    @cached_property
    def whole(self) -> np.ndarray:
        """(candidates, samples, NODES): log-likelihood by temperature."""
        return np.array([[one.nodes.sum(axis=1) for one in row] for row in self._tokens])

    @cached_property
    def head(self) -> np.ndarray:
        """(candidates, samples, NODES): that of the head, which no cut of the tail changes."""
        return np.array([[head_nodes(one).sum(axis=1) for one in row] for row in self._tokens])

    @cached_property
    def best(self) -> int:
        """The candidate with the largest likelihood of all samples."""
        return int(np.argmax([peak(curve).value for curve in self.whole.sum(axis=1)]))

    @cached_property
    def tail_is_whole(self) -> bool:
        """Whether the distributions' tails were sampled: by the claims, or if the run claims nothing, by the tokens."""
        if self.claims.cuts_tail is not None:
            return not self.claims.cuts_tail
        rows = self._tokens[self.best]
        above = np.concatenate([one.above for one in rows])
        own = np.exp(np.concatenate([one.exact[-1] for one in rows]))
        ranks = above + np.random.default_rng(0).random(len(own)) * own  # uniform if nothing is cut
        share = max(1 - FAR, FEWEST_FAR / max(1, len(ranks)))
        return share <= 0.1 and (ranks >= 1 - share).sum() >= share * len(ranks) / 3

    @property
    def curves(self) -> np.ndarray:
        """Those by which weights are compared."""
        return self.whole if self.tail_is_whole else self.head

    # -- recorded values

    @cached_property
    def recording_temperature(self) -> float | None:
        """The temperature of the engine's log-probabilities, each sample's under the candidate that is nearest to them;
        None if there are none."""
        values = self.engine(range(len(self.samples)))
        return self.fitted_temperature(values) if np.isfinite(values).any() else None

    def fitted_temperature(self, values: np.ndarray) -> float:
        """The temperature of log-probabilities of all samples' tokens, some of which are known: 1 or the claimed one,
        if the values are as near to that. Samples whose own weights were saved decide, if there are any: to others a
        training step looks like another temperature."""
        saved = np.repeat(np.array(self.own_saved, bool), [one.num_tokens for one in self.samples])
        if np.isfinite(values[saved]).any():
            values = np.where(saved, values, np.nan)
        cuts = np.cumsum([one.num_tokens for one in self.samples])[:-1]
        parts = np.split(values, cuts)
        known = [s for s, part in enumerate(parts) if np.isfinite(part).any()]
        finite = {s: np.isfinite(parts[s]) for s in known}
        nodes = {(c, s): row[s].nodes[:, finite[s]] for c, row in enumerate(self._tokens) for s in known}
        off = np.array(
            [[((nodes[c, s] - parts[s][finite[s]]) ** 2).sum(axis=1) for s in known] for c in range(len(self._tokens))]
        )  # (candidates, samples, NODES)
        nearest = off.min(axis=0).sum(axis=0).argmin()
        owns, best = off[:, :, nearest].argmin(axis=0), 1.0
        for _ in range(2):
            columns = np.concatenate([nodes[c, s] for c, s in zip(owns, known, strict=True)], axis=1)
            best, _ = temperature_of(joined([parts[s][finite[s]] for s in known]), columns)
            again = [
                [((at(nodes[c, s].T, best) - parts[s][finite[s]]) ** 2).sum() for s in known] for c in range(len(off))
            ]
            owns = np.array(again).argmin(axis=0)
        return next((one for one in self.scores.temperatures if abs(best / one - 1) < SAME_TEMPERATURE), best)

    def nearest(self, of: Sequence[int]) -> list[int]:
        """Of each sample the candidate whose values are nearest to the engine's; without these, the newest claimed."""
        return [self._nearest_to_recorded(s, range(len(self.candidates))) for s in of]

    def newest(self, of: Sequence[int]) -> list[int]:
        """Of each sample the newest claimed candidate, or without claims the best of all."""
        return [self.claimed[s][-1] if self.claimed[s] else self.best for s in of]

    def engine(self, of: Sequence[int]) -> np.ndarray:
        """The recorded log-probabilities of samples' tokens; NaN where there is none."""
        return joined([self._of_tokens(self.samples[s], self.samples[s].engine) for s in of])

    def trainer(self, of: Sequence[int]) -> np.ndarray:
        """Those of the trainer."""
        return joined([self._of_tokens(self.samples[s], self.samples[s].trainer) for s in of])

    def rollouts(self, of: Sequence[int]) -> np.ndarray:
        """A number of its rollout for each token."""
        numbers = {one: number for number, one in enumerate(dict.fromkeys(each.rollout for each in self.samples))}
        own = [self.samples[s] for s in of]
        return np.repeat([numbers[one.rollout] for one in own], [one.num_tokens for one in own])

    def values(self, of: Sequence[int], candidates: Sequence[int], temperature: float) -> np.ndarray:
        """The log-probabilities of samples' tokens, each under the candidate that is given for it."""
        return joined([self._values(c, s, temperature) for s, c in zip(of, candidates, strict=True)])

    def _values(self, candidate: int, sample: int, temperature: float) -> np.ndarray:
        one = self._tokens[candidate][sample]
        for column, exact in enumerate(self.scores.temperatures):
            if temperature == exact:
                return one.exact[column]
        return at(one.nodes.T, temperature)

    # -- comparisons

    def compare(self, of: Sequence[int], others: Sequence[int], threshold: float) -> Comparison:
        """The claimed weights of samples against others, one candidate for each. `threshold`: nats of evidence that
        exclude."""
        pairs = [(s, c) for s, c in zip(of, others, strict=True) if c not in self.claimed[s] and self.claimed[s]]
        differing, rivals = [s for s, _ in pairs], [c for _, c in pairs]
        owns = self._nearest_claimed(differing)
        temperature = self.scores.temperatures[-1]
        own, other = (self.values(differing, which, temperature) for which in (owns, rivals))
        kl = divergence(own, other)
        recorded = self._slope(differing, rivals)
        if recorded is not None and recorded.decides:
            winner: Winner = "other" if recorded.is_second else "claimed" if recorded.is_first else ""
            return Comparison(tuple(others), winner, kl, len(own), float((other - own).sum()), recorded)
        if not len(own) or kl < SMALLEST_KL:
            return Comparison(tuple(others), "", kl, len(own), 0.0, recorded)
        null, rival = self._sum(differing, owns), self._sum(differing, rivals)
        against = log_evidence(null, [rival], self.claims.temperature)
        newest = [self.claimed[s][-1] for s in differing]
        for_claimed = log_evidence(rival, [self._sum(differing, newest)], self.claims.temperature)
        if against >= threshold and self._z(differing, owns, rivals) >= LEAST_Z:
            return Comparison(tuple(others), "other", kl, len(own), against, recorded)
        if for_claimed >= threshold:
            return Comparison(tuple(others), "claimed", kl, len(own), for_claimed, recorded)
        return Comparison(tuple(others), "", kl, len(own), against, recorded)

    def excludes(self, of: Sequence[int], best: int, other: int, threshold: float) -> bool:
        """Whether samples that fit one candidate exclude another. `threshold`: as of `compare`."""
        if self.recording_temperature is not None:
            at_best, at_other = (self.values(of, [c] * len(of), self.recording_temperature) for c in (best, other))
            found = slope(self.engine(of), at_best, at_other, self.rollouts(of))
            if found.decides:
                return found.is_first
        null, rival = (self._sum(of, [c] * len(of)) for c in (other, best))
        return log_evidence(null, [rival], self.claims.temperature) >= threshold

    def are_same(self, of: Sequence[int], others: Sequence[int]) -> bool:
        """Whether others say what the claimed weights say."""
        pairs = [(s, c) for s, c in zip(of, others, strict=True) if self.claimed[s] and c not in self.claimed[s]]
        if not pairs:
            return True
        differing = [s for s, _ in pairs]
        own = self.values(differing, [self.claimed[s][-1] for s in differing], 1.0)
        other = self.values(differing, [c for _, c in pairs], 1.0)
        return float(np.sqrt(np.mean((own - other) ** 2))) < SAME if len(own) else True

    def _slope(self, of: Sequence[int], rivals: Sequence[int]) -> Slope | None:
        if self.recording_temperature is None or not of:
            return None
        recorded = self.engine(of)
        if not np.isfinite(recorded).any():
            return None
        owns = [self._nearest_to_recorded(s, self.claimed[s]) for s in of]
        first, second = (self.values(of, which, self.recording_temperature) for which in (owns, rivals))
        return slope(recorded, first, second, self.rollouts(of))

    def _nearest_to_recorded(self, sample: int, among: Sequence[int]) -> int:
        """The candidate, of some, that is nearest to a sample's recorded values."""
        recorded, temperature = self.engine([sample]), self.recording_temperature
        if len(among) == 1:
            return among[0]
        if temperature is None or not np.isfinite(recorded).any():
            return self.newest([sample])[0]
        off = [np.nansum((self._values(c, sample, temperature) - recorded) ** 2) for c in among]
        return among[int(np.argmin(off))]

    def _nearest_claimed(self, of: Sequence[int]) -> list[int]:
        """Of each sample the claimed candidate with the largest likelihood, at one temperature for all."""
        owns = [self.claimed[s][-1] for s in of]
        if all(len(self.claimed[s]) == 1 for s in of):
            return owns
        for _ in range(2):
            temperature = peak(self._sum(of, owns)).temperature
            values = {s: [float(at(self.curves[c, s], temperature)) for c in self.claimed[s]] for s in of}
            owns = [self.claimed[s][int(np.argmax(values[s]))] for s in of]
        return owns

    def _sum(self, of: Sequence[int], candidates: Sequence[int]) -> np.ndarray:
        return self.curves[list(candidates), list(of)].sum(axis=0)

    def _z(self, of: Sequence[int], owns: Sequence[int], rivals: Sequence[int]) -> float:
        """Mean log-ratio over rollouts against its standard error; 0 with too few rollouts."""
        own, rival = (peak(self._sum(of, which)).temperature for which in (owns, rivals))
        ratios: dict[Hashable, float] = {}
        for s, a, b in zip(of, owns, rivals, strict=True):
            ratio = float(at(self.curves[b, s], rival) - at(self.curves[a, s], own))
            ratios[self.samples[s].rollout] = ratios.get(self.samples[s].rollout, 0.0) + ratio
        values = np.array(list(ratios.values()))
        if len(values) < FEWEST_ROLLOUTS:
            return 0.0
        return float(values.mean() / max(values.std(ddof=1) / np.sqrt(len(values)), 1e-12))

    def _claimed(self, sample: Sample) -> list[int]:
        if sample.claimed is None:
            return []
        low, high = sample.claimed
        numbers = [one.number for one in self.candidates]
        inside = [c for c, number in enumerate(numbers) if low <= number <= high]
        before = [c for c, number in enumerate(numbers) if number < low and low not in numbers]
        after = [c for c, number in enumerate(numbers) if number > high and high not in numbers]
        return before[-1:] + inside + after[:1]

    def _is_saved(self, sample: Sample) -> bool:
        """Whether all checkpoints that a sample claims were saved."""
        if sample.claimed is None or sample.claimed[1] - sample.claimed[0] >= len(self.candidates):
            return False
        numbers = {one.number for one in self.candidates}
        return all(number in numbers for number in range(sample.claimed[0], sample.claimed[1] + 1))

    def _of_tokens(self, sample: Sample, values: np.ndarray | None) -> np.ndarray:
        if values is None:
            return np.full(sample.num_tokens, np.nan)
        return np.asarray(values, dtype=np.float64)[sample.mask]


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The values of all parts, in order; none of no parts."""
    return np.concatenate(parts) if parts else np.zeros(0)
