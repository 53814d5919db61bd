"""FlexAttention's kernel on packed rows against the dense form: largest differences, and the time of 16k tokens.

The dense form is softmax attention over all pairs with a mask; it is computed in float32 where results are compared,
and by PyTorch's scaled_dot_product_attention in bfloat16 where time is. On CPU, FlexAttention's own dense form takes
the kernel's place, because its CPU kernel has no backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from benchmarks.gpu.common import QWEN, SMOLLM, Setting, shape_of, share_of_peak
from benchmarks.learner.random_work import random_groups
from squelch.kit.packed import attention
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import Forest, pack
from squelch.learner.batching import to_rows
from squelch.learner.config import ObjectiveConfig

BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 2e-2}
"""Largest accepted difference, relative to the largest value. CUDA may multiply float32 in TF32."""
WINDOWS = (0, 96)


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Differences for both models' heads, then times."""
    if setting.device == "cpu":
        let_the_dense_form_stand_in()
    wrong = []
    for name in (QWEN, SMOLLM):
        for dtype in BOUNDS:
            for window in WINDOWS:
                key = f"{name}, {str(dtype).removeprefix('torch.')}, window {window}"
                found = differences(setting, name, dtype, window)
                yield {key: found}
                wrong += [key] if not all(value <= BOUNDS[dtype] for value in found.values()) else []
    if wrong:
        raise RuntimeError(f"the kernel differs from the dense form by more than its bound: {'; '.join(wrong)}")
    yield from times(setting)


def let_the_dense_form_stand_in() -> None:
    """Puts FlexAttention's dense form in the place of its kernel. PyTorch refuses gradients on CPU by a check of its
    own, and computes them without it."""
    vars(flex)["_validate_device"] = lambda *tensors: None
    vars(attention)["_flex"] = lambda: flex.flex_attention


def differences(setting: Setting, name: str, dtype: torch.dtype, window: int) -> dict[str, float]:
    """Largest differences of output and gradients from the dense form, relative to the dense form's largest value."""
    forest = packed_groups(2, 64, 13) if setting.quick else packed_groups(2, 300, 45)
    layout = Layout.of(forest, torch.device(setting.device))
    inputs = heads(setting, name, forest.num_tokens, dtype, setting.quick)
    own = attention._on_cuda(*inputs, scale=0.2, layout=layout, window=window).transpose(1, 2)
    exact = [x.detach().float().requires_grad_() for x in inputs]
    wanted = dense(*exact, scale=0.2, mask=seen(layout, window))
    up = torch.randn_like(wanted).to(dtype)
    gradients = torch.autograd.grad(own, inputs, up)
    wanted_gradients = torch.autograd.grad(wanted, exact, up.float())
    names = ("output", "d query", "d key", "d value")
    pairs = zip(names, (own, *gradients), (wanted, *wanted_gradients), strict=True)
    return {name: float((one - right).detach().abs().max() / right.abs().max()) for name, one, right in pairs}


def times(setting: Setting) -> Iterator[dict[str, Any]]:
    """Milliseconds of the forward and backward pass of one layer over 16,384 packed tokens: first the kernel, whose
    first call compiles it, then the dense form, which needs far more memory."""
    forest = packed_groups(2, 64, 13) if setting.quick else packed_groups(8, 256, 113)
    layout = Layout.of(forest, torch.device(setting.device))
    rows: dict[str, dict[str, Any]] = {}
    for name in (QWEN, SMOLLM):
        inputs = heads(setting, name, forest.num_tokens, torch.bfloat16, setting.quick)
        operations = 14 * forest.pairs() * inputs[0].shape[1] * inputs[0].shape[3]
        start = time.perf_counter()
        by_kernel(inputs, layout)
        setting.synchronize()
        first_s = time.perf_counter() - start
        kernel_s = setting.median_s(partial(by_kernel, inputs, layout), 1 if setting.quick else 10)
        row = {"tokens": forest.num_tokens, "first_call_s": first_s, "kernel_ms": 1e3 * kernel_s}
        rows[name] = row | {"kernel_share_of_peak": share_of_peak(operations / kernel_s, setting)}
        yield {f"time, {name}": rows[name]}
    mask = seen(layout, 0)
    for name, row in rows.items():
        inputs = heads(setting, name, forest.num_tokens, torch.bfloat16, setting.quick)
        dense_ms = 1e3 * setting.median_s(partial(by_dense, inputs, mask), 1 if setting.quick else 3)
        yield {f"time, {name}": row | {"dense_ms": dense_ms, "ratio": dense_ms / row["kernel_ms"]}}


def by_kernel(inputs: list[Tensor], layout: Layout) -> None:
    """Forward and backward pass by FlexAttention."""
    found = attention._on_cuda(*inputs, scale=0.125, layout=layout, window=0)
    torch.autograd.grad(found, inputs, torch.ones_like(found))


def by_dense(inputs: list[Tensor], mask: Tensor) -> None:
    """Forward and backward pass by PyTorch's scaled_dot_product_attention with a mask."""
    query, *others = inputs
    wide = [x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in others]
    found = functional.scaled_dot_product_attention(query, *wide, attn_mask=mask, scale=0.125)
    torch.autograd.grad(found, inputs, torch.ones_like(found))


def packed_groups(num_groups: int, prompt: int, answer: int) -> Forest:
    """The layout of groups of 16 with these numbers of tokens."""
    rows = to_rows(random_groups(num_groups, 16, prompt, answer, 500), ObjectiveConfig())
    return pack([row.token_ids for row in rows])


def heads(setting: Setting, name: str, tokens: int, dtype: torch.dtype, quick: bool) -> list[Tensor]:
    """Random queries, keys and values, each (1, heads, tokens, head size)."""
    config: Any = shape_of(name, quick)
    generator = torch.Generator().manual_seed(0)
    size = config.hidden_size // config.num_attention_heads
    counts = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    made = [torch.randn(1, count, tokens, size, generator=generator) for count in counts]
    return [x.to(setting.device, dtype).requires_grad_() for x in made]


def seen(layout: Layout, window: int) -> Tensor:
    """(tokens, tokens) bool: whether the query of the row attends to the key of the column."""
    index = torch.arange(len(layout.ends), device=layout.ends.device)
    return layout.sees(index[:, None], index[None], window)


def dense(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor) -> Tensor:
    """Softmax attention over all pairs that the mask allows."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = (query @ key.transpose(2, 3)) * scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
