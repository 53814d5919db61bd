import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from learner.config import KLConfig, ObjectiveConfig
from learner.objectives import (
    SUM_NAMES,
    TokenBatch,
    clipped_surrogate,
    entropy,
    kl_estimate,
    mismatch_weight,
    policy_loss,
    token_weights,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_surrogate_by_hand() -> None:
    ratio = tensor(1.5, 1.5, 0.5, 0.5, 1.1)
    advantages = tensor(2.0, -2.0, 2.0, -2.0, 1.0)
    # clipped at 1.28; not clipped (pessimistic); not clipped; clipped at 0.8; inside
    expected = tensor(-2.56, 3.0, -1.0, 1.6, -1.1)
    assert torch.allclose(clipped_surrogate(ratio, advantages, 0.2, 0.28), expected)


def test_a_binding_clip_takes_the_gradient_away_and_only_then() -> None:
    ratio = tensor(1.5, 1.5, 0.5, 0.5).requires_grad_()
    clipped_surrogate(ratio, tensor(1.0, -1.0, 1.0, -1.0), 0.2, 0.28).sum().backward()
    assert ratio.grad.tolist() == [0.0, 1.0, -1.0, 0.0]


def test_sequence_mean_weighs_sequences_alike_and_token_mean_tokens() -> None:
    lengths = torch.tensor([1, 3])
    per_sequence = token_weights(lengths, "sequence_mean", num_sequences=4, num_tokens=10)
    assert torch.allclose(per_sequence, torch.tensor([1 / 4, 1 / 12, 1 / 12, 1 / 12]))
    assert torch.allclose(token_weights(lengths, "token_mean", 4, 10), torch.full((4,), 0.1))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from(["sequence_mean", "token_mean"]))
def test_weights_of_a_whole_step_sum_to_one(lengths: list[int], aggregation: str) -> None:
    weights = token_weights(torch.tensor(lengths), aggregation, len(lengths), sum(lengths))
    assert math.isclose(float(weights.sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.5, -0.25]), ("k2", [0.125, 0.03125]), ("k3", [math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25])],
)
def test_kl_estimators_by_hand(estimator: str, expected: list[float]) -> None:
    estimate = kl_estimate(tensor(-1.0, -2.0), tensor(-1.5, -1.75), estimator)
    assert torch.allclose(estimate, tensor(*expected))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimators_have_the_exact_kl_as_expectation(estimator: str) -> None:
    policy, reference = tensor(0.5, 0.3, 0.2), tensor(0.2, 0.2, 0.6)
    exact = float((policy * (policy / reference).log()).sum())
    expected = float((policy * kl_estimate(policy.log(), reference.log(), estimator)).sum())
    assert math.isclose(expected, exact, rel_tol=1e-12)


def test_gradient_of_k1_vanishes_in_expectation_and_that_of_k2_is_the_kl_gradient() -> None:
    reference = tensor(0.2, 0.2, 0.6).log()
    logits = tensor(0.3, -0.2, 0.1).requires_grad_()
    log_p = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - reference)).sum(), logits, retain_graph=True)
    gradients = {}
    for estimator in ("k1", "k2"):
        weighted = (log_p.exp().detach() * kl_estimate(log_p, reference, estimator)).sum()
        (gradients[estimator],) = torch.autograd.grad(weighted, logits, retain_graph=True)
    assert gradients["k1"].abs().max() < 1e-12
    assert torch.allclose(gradients["k2"], exact)


def test_k1_as_a_loss_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="zero expected gradient"):
        KLConfig(coefficient=0.1, estimator="k1")
    assert KLConfig(estimator="k1").coefficient == 0


def test_entropy_by_hand() -> None:
    assert math.isclose(float(entropy(torch.zeros(8))), math.log(8), rel_tol=1e-6)
    p = np.array([0.7, 0.2, 0.1])
    assert math.isclose(float(entropy(torch.tensor(np.log(p)))), -(p * np.log(p)).sum(), rel_tol=1e-12)


def test_mismatch_weight_is_capped_and_detached() -> None:
    recomputed = tensor(-1.0, -1.0, -1.0).requires_grad_()
    weight = mismatch_weight(recomputed, tensor(-1.5, -0.5, -3.0), 2.0)
    assert torch.allclose(weight, tensor(math.exp(0.5), math.exp(-0.5), 2.0))
    assert not weight.requires_grad


