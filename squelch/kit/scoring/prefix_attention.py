"""Attention of many rows over a shared prefix and over their own tokens, in the scorer's forward passes.

The prefix's keys and values are computed once and not copied for each row. There are three equivalent forms:

- PyTorch's flash kernel runs causally on the rows, and once over the prefix for the queries of all rows. The two
  results are merged by their log-sum-exp, and no attention scores are stored. The kernels that return the log-sum-exp
  are private operators, one for CPU and one for bfloat16 and float16 on CUDA; a torch without them uses the matrix
  products below and logs a warning.
- For float32 and for trees on CUDA, matrix products are computed in blocks of queries and merged in the same way.
- With `learner.kernels: plain`, each row's keys are the prefix's keys followed by its own, under a mask. This form
  defines the result of the other two.

A pass over packed rows, which share no prefix outside it, has the attention of `kit.packed.attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from squelch.kit.packed.attention import packed_attention, plain_attention
from squelch.kit.packed.layout import Layout
from squelch.kit.process.private_operators import private_operator

CPU_FLASH = "ops.aten._scaled_dot_product_flash_attention_for_cpu"
CUDA_FLASH = "ops.aten._scaled_dot_product_flash_attention"
WITHOUT_FLASH = "the scorer's attention stores its scores, and takes longer"
FLASH_SIZES = range(8, 257, 8)
"""Sizes of a head that the kernel for CUDA takes."""
MAX_SCORES = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Most attention scores held at once, by device (64 and 256 MiB in float32); more scores are computed in blocks of
queries. Smaller blocks would leave a GPU waiting for its host."""

Attend = Callable[[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor], float, Tensor | None], Tensor]
"""Function of queries (rows, heads, num_tokens, head_dim), the rows' own keys and values, the prefix's keys and values,
the scale, and `PrefixContext.seen`; returns (rows, num_tokens, heads, head_dim)."""
LayerCache = list[tuple[Tensor, Tensor]]
"""Keys and values of one sequence, one pair per layer, each (num_kv_heads, num_tokens, head_dim)."""


@dataclass
class PrefixContext:
    """Prefix of one forward. If `capture` is set, the forward's own keys and values (rows, num_kv_heads, num_tokens,
    head_dim) are added to `captured`, one pair per layer. `seen`: (rows, num_tokens, num_tokens) bool, the tokens of
    its row that each token attends to, itself and none after it, if the rows are trees; None: all up to itself. Only
    rows that continue a prefix can be trees."""

    prefix: LayerCache | None
    capture: bool = False
    seen: Tensor | None = None
    captured: LayerCache = field(default_factory=list)


def _forward(
    attend: Attend,
    packed: Callable[..., tuple[Tensor, None]],
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    shared_prefix: PrefixContext | None = None,
    layout: Layout | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each row over a prefix that all rows share and over itself (transformers' interface); of
    packed rows (`layout`) without a prefix.

    query: (rows, heads, num_tokens, head_dim); key, value: (rows, kv_heads, num_tokens, head_dim); returns
    (rows, num_tokens, heads, head_dim). Rows are padded on the right, so no mask is needed: padding lies in the future.
    """
    if shared_prefix is None:
        return packed(module, query, key, value, attention_mask, scaling, layout=layout, **rest)
    if shared_prefix.capture:
        shared_prefix.captured.append((key, value))
    if shared_prefix.prefix is None:
        grouped = key.shape[1] != query.shape[1]
        out = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        return out.transpose(1, 2).contiguous(), None
    layer: Any = module.layer_idx
    return attend(query, (key, value), shared_prefix.prefix[layer], scaling, shared_prefix.seen), None


def by_definition(
    query: Tensor, own: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], scaling: float, seen: Tensor | None
) -> Tensor:
    """The plain form: each query attends to the prefix, and to its row's tokens up to its own position or in `seen`."""
    key, value = (torch.cat([p.expand(len(query), -1, -1, -1), x], 2) for x, p in zip(own, prefix, strict=True))
    mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril(prefix[0].shape[1])
    if seen is not None:
        mask = torch.cat([mask[:, : prefix[0].shape[1]].expand(len(query), -1, -1), seen], 2).unsqueeze(1)
    out = functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous()


def by_device(
    query: Tensor, own: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], scaling: float, seen: Tensor | None
) -> Tensor:
    """The fast form: PyTorch's flash kernel if the device has one for these tensors, else matrix products."""
    flash = _flash(query, own[1], seen)
    if flash is None:
        return by_products(query, own, prefix, scaling, seen)
    return _by_kernel(flash, query, own, prefix, scaling, seen)


def _flash(query: Tensor, value: Tensor, seen: Tensor | None) -> Callable[..., Any] | None:
    """The flash kernel of the tensors' device; None if it does not take them."""
    if query.shape[-1] != value.shape[-1]:
        return None
    if query.device.type == "cpu":
        return private_operator(CPU_FLASH, WITHOUT_FLASH)
    half = query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16)
    fits = half and seen is None and query.shape[-1] in FLASH_SIZES and _has_flash(query.device)
    return private_operator(CUDA_FLASH, WITHOUT_FLASH) if fits else None


