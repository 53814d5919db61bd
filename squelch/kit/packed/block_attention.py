"""Attention over a packed layout on CPU, in blocks of adjacent queries with the keys that they see.

A block's queries are tokens of one segment, or of segments with the same parent. Its keys are the tokens before the
segment in its rows, and those of the segment itself up to the block's end. Within a block, the layout's mask rule,
including a sliding window, decides which keys a query sees. Blocks of similar shape form one batch of matrix products;
one product covers all query heads that share a key head. PyTorch's CPU flash kernel splits the same work into products
too small to distribute over cores: on two cores it takes twice as long for rows of one to two hundred tokens, the same
time at 600, and 0.8 of the time at 1,500 (docs/research/results.md).

The cost of a block is counted in query-key pairs: its own pairs, and `KEY_COST` pairs per key for gathering the key and
summing its gradient. To minimise this cost, long segments are cut, short segments with the same parent are joined, and
blocks of unequal shape are padded into one batch.

Weights (the softmax) are kept for the backward pass if a block has at most `KEPT_KEYS` keys, and recomputed otherwise,
so that the kept memory grows linearly with the number of tokens. Only the mask of the present micro-batch grows with
the square of a row's length, at one byte per pair (`kit.packed.attention.plan`). All computation is in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from squelch.kit.packed.operators import softmax_backward_
from squelch.kit.packed.packing import Forest, Span

KEY_COST = 16
"""Cost of one more key in a block, in query-key pairs."""
WASTE, SLACK = 1.1, 4096
"""A padded batch may have WASTE times its blocks' own pairs plus SLACK pairs; SLACK is the cost of another batch."""
BATCH_PAIRS = 1 << 18
"""Largest number of pairs in a batch, as far as cutting can achieve it. It bounds the scores per head, so that the
intermediate results between two products fit into the processor's cache."""
KEPT_KEYS = 320
"""Weights are kept for blocks with at most this many keys, so at most this many numbers per token and head."""

Sees = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Block:
    """The tokens `queries`, and as `keys` all tokens that any of them sees: earlier spans, then the span that contains
    the queries."""

    queries: Span
    keys: tuple[Span, ...]

    @property
    def num_queries(self) -> int:
        return self.queries[1] - self.queries[0]

    @property
    def num_keys(self) -> int:
        return _size(self.keys)


def blocks(forest: Forest) -> list[Block]:
    """Blocks in the layout's order; each token is a query of exactly one block."""
    found: list[Block] = []
    links = iter(forest.links)
    link = next(links, None)
    for segment in forest.segments:
        while link is not None and link.queries[1] <= segment[0]:
            link = next(links, None)
        context = link.context if link is not None and link.queries[0] <= segment[0] else ()
        own = _cut(segment, context)
        if len(own) == 1 and found and _joins(found[-1], own[0], context):
            start = found.pop().queries[0]
            own = [Block((start, segment[1]), (*context, (start, segment[1])))]
        found += own
    return found


