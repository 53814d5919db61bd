"""Attention over a packed layout, as a function of transformers' attention interface, with one implementation per
device.

A token attends to itself and to the tokens before it in its own rows, and to no others; `kit.packed.packing`
defines the mask. The implementations are:

- CPU: `kit.packed.block_attention`, matrix products of blocks of queries with the keys that they see.
- CUDA: compiled FlexAttention, with a block mask derived from the layout's mask rule; within a layer that is compiled
  (`learner.compile`) it is a part of the layer's graph. Where there is no GPU, the tests run this implementation,
  including gradients, with FlexAttention's dense form.
- `learner.kernels: plain`, and CUDA in a torch without FlexAttention: `kit.packed.plain.row_attention`.

A layer that needs more than scaling (soft caps, sinks, dropout) is refused by name.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.modeling_utils import AttentionInterface

from squelch.kit.packed.block_attention import Plan
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.plain import row_attention
from squelch.kit.process.compiled import compiled

logger = logging.getLogger(__name__)

NAME, PLAIN_NAME = "squelch_packed", "squelch_packed_plain"
"""Names under which `packed_attention` and `plain_attention` are registered in transformers. The model passes the
layout to them as the keyword argument `layout`."""

TILE = 128
"""Number of queries, and of keys, in a block of FlexAttention's mask."""

LEAST_HEAD = 16
"""FlexAttention's kernel takes no smaller heads. Smaller ones are padded with zeros, which change no score."""

OPTIONS = {"BACKEND": "TRITON"}
"""Options of FlexAttention: its main kernel for every layout. For fewer than 128 tokens it would take another one,
which has no form where tokens times query heads per head of keys exceed 128: the first step ended with an error."""

UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias")


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer: query (1, num_heads, num_tokens, head_size), keys and values with `num_key_value_heads`.

    Returns (1, num_tokens, num_heads, value_size). Raises ValueError when the layer needs an unsupported feature.
    """
    layout = _checked(module, layout, dropout, rest)
    attend = _on_cuda if _by_flex(query.device) else _on_cpu
    return attend(query, key, value, _scale(query, scaling), layout, _window(sliding_window, layout)), None


@torch.compiler.disable
def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The same as `packed_attention`, computed row by row."""
    layout = _checked(module, layout, dropout, rest)
    return row_attention(query, key, value, _scale(query, scaling), layout, _window(sliding_window, layout)), None


AttentionInterface.register(NAME, packed_attention)
AttentionInterface.register(PLAIN_NAME, plain_attention)


def _checked(module: nn.Module, layout: Layout | None, dropout: float, rest: Mapping[str, Any]) -> Layout:
    """The layout. Raises ValueError when there is none or the layer needs an unsupported feature."""
    asked = [name for name in UNSUPPORTED if rest.get(name) is not None] + ["dropout"] * (dropout > 0)
    if asked or layout is None:
        what = asked[0] if asked else "a plain batch"
        raise ValueError(f"{type(module).__name__} asks for {what}, which attention over packed rows does not have")
    return layout


def _scale(query: Tensor, scaling: float | None) -> float:
    return query.shape[-1] ** -0.5 if scaling is None else scaling


def _window(sliding_window: int | None, layout: Layout) -> int:
    """The sliding window if a row is longer than the window, else 0."""
    return sliding_window if sliding_window and sliding_window < layout.longest else 0


def _by_flex(device: torch.device) -> bool:
    return device.type == "cuda"


@torch.compiler.disable
def _on_cpu(query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, window: int) -> Tensor:
    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    return plan(layout, (query.shape[1], key.shape[1]), window).attend(queries, keys, values, scale)[None]


@lru_cache(maxsize=2)
def plan(layout: Layout, heads: tuple[int, int], window: int) -> Plan:
    """The plan of block attention, cached for all layers of a micro-batch. The cache holds two plans, because layers
    with a sliding window and full layers alternate, and no more, because a step's plans together would be large."""
    return Plan.of(layout.blocks, partial(layout.sees, window=window), heads)