@cache
def _has_flash(device: torch.device) -> bool:
    """Whether the GPU is of the generation (Ampere) for which PyTorch has its flash kernel, or newer."""
    return torch.cuda.get_device_capability(device)[0] >= 8


def _by_kernel(
    flash: Callable[..., Any],
    query: Tensor,
    own: tuple[Tensor, Tensor],
    prefix: tuple[Tensor, Tensor],
    scaling: float,
    seen: Tensor | None,
) -> Tensor:
    """The form with a kernel that returns the output and its log-sum-exps first; only the CPU's takes a mask."""
    (rows, heads, num_tokens, _), kv_heads = query.shape, own[0].shape[1]
    key, value = (x.repeat_interleave(heads // kv_heads, 1) for x in own)
    mask = {} if seen is None else {"attn_mask": _additive(seen, query.dtype)}
    near, near_lse = flash(query, key, value, 0.0, seen is None, scale=scaling, **mask)[:2]
    flat = query.transpose(1, 2).flatten(0, 1).unflatten(1, (kv_heads, -1)).permute(2, 1, 0, 3)
    key, value = (x.expand(len(flat), -1, -1, -1) for x in prefix)
    far, far_lse = (x.transpose(0, 2).flatten(1, 2) for x in flash(flat, key, value, 0.0, False, scale=scaling)[:2])
    weight = (far_lse.unflatten(0, (rows, num_tokens)) - near_lse.transpose(1, 2)).sigmoid_().unsqueeze(-1)
    return torch.lerp(near.transpose(1, 2), far.unflatten(0, (rows, num_tokens)), weight.to(near.dtype))


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """(rows, 1, num_tokens, num_tokens): 0 where a token is seen, else -inf."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).unsqueeze(1)


def by_products(
    query: Tensor, own: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], scaling: float, seen: Tensor | None
) -> Tensor:
    """The form with matrix products, for any device, in blocks of queries with at most `MAX_SCORES` scores."""
    (key, value), (rows, heads, num_tokens, _) = own, query.shape
    size = max(1, MAX_SCORES[query.device.type] // (rows * heads * (prefix[0].shape[1] + num_tokens)))
    query = query * scaling
    parts = [
        _block(query[:, :, a : a + size], (key[:, :, : a + size], value[:, :, : a + size]), prefix, a, seen)
        for a in range(0, num_tokens, size)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


def _block(
    query: Tensor, own: tuple[Tensor, Tensor], prefix: tuple[Tensor, Tensor], first: int, seen: Tensor | None
) -> Tensor:
    """Attention of the queries from position `first` of each row; query: (rows, heads, block, head_dim), scaled."""
    (key, value), (prefix_key, prefix_value) = own, prefix
    rows, heads, block, width = query.shape
    kv_heads = key.shape[1]
    flat = query.transpose(0, 1).reshape(kv_heads, -1, width)
    far = torch.matmul(flat, prefix_key.transpose(1, 2)).float()
    near = torch.matmul(query.reshape(rows, kv_heads, -1, width), key.transpose(2, 3)).float()
    if seen is None:
        future = torch.ones(block, key.shape[2], dtype=torch.bool, device=query.device).triu(first + 1)
    else:
        future = ~seen[:, None, first : first + block, : key.shape[2]]
    near = near.view(rows, heads, block, -1).masked_fill_(future, float("-inf"))
    far_lse, near_lse = far.logsumexp(-1, keepdim=True), near.logsumexp(-1, keepdim=True)
    far = torch.matmul(far.sub_(far_lse).exp_().to(query.dtype), prefix_value)
    near = near.sub_(near_lse).exp_().to(query.dtype).view(rows, kv_heads, -1, key.shape[2])
    near = torch.matmul(near, value).view(rows, heads, block, width)
    far, far_lse = (x.view(heads, rows, block, -1).transpose(0, 1) for x in (far, far_lse))
    return torch.lerp(near, far, torch.sigmoid(far_lse - near_lse).to(query.dtype))


FORMS: dict[str, tuple[Attend, Callable[..., tuple[Tensor, None]]]] = {
    "fast": (by_device, packed_attention),
    "plain": (by_definition, plain_attention),
}
"""The forms over a prefix and over packed rows, by value of `learner.kernels`."""
NAMES = {kernels: f"squelch_shared_prefix_{kernels}" for kernels in FORMS}
"""The name of each form in transformers; the model passes a prefix as `shared_prefix`, packed rows as `layout`."""

for kernels, forms in FORMS.items():
    AttentionInterface.register(NAMES[kernels], partial(_forward, *forms))
