import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from squelch.kit.base.dotted import nested
from squelch.learner.config import KLConfig, ObjectiveConfig
from squelch.learner.objective.components import (
    ADVANTAGES,
    AGGREGATIONS,
    RATIOS,
    StepSize,
    clipped_surrogate,
    dual_clipped,
)
from squelch.learner.objective.kl_estimators import KL_ESTIMATORS
from squelch.learner.objective.losses import (
    SUM_NAMES,
    TokenBatch,
    entropy,
    kl_estimate,
    mismatch_metrics,
    mismatch_sums,
    mismatch_weight,
    policy_loss,
    sequence_mask,
    token_weights,
    value_loss,
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


def verl_losses(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float, c: float) -> torch.Tensor:
    """verl's formula: L = max(-A r, -A clip(r)); where A < 0 it is min(L, -A c)."""
    clipped = torch.stack([-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)]).amax(0)
    return torch.where(advantages < 0, torch.min(-advantages * c, clipped), clipped)


def test_dual_clip_is_verls() -> None:
    ratio = torch.linspace(0.05, 8, 60, dtype=torch.float64)
    for advantage in (-2.0, -0.3, 0.0, 0.3, 2.0):
        ours, theirs = ratio.clone().requires_grad_(), ratio.clone().requires_grad_()
        advantages = torch.full_like(ratio, advantage)
        found = dual_clipped(clipped_surrogate(ours, advantages, 0.2, 0.28), advantages, 3.0)
        expected = verl_losses(theirs, advantages, 0.2, 0.28, 3.0)
        found.sum().backward()
        expected.sum().backward()
        assert torch.equal(found, expected) and torch.equal(ours.grad, theirs.grad)
        assert advantage >= 0 or found.max() == -3 * advantage


def test_a_dual_clip_bounds_tokens_and_whole_sequences_and_is_counted() -> None:
    ratio, zeros = tensor(4.0, 4.0, 2.0), torch.zeros(3, dtype=torch.float64)
    batch = TokenBatch(zeros, zeros, tensor(-1.0, 1.0, -1.0), zeros + 1, torch.arange(3))
    losses = {}
    for kind in RATIOS:
        for bound in (None, 3.0):
            config = ObjectiveConfig(ratio=kind, dual_clip=bound, entropy_coefficient=0)
            terms = policy_loss(ratio.log(), zeros, batch, config, 1.0)
            losses[kind, bound] = float(terms.loss)
            clipped = terms.sums[SUM_NAMES.index("clip_fraction_high")]
            assert clipped == (1 if bound is None else 2)
    assert losses == pytest.approx({(kind, bound): (bound or 4) - 1.28 + 2 for kind, bound in losses})


@pytest.mark.parametrize("bound", [1.0, 0.5, -3.0])
def test_a_dual_clip_below_the_ratio_of_an_unchanged_policy_is_refused(bound: float) -> None:
    with pytest.raises(ValidationError, match="greater than 1"):
        ObjectiveConfig(dual_clip=bound)


def test_sequence_mean_weighs_sequences_alike_and_token_mean_tokens() -> None:
    lengths = torch.tensor([1, 3])
    per_sequence = token_weights(lengths, "sequence_mean", StepSize(4, 10))
    assert torch.allclose(per_sequence, torch.tensor([1 / 4, 1 / 12, 1 / 12, 1 / 12]))
    assert torch.allclose(token_weights(lengths, "token_mean", StepSize(4, 10)), torch.full((4,), 0.1))
    assert torch.allclose(token_weights(lengths, "constant", StepSize(4, 10, 25)), torch.full((4,), 0.01))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from(["sequence_mean", "token_mean"]))
