"""Blocks of queries and keys, as they are cut, joined and batched; attention itself is held to a dense mask in
`tests.learner.kernels.test_attention`."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from squelch.kit.packed import block_attention
from squelch.kit.packed.attention import packed_attention, plan
from squelch.kit.packed.block_attention import BATCH_PAIRS, KEPT_KEYS, SLACK, WASTE, Plan, batches, blocks
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import pack
from tests.kit.packed.test_packing import trees

CPU = torch.device("cpu")


def a_group(prompt: int, answers: list[int]) -> list[np.ndarray]:
    return [np.r_[np.arange(prompt), 1000 + 1000 * k + np.arange(size)] for k, size in enumerate(answers)]


def attend(
    rows: list[np.ndarray], dtype: torch.dtype = torch.float32, rounded: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Attention over the rows and the gradients of its inputs, of which all are rounded to one type first."""
    layout = Layout.of(pack(rows), CPU)
    size = len(layout.ends)
    generator = torch.Generator().manual_seed(0)
    q, k, v, up = (torch.randn(size, n, 8, generator=generator).to(rounded).to(dtype) for n in (4, 2, 2, 4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = Plan.of(layout.blocks, layout.sees, (4, 2)).attend(*inputs, 0.3)
    return out, *torch.autograd.grad(out, inputs, up)


@settings(deadline=None, max_examples=60)
@given(trees())
def test_every_token_is_asked_once_and_its_block_holds_all_that_it_sees(rows: list[np.ndarray]) -> None:
    forest = pack(rows)
    layout = Layout.of(forest, CPU)
    asked = np.concatenate([np.arange(*block.queries) for block in layout.blocks])
    assert asked.tolist() == list(range(forest.num_tokens))
    every = torch.arange(forest.num_tokens)
    for block in layout.blocks:
        keys = {key for span in block.keys for key in range(*span)}
        seen = layout.sees(torch.arange(*block.queries)[:, None], every).any(0).nonzero()[:, 0]
        assert set(seen.tolist()) <= keys


@settings(deadline=None, max_examples=60)
@given(trees())
def test_batches_hold_every_block_once_and_waste_no_more_than_is_said(rows: list[np.ndarray]) -> None:
    found = blocks(pack(rows))
    parts = batches(found)
    assert sorted(b.queries for part in parts for b in part) == sorted(b.queries for b in found)
    for part in parts:
        padded = len(part) * max(b.num_queries for b in part) * max(b.num_keys for b in part)
        own = sum(b.num_queries * b.num_keys for b in part)
        assert len(part) == 1 or padded <= min(WASTE * own + SLACK, BATCH_PAIRS)


def test_a_long_segment_is_cut_so_that_little_is_seen_in_vain() -> None:
    (long,) = [blocks(pack([np.arange(1200)]))]
    assert len(long) > 2 and sum(b.num_queries * b.num_keys for b in long) < 0.65 * 1200**2
    assert len(blocks(pack([np.arange(20)]))) == 1


def test_short_answers_to_a_long_prompt_are_asked_together_and_to_a_short_one_apart() -> None:
    def of_answers(prompt: int) -> int:
        return sum(b.queries[0] >= prompt for b in blocks(pack(a_group(prompt, [30] * 8))))

    assert of_answers(20) == 8
    assert of_answers(900) <= 4


def test_weights_computed_anew_have_the_gradients_of_those_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = a_group(40, [30, 25, 60])
    kept = attend(rows)
    monkeypatch.setattr(block_attention, "KEPT_KEYS", 0)
    assert all(one.equal(other) for one, other in zip(attend(rows), kept, strict=True))


def test_what_a_layer_keeps_for_the_backward_pass_grows_with_the_tokens_and_not_with_their_square() -> None:
    def kept(size: int) -> int:
        found: list[torch.Tensor] = []

        def pack_hook(x: torch.Tensor) -> torch.Tensor:
            found.append(x)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda x: x):
            attend([np.arange(size)])
        return sum(x.numel() for x in found)

    assert kept(8 * KEPT_KEYS) <= 8 * kept(KEPT_KEYS)


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    rows = a_group(40, [30, 25, 60])
    for found, wanted in zip(attend(rows, torch.bfloat16), attend(rows, torch.float32, torch.bfloat16), strict=True):
        assert found.equal(wanted.bfloat16())


def test_of_the_masks_of_many_micro_batches_only_the_last_are_held() -> None:
    def attended(size: int) -> weakref.ref:
        layout = Layout.of(pack([np.arange(size)]), CPU)
        q, k, v = (torch.randn(1, n, size, 8).requires_grad_() for n in (4, 2, 2))
        packed_attention(torch.nn.Identity(), q, k, v, None, layout=layout)[0].sum().backward()
        return weakref.ref(plan(layout, (4, 2), 0))

    plans = [attended(size) for size in (50, 60, 70, 80)]
    gc.collect()
    assert [found() is None for found in plans] == [True, True, False, False]
