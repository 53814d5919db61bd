"""The rules that an objective consists of: one table per kind of rule, one entry per rule.

An entry's key is the value of the setting (`learner.objective`), and the settings take their allowed values from these
tables: to add a rule, add one entry here and its test. `learner.objective.algorithms` lists the rules of each
algorithm, and docs/guide/algorithms.md holds the equations.

Invariants:

- Rules are pure. Rules on tensors use the tensors' own methods, so that this module imports no torch and the command
  line reads the settings quickly.
- A rule on tokens takes and returns one entry per sampled token, (num_sampled,); `sequences` (num_sampled,) int64 is
  the index of each token's sequence in its micro-batch. A sequence is one trajectory's sampled tokens, over all of its
  turns and segments. A rule with `one_advantage` receives complete sequences: no trajectory is then split between
  micro-batches (`ObjectiveConfig.needs_whole`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


# --- advantages of a group's trajectories ---


def centred(returns: np.ndarray) -> np.ndarray:
    """Centred returns, R - mean R (Definition E.2; Dr. GRPO, Liu et al. 2025)."""
    return returns - returns.mean()


def standardised(returns: np.ndarray) -> np.ndarray:
    """(R - mean R) / std R with the sample std, ddof = 1, as GRPO implementations use it (Shao et al. 2024, section
    4.1.2, does not specify ddof)."""
    return centred(returns) / returns.std(ddof=1)


@dataclass(frozen=True)
class AdvantageRule:
    """`of_group`: maps the returns of a group, (num_survivors,) float64 and not all equal, to their advantages."""

    of_group: Callable[[np.ndarray], np.ndarray]
    divides_by_std: bool = False
    needs_critic: bool = False
    """A critic computes the advantages (`learner.objective.gae`); those of the group are all 0."""


ADVANTAGES: dict[str, AdvantageRule] = {
    "grpo": AdvantageRule(standardised, divides_by_std=True),
    "grpo_no_std": AdvantageRule(centred),
    "gae": AdvantageRule(np.zeros_like, needs_critic=True),
}


# --- the ratio of the policy to its anchor, and how it is clipped ---

LOG_RATIO_BOUND = 20.0
"""Nats. A log-ratio is clamped to [-20, 20] before its exponential or a KL estimate is taken, as in verl: above 88 the
exponential overflows in float32, and 0 times inf makes the gradient of a clipped token NaN."""


def bounded(log_ratios: Tensor) -> Tensor:
    """Clamped to `LOG_RATIO_BOUND` either way: tokens beyond it have no gradient through the result."""
    return log_ratios.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def out_of_bounds(log_ratios: Tensor) -> Tensor:
    """The tokens that `bounded` clamps, a bool mask."""
    return log_ratios.abs() > LOG_RATIO_BOUND


def token_log_ratio(log_ratios: Tensor, sequences: Tensor) -> Tensor:
    """log pi(o_t) - log anchor(o_t) of each token (Schulman et al. 2017)."""
    return log_ratios


def sequence_log_ratio(log_ratios: Tensor, sequences: Tensor) -> Tensor:
    """log (pi(y_i) / anchor(y_i))^(1 / |y_i|), the mean of a sequence's log-ratios, at each of its tokens (GSPO, Zheng
    et al. 2025, Eq. 7)."""
    size = len(sequences)  # at least the number of sequences, which a GPU would have to be waited for
    totals = log_ratios.new_zeros(size).index_add(0, sequences, log_ratios)
    counts = log_ratios.new_zeros(size).index_add(0, sequences, log_ratios.new_ones(len(sequences)))
    return (totals / counts.clamp(min=1))[sequences]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) of each token (PPO's surrogate, asymmetric: appendix B.2)."""
    return -(ratio * advantages).minimum(ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def clipped_tokens(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The tokens whose gradient `clipped_surrogate` removes at its lower and at its upper end, two bool masks."""
    return (ratio < 1 - clip_low) & (advantages < 0), (ratio > 1 + clip_high) & (advantages > 0)


def dual_clipped(surrogate: Tensor, advantages: Tensor, bound: float) -> Tensor:
    """The surrogate loss of each token, where A < 0 at most bound |A| (dual clip, Ye et al. 2020, Eq. 5; verl's
    `clip_ratio_c`): beyond that the token has no gradient. `bound` > 1."""
    return surrogate.minimum(-bound * advantages).where(advantages < 0, surrogate)


@dataclass(frozen=True)
class RatioRule:
    """`log_ratio`: maps log pi - log anchor and `sequences` to the logarithm of the ratio of each token; `surrogate`:
    maps the ratio, the advantages and the two clipping ranges to the surrogate loss of each token; `clipped`: maps the
    same to the masks of the tokens that clipping silences, for the metrics."""

    log_ratio: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor, Tensor, float, float], Tensor] = clipped_surrogate
    clipped: Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]] = clipped_tokens
    one_advantage: bool = False
    """The rule requires that all tokens of a sequence have the same advantage."""

    def ratio(self, log_ratios: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """The ratio of each token, and the mask of those whose log-ratio is clamped."""
        found = self.log_ratio(log_ratios, sequences)
        return bounded(found).exp(), out_of_bounds(found)


RATIOS: dict[str, RatioRule] = {
    "token": RatioRule(token_log_ratio),
    "sequence": RatioRule(sequence_log_ratio, one_advantage=True),
}


# --- the weight of a sampled token in the mean ---


@dataclass(frozen=True)
class StepSize:
    """Numbers of sequences and of sampled tokens in one optimizer step, over all micro-batches and ranks."""

    num_sequences: int
    num_tokens: int
    normaliser_tokens: int = 0


def sequence_mean(lengths: Tensor, step: StepSize) -> Tensor:
    """1 / (num_sequences * length): the mean over sequences of the mean over their tokens (GRPO)."""
    return 1.0 / (lengths.double() * step.num_sequences)


def token_mean(lengths: Tensor, step: StepSize) -> Tensor:
    """1 / num_tokens: the mean over all tokens (DAPO)."""
    return lengths.double().fill_(1.0 / step.num_tokens)


def constant(lengths: Tensor, step: StepSize) -> Tensor:
    """1 / (num_sequences * normaliser_tokens): sum over tokens / constant, averaged over sequences (Dr. GRPO)."""
    return lengths.double().fill_(1.0 / (step.num_sequences * step.normaliser_tokens))


AGGREGATIONS: dict[str, Callable[[Tensor, StepSize], Tensor]] = {
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant": constant,
}
"""Each rule maps `lengths` (num_sequences,) int64, the sampled tokens of each sequence, to the weight of each of its
tokens, (num_sequences,) float64."""
