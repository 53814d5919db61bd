"""The policy objective on sampled tokens, in flat form: every argument has one entry per sampled token, (num_sampled,).

Invariants:

- Losses are weighted sums, never averages. Each token's weight already contains the normaliser of the WHOLE optimizer
  step (all micro-batches, all ranks), so that losses and gradients of micro-batches simply add up.
- The ratio, clipping, aggregation and KL estimator are looked up in `learner.objective.components`; this module never
  compares the name of a rule.
- The loss scale multiplies the whole loss, regularisers included (section 4.1).
- The anchor, the rollout's log-probabilities, the reference and the mismatch weight carry no gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from squelch.learner.config import KLConfig, ObjectiveConfig
from squelch.learner.objective.components import AGGREGATIONS, RATIOS, StepSize, bounded, dual_clipped, out_of_bounds
from squelch.learner.objective.kl_estimators import KL_ESTIMATORS

SUM_NAMES = (
    "loss",
    "policy_loss",
    "entropy",
    "kl",
    "ratio_mean",
    "clip_fraction_low",
    "clip_fraction_high",
    "advantage",
    "advantage_squared",
    "clamped_share",
)
"""Entries of `LossTerms.sums`; all except the two losses are unweighted sums over tokens."""


MISMATCH_NAMES = ("tokens", "absolute", "k3", "outside", "weight", "weight_squared", "on_policy", "on_policy_absolute")
MISMATCH_RANGE = (0.9, 1.1)
"""Probability ratios of learner to sampler inside this range are explained by numerics."""


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of one micro-batch; each field (num_sampled,), float32 except `sequences`. `reference` is None
    without a KL term."""

    rollout: Tensor
    """Log-probability under the policy that sampled the token, at the sampling temperature."""
    anchor: Tensor
    """Log-probability in the ratio's denominator: `rollout`, or the learner's at the start of the training step."""
    advantages: Tensor
    weights: Tensor
    """Share of each token in the optimizer step's mean; sums to 1 over all of its micro-batches and ranks."""
    sequences: Tensor
    """int64, the index of each token's sequence in the micro-batch."""
    reference: Tensor | None = None
    spared: Tensor | None = None
    """bool, the tokens that one term of the loss leaves out (`StepTerms.without`); None if there are none."""


@dataclass(frozen=True)
class LossTerms:
    """`loss`: scalar with gradient, to be summed over micro-batches. `sums`: (len(SUM_NAMES),) float64, detached."""

    loss: Tensor
    sums: Tensor
    ratio_max: Tensor


def token_weights(lengths: Tensor, aggregation: str, step: StepSize, totals: Tensor | None = None) -> Tensor:
    """Weight of each sampled token, (sum of lengths,) float32; `lengths`: (num_sequences,) its sampled tokens in the
    micro-batch; `totals`: those of the whole sequence, None if that is all in it."""
    return AGGREGATIONS[aggregation](lengths if totals is None else totals, step).repeat_interleave(lengths).float()


def sequences_of(lengths: Tensor) -> Tensor:
    """Index of each sampled token's sequence, (sum of lengths,) int64."""
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def mismatch_weight(ratio: Tensor, cap: float) -> Tensor:
    """min(ratio, cap), detached. `ratio`: learner at step start over sampler, computed by the objective's ratio
    rule."""
    return ratio.clamp(max=cap).detach()


def sequence_mask(
    recomputed: Tensor, rollout: Tensor, lengths: Tensor, bound: float, sequences: Tensor | None = None
) -> Tensor:
    """True, (num_sequences,), for sequences to learn from: those with mean |log learner - log sampler| <= `bound` nats.

    `recomputed` and `rollout` are (num_sampled,), sequence after sequence, each complete; `lengths` holds the tokens of
    each, and `sequences` is `sequences_of(lengths)`, which waits for a GPU unless it is given. Excluded sequences still
    count in the normaliser, so the weights of the others do not change.
    """
    sequences = sequences_of(lengths) if sequences is None else sequences
    total = torch.zeros(len(lengths), dtype=torch.float64, device=recomputed.device)
    total.index_add_(0, sequences, (recomputed - rollout).abs().double())
    return total <= bound * lengths


def mismatch_sums(own: Tensor, rollout: Tensor, on_policy: Tensor) -> Tensor:
    """Sums over tokens that `mismatch_metrics` needs, (len(MISMATCH_NAMES),) float64.

    `own`, `rollout`: log-probabilities of the learner and of the sampler, (num_sampled,). `on_policy`: whether the
    learner's present version sampled the token, (num_sampled,) bool; only then do both use the same policy weights.
    """
    d = (own - rollout).double()
    near = bounded(d)
    weight = near.exp()
    outside = (weight < MISMATCH_RANGE[0]) | (weight > MISMATCH_RANGE[1])
    terms = (torch.ones_like(d), d.abs(), weight - 1 - near, outside.double(), weight, weight.square())
    terms = (*terms, on_policy.double(), d.abs() * on_policy)
    return torch.stack([term.sum() for term in terms])