def test_weights_of_a_whole_step_sum_to_one(lengths: list[int], aggregation: str) -> None:
    weights = token_weights(torch.tensor(lengths), aggregation, StepSize(len(lengths), sum(lengths)))
    assert math.isclose(float(weights.sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("table", "setting"),
    [(ADVANTAGES, "advantage"), (RATIOS, "ratio"), (AGGREGATIONS, "aggregation"), (KL_ESTIMATORS, "kl.estimator")],
)
def test_the_settings_allow_the_tables_entries_and_nothing_else(table: dict[str, object], setting: str) -> None:
    for name in table:
        assert ObjectiveConfig.model_validate(nested({setting: name}))
    with pytest.raises(ValidationError, match=f"Input should be '{next(iter(table))}'"):
        ObjectiveConfig.model_validate(nested({setting: "none of them"}))


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


def test_whose_gradient_each_kl_estimator_has_in_expectation() -> None:
    reference = tensor(0.2, 0.2, 0.6).log()
    logits = tensor(0.3, -0.2, 0.1).requires_grad_()
    log_p = logits.log_softmax(0)

    def gradient(total: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(total, logits, retain_graph=True)[0]

    of_policy = gradient((log_p.exp() * (log_p - reference)).sum())
    of_reference = gradient((reference.exp() * (reference - log_p)).sum())
    k1, k2, k3 = (
        gradient((log_p.exp().detach() * kl_estimate(log_p, reference, name)).sum()) for name in ("k1", "k2", "k3")
    )
    assert k1.abs().max() < 1e-12
    assert torch.allclose(k2, of_policy) and torch.allclose(k3, of_reference)
    assert not torch.allclose(of_policy, of_reference, rtol=0.1)


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
    weight = mismatch_weight((recomputed - tensor(-1.5, -0.5, -3.0)).exp(), 2.0)
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
        sequences=torch.arange(count) // 3,
        reference=-2 + 0.3 * draw() if reference else None,
    )


CONFIGS = [
    ObjectiveConfig(),
    ObjectiveConfig(anchor="recomputed", kl=KLConfig(coefficient=0.3)),
    ObjectiveConfig(kl=KLConfig(coefficient=0.3, estimator="k2"), entropy_coefficient=0.1),
    ObjectiveConfig(ratio="sequence", anchor="recomputed", clip_low=0.02, clip_high=0.03),
    ObjectiveConfig(kl=KLConfig(coefficient=0.3, estimator="k1", place="reward"), clip_low=0.0, clip_high=10.0),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_those_of_finite_differences(config: ObjectiveConfig) -> None:
    batch = batch_of(12)
    log_probs = (batch.anchor + 0.1 * torch.linspace(-1, 1, 12, dtype=torch.float64)).requires_grad_()
    entropies = torch.linspace(0.1, 1, 12, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda lp, h: policy_loss(lp, h, batch, config, 0.7).loss, (log_probs, entropies))


def test_loss_by_hand() -> None:
    one = tensor(0.0)
    batch = TokenBatch(one - 1, one - 1, one + 2, one + 0.5, one.long(), one - 1.5)
    config = ObjectiveConfig(entropy_coefficient=0.01, kl=KLConfig(coefficient=0.1))
    terms = policy_loss(one - 1.1, one + 3, batch, config, 0.9)
    k3 = math.exp(-0.4) - 1 + 0.4
    expected = 0.9 * 0.5 * (-math.exp(-0.1) * 2 + 0.1 * k3 - 0.01 * 3)
    assert math.isclose(float(terms.loss), expected, rel_tol=1e-12)
    sums = dict(zip(SUM_NAMES, terms.sums.tolist(), strict=True))
    assert math.isclose(sums["policy_loss"], -math.exp(-0.1))
    assert math.isclose(sums["kl"], k3) and sums["entropy"] == 3.0


@pytest.mark.parametrize("config", CONFIGS[:4])
def test_a_masked_token_that_overflows_leaves_loss_and_gradient_those_of_the_others(config: ObjectiveConfig) -> None:
    batch = batch_of(4)
    kept = torch.tensor([True, False, True, True])
    far = torch.full((4,), -900.0, dtype=torch.float64)
    masked = TokenBatch(
        rollout=batch.rollout.where(kept, far),
        anchor=batch.anchor.where(kept, far),
        advantages=-batch.advantages.abs(),
        weights=batch.weights * kept,
        sequences=torch.tensor([0, 1, 2, 2]),
        reference=batch.reference.where(kept, -far),
    )
    log_probs = batch.rollout.clone().requires_grad_()
    terms = policy_loss(log_probs, torch.ones(4, dtype=torch.float64), masked, config, 1.0)
    (found,) = torch.autograd.grad(terms.loss, log_probs)
    others = TokenBatch(*(None if value is None else value[kept] for value in vars(masked).values()))
    alone = log_probs.detach()[kept].requires_grad_()
    wanted = policy_loss(alone, torch.ones(3, dtype=torch.float64), others, config, 1.0)
    assert terms.loss.item() == pytest.approx(wanted.loss.item()) and terms.sums.isfinite().all()
    assert torch.allclose(found[kept], torch.autograd.grad(wanted.loss, alone)[0]) and found[1] == 0


FAR = {
    "above": (95.0, 1.0, 0.0),  # clipped in any case: without a bound, 0 times the ratio's inf
    "above, bad": (95.0, -1.0, 0.0),
    "below": (-95.0, -1.0, 0.0),
    "below, good": (-95.0, 1.0, 0.0),
    "reference": (0.0, 1.0, 95.0),
}


@pytest.mark.parametrize("rule", RATIOS)
@pytest.mark.parametrize("case", FAR)
def test_a_log_ratio_beyond_the_bound_is_clamped_has_no_gradient_and_is_counted(case: str, rule: str) -> None:
    gap, advantage, reference = FAR[case]
    own = torch.tensor([-1.0, -1.0], requires_grad=True)
    near, far = own.detach() - torch.tensor([0.1, gap]), own.detach() + torch.tensor([0.0, reference])
    batch = TokenBatch(near, near, torch.tensor([1.0, advantage]), torch.ones(2), torch.arange(2), far)
    config = ObjectiveConfig(ratio=rule, kl=KLConfig(coefficient=0.1), entropy_coefficient=0.0)
    terms = policy_loss(own, torch.zeros(2), batch, config, 1.0)
    terms.loss.backward()
    ratio, d = np.exp(min(max(gap, -20.0), 20.0)), min(reference, 20.0)
    kl = np.exp(d) - 1 - d
    clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
    first = -min(np.exp(0.1), 1 + config.clip_high)
    assert terms.loss.item() == pytest.approx(first - min(ratio * advantage, clipped * advantage) + 0.1 * kl, rel=1e-5)
    assert own.grad.isfinite().all() and own.grad[1].item() == (-1.0 if case == "reference" else 0.0)
    assert terms.sums[SUM_NAMES.index("clamped_share")] == 1


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_no_kl_estimate_overflows(estimator: str) -> None:
    found = kl_estimate(torch.tensor([-200.0, -1.0]), torch.tensor([-1.0, -200.0]), estimator)
    assert torch.equal(found, KL_ESTIMATORS[estimator](torch.tensor([20.0, -20.0])))


def test_gspo_clamps_the_mean_of_a_sequence_and_not_its_tokens() -> None:
    ratio, clamped = RATIOS["sequence"].ratio(tensor(95.0, -93.0, 60.0, 4.0), torch.tensor([0, 0, 1, 1]))
    assert ratio.tolist() == pytest.approx(np.exp([1.0, 1.0, 20.0, 20.0]).tolist())
    assert clamped.tolist() == [False, False, True, True]


def test_scale_multiplies_the_whole_loss() -> None:
    batch, config = batch_of(6), CONFIGS[1]
    log_probs, entropies = batch.anchor + 0.05, torch.ones(6, dtype=torch.float64)
    whole = policy_loss(log_probs, entropies, batch, config, 1.0).loss
    assert math.isclose(float(policy_loss(log_probs, entropies, batch, config, 0.25).loss), 0.25 * float(whole))


def test_recomputed_anchor_weighs_the_surrogate_by_the_mismatch() -> None:
    one = tensor(0.0)
    batch = TokenBatch(rollout=one - 1.2, anchor=one - 1.0, advantages=one + 1, weights=one + 1, sequences=one.long())
    config = ObjectiveConfig(anchor="recomputed", entropy_coefficient=0)
    terms = policy_loss(one - 1.0, one, batch, config, 1.0)
    assert math.isclose(float(terms.loss), -math.exp(0.2), rel_tol=1e-12)


def test_a_recomputed_anchor_without_a_cap_has_no_weight() -> None:
    one = tensor(0.0)
    batch = TokenBatch(rollout=one - 1.2, anchor=one - 1.0, advantages=one + 1, weights=one + 1, sequences=one.long())
    config = ObjectiveConfig(anchor="recomputed", mismatch_cap=0, entropy_coefficient=0)
    assert float(policy_loss(one - 1.0, one, batch, config, 1.0).loss) == -1


def test_clip_fractions_count_binding_clips_only() -> None:
    ratio = tensor(0.5, 0.5, 1.5, 1.5)
    zeros = torch.zeros(4, dtype=torch.float64)
    batch = TokenBatch(zeros, zeros, tensor(-1.0, 1.0, 1.0, -1.0), zeros + 0.25, torch.arange(4))
    sums = dict(
        zip(SUM_NAMES, policy_loss(ratio.log(), zeros, batch, ObjectiveConfig(), 1.0).sums.tolist(), strict=True)
    )
    assert (sums["clip_fraction_low"], sums["clip_fraction_high"]) == (1.0, 1.0)


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_micro_batch_without_tokens_adds_nothing_but_has_a_gradient(ratio: str) -> None:
    empty = torch.zeros(0, requires_grad=True)
    batch = TokenBatch(*(torch.zeros(0) for _ in range(4)), sequences=torch.zeros(0, dtype=torch.int64))
    terms = policy_loss(empty, torch.zeros(0), batch, ObjectiveConfig(ratio=ratio), 1.0)
    terms.loss.backward()
    assert terms.loss.item() == 0.0 and not terms.sums.any() and float(terms.ratio_max) == 0.0


def test_a_kl_in_the_reward_is_counted_but_no_term_of_the_loss() -> None:
    batch = batch_of(6)
    log_probs, entropies = batch.anchor + 0.05, torch.ones(6, dtype=torch.float64)
    without = policy_loss(log_probs, entropies, batch, ObjectiveConfig(), 1.0)
    inside = ObjectiveConfig(kl=KLConfig(coefficient=0.3, place="reward"))
    terms = policy_loss(log_probs, entropies, batch, inside, 1.0)
    assert float(terms.loss) == float(without.loss)
    assert terms.sums[SUM_NAMES.index("kl")] > 0


def test_a_sequence_is_left_out_by_its_mean_mismatch() -> None:
    rollout = tensor(-1.0, -1.0, -1.0, -1.0, -1.0)
    recomputed = tensor(-1.1, -0.9, -1.3, -0.9, -1.0)
    lengths = torch.tensor([2, 1, 2])
    assert sequence_mask(recomputed, rollout, lengths, 0.15).tolist() == [True, False, True]
    assert sequence_mask(recomputed, rollout, lengths, 0.06).tolist() == [False, False, True]


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=5), min_size=1, max_size=6), st.floats(0.01, 1))
def test_a_mask_looks_at_each_sequence_alone(gaps: list[list[float]], bound: float) -> None:
    lengths = torch.tensor([len(row) for row in gaps])
    whole = sequence_mask(tensor(*(d for row in gaps for d in row)), torch.zeros(int(lengths.sum())), lengths, bound)
    alone = [sequence_mask(tensor(*row), torch.zeros(len(row)), torch.tensor([len(row)]), bound) for row in gaps]
    assert whole.tolist() == [bool(one) for one in alone]