def _cut(segment: Span, context: tuple[Span, ...]) -> list[Block]:
    """Cuts a segment into the number of equal parts with the least cost: more parts compute fewer masked pairs, but
    each part gathers the keys again."""
    start, end = segment
    size, before = end - start, _size(context)
    cheapest = round(size / math.sqrt(KEY_COST * (2 * before + size)))
    parts = min(size, max(1, cheapest, math.ceil(size * (before + size) / BATCH_PAIRS)))
    edges = [start + size * part // parts for part in range(parts + 1)]
    return [Block((low, high), (*context, (start, high))) for low, high in pairwise(edges)]


def _joins(last: Block, block: Block, context: tuple[Span, ...]) -> bool:
    """Whether it is cheaper to join a segment's block with the previous block, which must consist of whole segments of
    the same parent. The joint block gathers the context once, but computes masked pairs between the segments."""
    siblings = last.keys == (*context, last.queries) and last.queries[1] == block.queries[0]
    return siblings and 2 * last.num_queries * block.num_queries < KEY_COST * _size(context)


def _size(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def batches(found: Sequence[Block]) -> list[list[Block]]:
    """Groups all blocks, largest first, into batches within the limits `WASTE`, `SLACK` and `BATCH_PAIRS`."""
    parts: list[list[Block]] = []
    pairs = queries = keys = 0
    for block in sorted(found, key=lambda b: (-b.num_queries, -b.num_keys, b.queries)):
        own = block.num_queries * block.num_keys
        keys = max(keys, block.num_keys)
        padded = queries * keys * (len(parts[-1]) + 1) if parts else math.inf
        if padded <= min(WASTE * (pairs + own) + SLACK, BATCH_PAIRS):
            parts[-1].append(block)
            pairs += own
        else:
            parts.append([block])
            pairs, queries, keys = own, block.num_queries, block.num_keys
    return parts


@dataclass(frozen=True)
class Batch:
    """Blocks padded to one shape, for one choice of heads.

    A row is the vector of one token and one head: the row number of a query is token * num_heads + head; rows of keys
    and values are numbered in the same way by key heads. `queries`: (num_blocks * num_heads * num_queries,) int64 row
    numbers, ordered by key head, then query head; `keys`: (num_blocks * key_heads * num_keys,) int64 row numbers.
    `own`: bool, shape of `queries`, False at padding. `hidden`: (num_blocks, 1, 1, num_queries, num_keys) bool, True
    for pairs that the mask excludes.
    """

    queries: Tensor
    keys: Tensor
    own: Tensor
    hidden: Tensor
    heads: tuple[int, int]

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights are kept for the backward pass."""
        return self.hidden.shape[-1] <= KEPT_KEYS

    def of_queries(self, rows: Tensor) -> Tensor:
        """(num_blocks * key_heads, repeats * num_queries, size) float32, a copy."""
        return self._gathered(rows, self.queries, self.heads[0] // self.heads[1] * self.hidden.shape[3])

    def of_keys(self, rows: Tensor) -> Tensor:
        """(num_blocks * key_heads, num_keys, size) float32, a copy."""
        return self._gathered(rows, self.keys, self.hidden.shape[4])

    def _gathered(self, rows: Tensor, index: Tensor, length: int) -> Tensor:
        return rows.index_select(0, index).float().unflatten(0, (-1, length))

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Softmax of scaled queries against keys, (num_blocks * key_heads, repeats * num_queries, num_keys)."""
        scores = torch.bmm(query, key.transpose(1, 2))
        by_head = (len(self.hidden), self.heads[1], self.heads[0] // self.heads[1], *self.hidden.shape[3:])
        scores.view(by_head).add_(torch.zeros(self.hidden.shape).masked_fill_(self.hidden, -math.inf))
        return torch.softmax(scores, -1)


@dataclass(frozen=True)
class Plan:
    """All batches of a layout. `num_queries`: number of their query rows, including padding; `back`: (num_tokens *
    num_heads,) int64, the index of each query row in the concatenation of all batches; `keys`: the key row numbers of
    all batches, concatenated."""

    batches: tuple[Batch, ...]
    num_queries: int
    back: Tensor
    keys: Tensor

    @classmethod
    def of(cls, found: Sequence[Block], sees: Sees, heads: tuple[int, int]) -> Plan:
        """The plan for `found` blocks. `sees`: the layout's mask rule, on int64 tokens that broadcast; `heads`: (number
        of query heads, number of key heads)."""
        made = [_batch(part, sees, heads) for part in batches(found)]
        rows = torch.cat([batch.queries for batch in made])
        own = torch.cat([batch.own for batch in made]).nonzero()[:, 0]
        back = torch.empty(len(own), dtype=torch.int64)
        back[rows[own]] = own
        return cls(tuple(made), len(rows), back, torch.cat([batch.keys for batch in made]))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of query (num_tokens, num_heads, size) to key and value (num_tokens, key_heads, their size);
        returns (num_tokens, num_heads, size of values)."""
        return _Attention.apply(query, key, value, scale, self)


def _batch(part: Sequence[Block], sees: Sees, heads: tuple[int, int]) -> Batch:
    num_heads, key_heads = heads
    query, is_query = _padded([torch.arange(*block.queries) for block in part])
    key, is_key = _padded([torch.cat([torch.arange(*span) for span in block.keys]) for block in part])
    seen = sees(query[:, :, None], key[:, None]) & is_key[:, None]
    by_head = torch.arange(num_heads).view(1, key_heads, -1, 1)
    rows = query[:, None, None] * num_heads + by_head
    return Batch(
        rows.flatten(),
        (key[:, None] * key_heads + torch.arange(key_heads)[:, None]).flatten(),
        is_query[:, None, None].expand(rows.shape).flatten(),
        seen.logical_not_()[:, None, None],
        heads,
    )


def _padded(runs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pads runs (length,) to rows of equal length by repeating their last entry; returns the rows and, as bool, which
    entries are not padding."""
    lengths = torch.tensor([len(run) for run in runs])
    column = torch.arange(int(lengths.max()))
    starts = lengths.cumsum(0) - lengths
    index = starts[:, None] + torch.minimum(column, lengths[:, None] - 1)
    return torch.cat(list(runs))[index], column < lengths[:, None]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, plan: Plan) -> Tensor:
        query_rows, key_rows, value_rows = (x.reshape(-1, x.shape[-1]) for x in (query, key, value))
        out = torch.empty(plan.num_queries, value.shape[-1])
        kept, at, trains = [], 0, any(ctx.needs_input_grad)
        for batch in plan.batches:
            weights = batch.weights(batch.of_queries(query_rows).mul_(scale), batch.of_keys(key_rows))
            at = _product(weights, batch.of_keys(value_rows), out, at)
            kept.append(weights if trains and batch.keeps_weights else None)
        ctx.save_for_backward(query, key, value, *kept)
        ctx.scale, ctx.plan = scale, plan
        return out.index_select(0, plan.back).to(value.dtype).unflatten(0, query.shape[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        grad_rows, query_rows, key_rows, value_rows = (x.reshape(-1, x.shape[-1]) for x in (grad, query, key, value))
        plan, at, at_key = ctx.plan, 0, 0
        d_query = torch.empty(plan.num_queries, query.shape[-1])
        d_key, d_value = (torch.empty(len(plan.keys), x.shape[-1]) for x in (key, value))
        for batch, weights in zip(plan.batches, kept, strict=True):
            q, k, v = batch.of_queries(query_rows).mul_(ctx.scale), batch.of_keys(key_rows), batch.of_keys(value_rows)
            weights = batch.weights(q, k) if weights is None else weights
            g = batch.of_queries(grad_rows)
            g.flatten(0, 1).mul_(batch.own[:, None])
            d_scores = torch.bmm(g, v.transpose(1, 2))
            softmax_backward_(d_scores, weights)
            at = _product(d_scores, k, d_query, at)
            _product(d_scores.transpose(1, 2), q, d_key, at_key)
            at_key = _product(weights.transpose(1, 2), g, d_value, at_key)
        d_query = d_query.index_select(0, plan.back).mul_(ctx.scale)
        d_key, d_value = (
            torch.zeros(rows.shape).index_add_(0, plan.keys, found)
            for rows, found in ((key_rows, d_key), (value_rows, d_value))
        )
        found = zip((d_query, d_key, d_value), (query, key, value), strict=True)
        return *(rows.to(x.dtype).view(x.shape) for rows, x in found), None, None


def _product(one: Tensor, other: Tensor, out: Tensor, start: int) -> int:
    """Writes a batch of products as rows into `out`, beginning at row `start`; returns the index of the next free
    row."""
    end = start + one.shape[0] * one.shape[1]
    torch.bmm(one, other, out=out[start:end].unflatten(0, one.shape[:2]))
    return end