def _on_cuda(query: Tensor, key: Tensor, value: Tensor, scale: float, layout: Layout, window: int) -> Tensor:
    """FlexAttention, or row by row in a torch without it."""
    flex = _kernel()
    if flex is None:
        return row_attention(query, key, value, scale, layout, window)
    mask, size = _mask(layout, window), value.shape[-1]
    query, key, value = map(_padded, (query, key, value))
    found = flex(query, key, value, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=OPTIONS)
    return found[..., :size].transpose(1, 2)


def prepare(layout: Layout, config: PreTrainedConfig) -> None:
    """Computes the block masks that a model's layers need on CUDA. A compiled layer would compute its own in its graph,
    and be compiled once with the computation and once without."""
    if _by_flex(layout.ends.device) and _flex() is not None:
        for window in (0, _window(getattr(config.get_text_config(), "sliding_window", None), layout)):
            _mask(layout, window)


def _mask(layout: Layout, window: int) -> Any:
    """The layout's block mask, computed once."""
    if window not in layout.block_masks:
        layout.block_masks[window] = block_mask(layout, window)
    return layout.block_masks[window]


def _padded(heads: Tensor) -> Tensor:
    """The heads with zeros up to LEAST_HEAD; large ones as they are, without a copy."""
    missing = LEAST_HEAD - heads.shape[-1]
    return functional.pad(heads, (0, missing)) if missing > 0 else heads


def block_mask(layout: Layout, window: int = 0) -> Any:
    """FlexAttention's block mask: for each tile of queries, the tiles of keys that it sees partly, and those it sees in
    full.

    The mask is computed from the smallest and largest values of each tile. It is exact without a window; with a window
    it is a bound. `create_block_mask` would evaluate every pair of tokens, at ten bytes per pair: 2.7 GB for 16k
    tokens.
    """
    from torch.nn.attention.flex_attention import BlockMask

    size, device = len(layout.ends), layout.ends.device
    number = -(-size // TILE)
    index = torch.arange(number * TILE, device=device).clamp_(max=size - 1).view(number, TILE)
    (first, last), (soonest, latest) = index.aminmax(dim=1), layout.ends[index].aminmax(dim=1)
    some = (first <= last[:, None]) & (first[:, None] < latest)
    whole = (last < first[:, None]) & (last[:, None] < soonest)
    whole[-1] &= size % TILE == 0
    if window:
        nearest, farthest = layout.position_ids[index].aminmax(dim=1)
        some &= nearest[:, None] - farthest < window
        whole &= farthest[:, None] - nearest < window
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~whole),
        *_in_order(whole),
        BLOCK_SIZE=TILE,
        mask_mod=mask_rule(layout, window),
        seq_lengths=(size, size),
    )


def _in_order(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, the number of columns that are set, (1, 1, num_rows), and the indices of all columns with the set
    ones first, (1, 1, num_rows, num_columns); both int32."""
    columns = tiles.int().argsort(dim=1, descending=True, stable=True)
    return tiles.sum(1, dtype=torch.int32)[None, None], columns.int()[None, None]


def _kernel() -> Callable[..., Tensor] | None:
    """FlexAttention: as a part of the graph where a layer is being compiled, else compiled alone."""
    if not torch.compiler.is_compiling():
        return _flex()
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _flex() -> Callable[..., Tensor] | None:
    """Compiled FlexAttention; None, with one warning, in a torch without it."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        logger.warning(
            "torch %s has no torch.nn.attention.flex_attention: attention on CUDA is computed row by row, and tokens "
            "that rows share once for each row",
            torch.__version__,
        )
        return None
    return compiled(flex_attention)


def mask_rule(layout: Layout, window: int = 0) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The layout's mask rule in the form that FlexAttention requires."""

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return layout.sees(query, key, window)

    return rule