def test_the_mismatch_by_hand() -> None:
    ratios = tensor(1.0, 1.05, 1.2, 0.5)
    d = ratios.log()
    found = mismatch_metrics(
        mismatch_sums(d, torch.zeros(4, dtype=torch.float64), torch.tensor([True, False, True, False])).tolist()
    )
    assert found["mismatch_abs"] == pytest.approx(float(d.abs().mean()))
    assert found["mismatch_on_policy"] == pytest.approx(float(d[[0, 2]].abs().mean()))
    assert found["mismatch_k3"] == pytest.approx(float((ratios - 1 - d).mean()))
    assert found["mismatch_outside"] == 0.5
    assert found["effective_sample_size"] == pytest.approx(3.75**2 / (4 * (1 + 1.05**2 + 1.44 + 0.25)))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_the_effective_sample_size_is_a_share_and_whole_for_equal_weights(gaps: list[float]) -> None:
    share = mismatch_metrics(mismatch_sums(tensor(*gaps), torch.zeros(len(gaps)), torch.ones(len(gaps))).tolist())[
        "effective_sample_size"
    ]
    assert 1 / len(gaps) - 1e-9 <= share <= 1 + 1e-9
    equal = mismatch_sums(torch.full((7,), gaps[0], dtype=torch.float64), torch.zeros(7), torch.ones(7)).tolist()
    assert mismatch_metrics(equal)["effective_sample_size"] == pytest.approx(1)


