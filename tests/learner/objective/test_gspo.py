"""GSPO's sequence ratio against its definition: one sequence after another, in a plain padded forward, by autograd."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.packed.packing import MIN_SAVED
from squelch.learner.batching import Row, collate, to_rows
from squelch.learner.config import LearnerConfig, ObjectiveConfig
from squelch.learner.objective.components import RATIOS, StepSize
from squelch.learner.objective.losses import TokenBatch, policy_loss, sequences_of, token_weights
from squelch.learner.policy.model import Policy
from squelch.learner.tensors import inputs_of
from tests.learner.models import load_model, make_groups
from tests.learner.plain import plain_model, plain_scores

CPU = torch.device("cpu")


def objective(algorithm: str, **changes: object) -> ObjectiveConfig:
    """The algorithm's, without an entropy bonus."""
    given = {"algorithm": algorithm, "objective": {"entropy_coefficient": 0.0, **changes}}
    return LearnerConfig.model_validate(given).objective


def rows_near(model: torch.nn.Module, config: ObjectiveConfig, spread: float) -> list[Row]:
    """Rows of several turns, some of groups with a long common prompt; log-probabilities that are off the model's own
    by `spread` nats a token."""
    groups = make_groups(3, turns=3)
    opening = np.arange(2 * MIN_SAVED, dtype=np.int32)
    rows = [
        dataclasses.replace(
            row, token_ids=np.concatenate([opening, row.token_ids]), positions=row.positions + len(opening)
        )
        for row in to_rows(groups, config)
    ]
    with torch.no_grad():
        own = plain_scores(model, rows, 1.0)[0].split([row.num_sampled for row in rows])
    rng = np.random.default_rng(0)
    noise = [spread * rng.standard_normal(row.num_sampled) for row in rows]
    return [
        dataclasses.replace(row, log_probs=(part.numpy() + off).astype(np.float32))
        for row, part, off in zip(rows, own, noise, strict=True)
    ]


def by_definition(model: torch.nn.Module, rows: Sequence[Row], config: ObjectiveConfig) -> tuple[torch.Tensor, int]:
    """-1/N sum_i min(s_i A_i, clip(s_i) A_i), a sequence at a time (Eq. 5 and 7), and how many clips bind."""
    parts = plain_scores(model, rows, 1.0)[0].split([row.num_sampled for row in rows])
    total, binding = torch.zeros(()), 0
    for row, log_probs in zip(rows, parts, strict=True):
        ratio = (log_probs - torch.from_numpy(row.log_probs)).mean().exp()
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        total = total - torch.minimum(ratio * row.advantage, clipped * row.advantage) / len(rows)
        binding += bool(clipped * row.advantage < ratio * row.advantage)
    return total, binding


def packed(policy: Policy, rows: Sequence[Row], config: ObjectiveConfig) -> tuple[float, torch.Tensor]:
    """Loss and whole gradient of the rows as the trainer computes them, in one micro-batch."""
    policy.zero_grad()
    micro = collate(rows)
    assert micro.forest.num_tokens < sum(row.length for row in rows), "the rows must share tokens"
    log_probs, entropies = policy(*inputs_of(micro, CPU), 1.0, False)
    rollout, lengths = torch.from_numpy(micro.rollout), torch.from_numpy(micro.lengths)
    weights = token_weights(lengths, config.aggregation, StepSize(len(rows), int(lengths.sum())))
    batch = TokenBatch(rollout, rollout, torch.from_numpy(micro.advantages), weights, sequences_of(lengths))
    loss = policy_loss(log_probs, entropies, batch, config, 1.0).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for _, p in sorted(policy.model.named_parameters())])


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.fixture(scope="module")
def pair(model_dir: Path) -> tuple[Policy, torch.nn.Module]:
    return Policy(load_model(model_dir)), plain_model(model_dir)


@pytest.mark.parametrize("spread", [1e-3, 1e-2])
def test_packed_sequences_of_several_turns_have_the_value_and_gradient_of_the_definition(
    pair: tuple[Policy, torch.nn.Module], spread: float
) -> None:
    policy, model = pair
    config = objective("gspo")
    rows = rows_near(model, config, spread)
    model.zero_grad()
    wanted, binding = by_definition(model, rows, config)
    wanted.backward()
    gradient = torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())])
    assert 0 < binding < len(rows), "some clips must bind and some not for this test to show both"
    found, own = packed(policy, rows, config)
    assert found == pytest.approx(wanted.item(), abs=1e-6)
    assert relative(own, gradient) < 1e-4


def test_on_policy_the_loss_and_gradient_are_grpos(pair: tuple[Policy, torch.nn.Module]) -> None:
    policy, model = pair
    gspo, grpo = objective("gspo"), objective("grpo")
    rows = rows_near(model, gspo, 0.0)
    (loss, gradient), (other_loss, other) = packed(policy, rows, gspo), packed(policy, rows, grpo)
    assert loss == pytest.approx(other_loss, abs=1e-6) and relative(gradient, other) < 1e-5


def test_off_policy_they_differ_by_the_ratio(pair: tuple[Policy, torch.nn.Module]) -> None:
    policy, model = pair
    wide = {"clip_low": 0.9, "clip_high": 9.0}
    rows = rows_near(model, objective("gspo"), 0.5)
    gradients = [packed(policy, rows, objective(name, **wide))[1] for name in ("gspo", "grpo")]
    assert relative(*gradients) > 0.01


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=6), min_size=1, max_size=6), st.randoms())
def test_the_ratio_is_the_root_of_the_product_and_a_lone_tokens_is_its_own(gaps: list[list[float]], random) -> None:
    order = list(range(sum(map(len, gaps))))
    random.shuffle(order)
    flat = torch.tensor([gap for row in gaps for gap in row], dtype=torch.float64)
    sequences = sequences_of(torch.tensor([len(row) for row in gaps]))
    found, _ = RATIOS["sequence"].ratio(flat[order], sequences[order])
    wanted = [float(np.prod(np.exp(row)) ** (1 / len(row))) for row in gaps]
    assert found.tolist() == pytest.approx([wanted[sequences[k]] for k in order])