def mismatch_metrics(sums: Sequence[float]) -> dict[str, float]:
    """Mismatch metrics from sums over all ranks, with d = log learner - log sampler and w = exp(d).

    They are mean |d|, KL(sampler || learner) by the k3 estimator, the share of tokens with w outside [0.9, 1.1], and
    the effective sample size as a share, (sum w)^2 / (n sum w^2), in (0, 1]. `mismatch_on_policy` is mean |d| of the
    tokens that the present version sampled, NaN without any: the numerical difference, without drift between versions.
    """
    count, absolute, k3, outside, weight, square, on_policy, on_policy_absolute = sums
    tokens = max(count, 1.0)
    return {
        "mismatch_abs": absolute / tokens,
        "mismatch_on_policy": on_policy_absolute / on_policy if on_policy else math.nan,
        "mismatch_k3": k3 / tokens,
        "mismatch_outside": outside / tokens,
        "effective_sample_size": weight**2 / (tokens * square) if square > 0 else 1.0,
    }


def kl_estimate(log_probs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """KL(policy || reference) at tokens sampled from the policy, nats (Schulman, "Approximating KL divergence")."""
    return KL_ESTIMATORS[estimator](bounded(reference - log_probs))


def entropy(logits: Tensor) -> Tensor:
    """Exact entropy over the vocabulary, nats: logits (..., vocab_size) -> (...)."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def policy_loss(
    log_probs: Tensor,
    entropies: Tensor,
    batch: TokenBatch,
    config: ObjectiveConfig,
    scale: float,
    without: Literal["task", "regulariser"] = "task",
) -> LossTerms:
    """The loss of one micro-batch: scale * sum_t w_t (m_t surrogate + n_t (lambda_KL KL - lambda_H H)).

    m and n are 1, but m is 0 for spared tokens if `without` is `task`, and n is if it is `regulariser`.

    A KL term in the reward does not enter the loss; it is only recorded in the sums. With `anchor: recomputed` the
    ratio is taken to the learner at step start, and the surrogate is multiplied by `mismatch_weight` of anchor to
    rollout, which corrects for the sampler's numerics, unless `mismatch_cap` is 0. For a token of weight 0 the
    log-ratios to the anchor and to the reference are set to 0, so that its true ones, which may be huge, are in no
    metric. All log-ratios are `bounded`.
    """
    learned, rule = batch.weights > 0, RATIOS[config.ratio]
    ratio, clamped = rule.ratio((log_probs - batch.anchor).where(learned, 0), batch.sequences)
    surrogate = rule.surrogate(ratio, batch.advantages, config.clip_low, config.clip_high)
    if config.dual_clip is not None:
        surrogate = dual_clipped(surrogate, batch.advantages, config.dual_clip)
    if config.anchor == "recomputed" and config.mismatch_cap:
        mismatch, far = rule.ratio(batch.anchor - batch.rollout, batch.sequences)
        surrogate, clamped = surrogate * mismatch_weight(mismatch, config.mismatch_cap), clamped | (far & learned)
    kl, far = _kl(log_probs, batch.reference, learned, config.kl)
    weights = batch.weights if batch.spared is None else batch.weights.masked_fill(batch.spared, 0)
    of_task, of_rest = (weights, batch.weights) if without == "task" else (batch.weights, weights)
    policy = (of_task * surrogate).sum()
    regulariser = config.kl_in_loss * kl - config.entropy_coefficient * entropies
    loss = scale * (policy + (of_rest * regulariser).sum())
    return LossTerms(loss, *_statistics(loss, policy, ratio, entropies, kl, clamped | far, batch, config))


def _kl(log_probs: Tensor, reference: Tensor | None, learned: Tensor, config: KLConfig) -> tuple[Tensor, Tensor]:
    """The KL of each token, and the mask of those whose log-ratio is clamped."""
    if reference is None:
        return torch.zeros_like(log_probs), torch.zeros_like(learned)
    reference = reference.where(learned, log_probs.detach())
    return kl_estimate(log_probs, reference, config.estimator), out_of_bounds(reference - log_probs)


def value_loss(values: Tensor, before: Tensor, returns: Tensor, weights: Tensor, clip: float) -> Tensor:
    """sum_t w_t max((V - R)^2, (clip(V, V_0 - clip, V_0 + clip) - R)^2) / 2, scalar; every argument (num_sampled,).

    `before`: V_0, the values at the start of the training step. clip = 0 leaves the second term out.
    """
    error = (values - returns).square()
    if clip:
        held = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return (weights * error).sum() / 2


@torch.no_grad()
def _statistics(
    loss: Tensor,
    policy: Tensor,
    ratio: Tensor,
    entropies: Tensor,
    kl: Tensor,
    clamped: Tensor,
    batch: TokenBatch,
    config: ObjectiveConfig,
) -> tuple[Tensor, Tensor]:
    """Sums in the order of `SUM_NAMES`, and the largest ratio. Tokens count as clipped only where clipping removes the
    gradient."""
    advantages = batch.advantages
    low, high = RATIOS[config.ratio].clipped(ratio, advantages, config.clip_low, config.clip_high)
    if config.dual_clip is not None:
        high = high | ((ratio > config.dual_clip) & (advantages < 0))
    terms = (loss, policy, entropies, kl, ratio, low, high, advantages, advantages.square(), clamped)
    sums = torch.stack([term.sum(dtype=torch.float64) for term in terms])
    return sums, ratio.max() if len(ratio) else ratio.new_zeros(())
