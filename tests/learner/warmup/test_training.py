"""The warm-up's training: batches, the loss, its gradient in parts, and the schedule."""

from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.play.codec import ChatCodec
from squelch.learner.warmup import tiny_model
from squelch.learner.warmup.demonstrations import Demonstration
from squelch.learner.warmup.training import Gradients, batch_loss, batches, learning_rate_factor, shared_prefix, warm_up
from tests.learner.warmup.small import SMALL, demonstrations


def fake(length: int, start: int) -> Demonstration:
    return Demonstration(np.arange(length, dtype=np.int32), np.arange(length) >= start)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 90), min_size=1, max_size=80),
    budget=st.integers(64, 400),
    seed=st.integers(0, 9),
)
def test_a_pass_holds_every_demonstration_once_and_keeps_the_token_budget(
    lengths: list[int], budget: int, seed: int
) -> None:
    all_of_them = [fake(length, 2) for length in lengths]
    passed = list(batches(all_of_them, budget, np.random.default_rng(seed)))
    assert sorted(id(one) for batch in passed for one in batch) == sorted(map(id, all_of_them))
    for batch in passed:
        assert len(batch) * max(len(one.token_ids) for one in batch) <= budget or len(batch) == 1


def test_the_shared_prefix_ends_where_sequences_part_and_before_what_is_demonstrated() -> None:
    assert shared_prefix([fake(10, 6), fake(12, 6)]) == 5
    parted = fake(10, 6)
    parted.token_ids[3] = 99
    assert shared_prefix([fake(10, 6), parted]) == 3
    parted.token_ids[0] = 99
    assert shared_prefix([fake(10, 6), parted]) == 0


def test_reading_the_shared_prefix_once_changes_neither_loss_nor_gradient(codec: ChatCodec) -> None:
    model = tiny_model.new_model(codec, SMALL, seed=1)
    some = demonstrations(codec, 6)
    prefix = shared_prefix(some)
    assert prefix > 20
    gradients = []
    for shared in (0, prefix):
        model.zero_grad()
        loss = batch_loss(model, some, codec.pad_id, shared)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for plain, once in zip(*gradients, strict=True):
        torch.testing.assert_close(once, plain, rtol=1e-3, atol=1e-6)


def test_a_batch_in_parts_has_the_gradient_of_the_whole(codec: ChatCodec) -> None:
    """Also where parts differ in size: a mean of the parts' means would be wrong."""
    model, some = tiny_model.new_model(codec, SMALL, seed=1), demonstrations(codec, 5)
    prefix = shared_prefix(some)
    whole = batch_loss(model, some, codec.pad_id, prefix)
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    with closing(Gradients(model, codec.pad_id, prefix)) as gradients:
        for count in (5, 1):
            loss = gradients.backward(some[:count])
            assert count == 1 or loss == pytest.approx(whole.item(), rel=1e-5)
            for parameter, one in zip(model.parameters(), wanted, strict=True):
                near = torch.allclose(parameter.grad, one, rtol=1e-3, atol=1e-6)
                assert near == (count == 5), "one sequence alone has another gradient"


def test_weights_do_not_depend_on_the_number_of_threads(codec: ChatCodec) -> None:
    before, weights = torch.get_num_threads(), []
    some = demonstrations(codec, 20)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = tiny_model.new_model(codec, SMALL, seed=1)
        warm_up(model, some, SMALL, 0, codec.pad_id)
        assert torch.get_num_threads() == threads
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.set_num_threads(before)
    assert torch.equal(*weights)


def test_the_loss_covers_demonstrated_tokens_only(codec: ChatCodec) -> None:
    """It equals the sum over demonstrated tokens of a plain forward of each sequence alone."""
    model, some = tiny_model.new_model(codec, SMALL, seed=1), demonstrations(codec, 4)
    total, count = 0.0, 0
    for one in some:
        ids = torch.from_numpy(one.token_ids.astype(np.int64))
        scores = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
        for position in np.flatnonzero(one.loss_mask):
            total -= float(scores[position - 1, ids[position]].detach())
            count += 1
    assert batch_loss(model, some, codec.pad_id, shared_prefix(some)).item() == pytest.approx(total / count, rel=1e-4)


def test_learning_rate_rises_then_falls_to_its_floor() -> None:
    factors = [learning_rate_factor(k / 100, SMALL) for k in range(101)]
    peak = int(np.argmax(factors))
    assert factors[0] == 0 and factors[peak] == pytest.approx(1, abs=0.01) and peak <= 4
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[-1] == pytest.approx(SMALL.final_learning_rate)