def test_no_tokens_have_no_mismatch() -> None:
    none = mismatch_metrics([0.0] * 8)
    assert none["effective_sample_size"] == 1 and none["mismatch_abs"] == 0
    assert math.isnan(none["mismatch_on_policy"])


def test_the_value_loss_by_hand() -> None:
    values, before, returns = tensor(0.5, 0.5, -1.0), tensor(0.0, 0.4, 0.0), tensor(1.0, 1.0, 0.0)
    weights = tensor(0.5, 0.25, 0.25)
    # errors .25, .25, 1; those of the held values .2, .5, -.2: .64, .25, .04
    assert float(value_loss(values, before, returns, weights, 0.2)) == pytest.approx((0.32 + 0.0625 + 0.25) / 2)
    assert float(value_loss(values, before, returns, weights, 0.0)) == pytest.approx((0.125 + 0.0625 + 0.25) / 2)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_the_gradient_of_the_value_loss_is_that_of_finite_differences(clip: float) -> None:
    values = (torch.linspace(-1, 1, 9, dtype=torch.float64) + 0.013).requires_grad_()
    rest = [torch.full((9,), value, dtype=torch.float64) for value in (0.0, 0.37, 1 / 9)]
    assert torch.autograd.gradcheck(lambda v: value_loss(v, *rest, clip), (values,))


def test_a_value_that_moved_towards_its_return_beyond_the_clip_has_no_gradient() -> None:
    values = tensor(0.5, -0.5).requires_grad_()
    value_loss(values, tensor(0.0, 0.0), tensor(1.0, 1.0), tensor(1.0, 1.0), 0.2).backward()
    assert values.grad.tolist() == [0.0, -1.5]