def batch_of(count: int, seed: int = 0, reference: bool = True) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(count, generator=generator, dtype=torch.float64)  # noqa: E731
    return TokenBatch(
        rollout=-2 + 0.3 * draw(),
        anchor=-2 + 0.3 * draw(),
        advantages=draw(),
        weights=torch.full((count,), 1 / count, dtype=torch.float64),
        reference=-2 + 0.3 * draw() if reference else None,
    )


CONFIGS = [
    ObjectiveConfig(),
    ObjectiveConfig(anchor="recomputed", kl=KLConfig(coefficient=0.3)),
    ObjectiveConfig(kl=KLConfig(coefficient=0.3, estimator="k2"), entropy_coefficient=0.1),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_those_of_finite_differences(config: ObjectiveConfig) -> None:
    batch = batch_of(12)
    log_probs = (batch.anchor + 0.1 * torch.linspace(-1, 1, 12, dtype=torch.float64)).requires_grad_()
    entropies = torch.linspace(0.1, 1, 12, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda lp, h: policy_loss(lp, h, batch, config, 0.7).loss, (log_probs, entropies))


def test_loss_by_hand() -> None:
    one = tensor(0.0)
    batch = TokenBatch(one - 1, one - 1, one + 2, one + 0.5, one - 1.5)
    config = ObjectiveConfig(entropy_coefficient=0.01, kl=KLConfig(coefficient=0.1))
    terms = policy_loss(one - 1.1, one + 3, batch, config, 0.9)
    k3 = math.exp(-0.4) - 1 + 0.4
    expected = 0.9 * 0.5 * (-math.exp(-0.1) * 2 + 0.1 * k3 - 0.01 * 3)
    assert math.isclose(float(terms.loss), expected, rel_tol=1e-12)
    sums = dict(zip(SUM_NAMES, terms.sums.tolist(), strict=True))
    assert math.isclose(sums["policy_loss"], -math.exp(-0.1))
    assert math.isclose(sums["kl"], k3) and sums["entropy"] == 3.0


def test_scale_multiplies_the_whole_loss() -> None:
    batch, config = batch_of(6), CONFIGS[1]
    log_probs, entropies = batch.anchor + 0.05, torch.ones(6, dtype=torch.float64)
    whole = policy_loss(log_probs, entropies, batch, config, 1.0).loss
    assert math.isclose(float(policy_loss(log_probs, entropies, batch, config, 0.25).loss), 0.25 * float(whole))


def test_recomputed_anchor_weighs_the_surrogate_by_the_mismatch() -> None:
    one = tensor(0.0)
    batch = TokenBatch(rollout=one - 1.2, anchor=one - 1.0, advantages=one + 1, weights=one + 1)
    config = ObjectiveConfig(anchor="recomputed", entropy_coefficient=0)
    terms = policy_loss(one - 1.0, one, batch, config, 1.0)
    assert math.isclose(float(terms.loss), -math.exp(0.2), rel_tol=1e-12)


def test_clip_fractions_count_binding_clips_only() -> None:
    ratio = tensor(0.5, 0.5, 1.5, 1.5)
    zeros = torch.zeros(4, dtype=torch.float64)
    batch = TokenBatch(zeros, zeros, tensor(-1.0, 1.0, 1.0, -1.0), zeros + 0.25)
    sums = dict(
        zip(SUM_NAMES, policy_loss(ratio.log(), zeros, batch, ObjectiveConfig(), 1.0).sums.tolist(), strict=True)
    )
    assert (sums["clip_fraction_low"], sums["clip_fraction_high"]) == (1.0, 1.0)


def test_a_micro_batch_without_tokens_adds_nothing_but_has_a_gradient() -> None:
    empty = torch.zeros(0, requires_grad=True)
    batch = TokenBatch(*(torch.zeros(0) for _ in range(4)))
    terms = policy_loss(empty, torch.zeros(0), batch, ObjectiveConfig(), 1.0)
    terms.loss.backward()
    assert float(terms.loss) == 0.0 and not terms.sums.any() and float(terms.ratio_max) == 0.0
