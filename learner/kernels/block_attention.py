"""Attention over a packed layout on CPU: blocks of neighbouring queries, each against the keys that they see.

A block's queries are tokens of one segment, or of segments with one parent; its keys are those before the segment in
its rows and those of the segment itself up to the block's end. What a query sees of them is the layout's one rule, a
sliding window included. Blocks of about one shape are one batch of matrix products, all query heads of a key's head in
one product. PyTorch's CPU flash kernel, which cuts the same work into products too small to share out, takes twice as
long on two cores for rows of one to two hundred tokens, as long at 600, and 0.8 of it at 1,500 (docs/measurements.md).

What a block costs is its pairs and, for each key, `KEY_COST` pairs to gather it and add up its gradient. By that
measure long segments are cut, short ones with one parent taken together, and unequal ones padded to one batch.

Weights (the softmax) are kept for the backward pass where a block has at most `KEPT_KEYS` keys, and computed anew
otherwise, so that what is kept grows with the tokens and not with their square. What does grow with the square of a
row is the mask, a byte a pair, of the micro-batch under way (`learner.kernels.attention.plan`). All is computed in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learner.kernels.operators import softmax_backward_
from learner.kernels.packing import Forest, Span

KEY_COST = 16
"""Pairs of a query and a key that take as long as one more key in a block."""
WASTE, SLACK = 1.1, 4096
"""A batch has at most this many times its blocks' own pairs, and so many more, as another batch costs something too."""
BATCH_PAIRS = 1 << 18
"""Pairs in a batch, at most, as far as cutting can do it: what it computes between two products stays near the cores,
and is no more than so many scores a head."""
KEPT_KEYS = 320
"""Weights of blocks with at most so many keys are kept: that many numbers a token and head, at most."""

Sees = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Block:
    """Tokens `queries`, and all tokens that any of them sees: some spans before, and a span with the queries."""

    queries: Span
    keys: tuple[Span, ...]

    @property
    def num_queries(self) -> int:
        return self.queries[1] - self.queries[0]

    @property
    def num_keys(self) -> int:
        return _size(self.keys)


def blocks(forest: Forest) -> list[Block]:
    """Blocks of all tokens, each token in one, in the layout's order."""
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
    """Equal parts of a segment, as many as cost least: parts see less in vain, and gather keys again."""
    start, end = segment
    size, before = end - start, _size(context)
    cheapest = round(size / math.sqrt(KEY_COST * (2 * before + size)))
    parts = min(size, max(1, cheapest, math.ceil(size * (before + size) / BATCH_PAIRS)))
    edges = [start + size * part // parts for part in range(parts + 1)]
    return [Block((low, high), (*context, (start, high))) for low, high in pairwise(edges)]


def _joins(last: Block, block: Block, context: tuple[Span, ...]) -> bool:
    """Whether a segment's block is cheaper together with the one before it, which must be whole segments of the same
    parent: they see each other in vain, and gather the context once."""
    siblings = last.keys == (*context, last.queries) and last.queries[1] == block.queries[0]
    return siblings and 2 * last.num_queries * block.num_queries < KEY_COST * _size(context)


def _size(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def batches(found: Sequence[Block]) -> list[list[Block]]:
    """All blocks, largest first, in batches within `WASTE`, `SLACK` and `BATCH_PAIRS`."""
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

    A row is a token's vector of one head: rows of queries are numbered token * num_heads + head, those of keys and
    values alike by their own heads. `queries`: (num_blocks * num_heads * num_queries,) int64, each key head's query
    heads one after another; `keys`: (num_blocks * key_heads * num_keys,). `own`: as long as `queries`, False where that
    is padding. `hidden`: (num_blocks, 1, 1, num_queries, num_keys) bool, what a query does not see.
    """

    queries: Tensor
    keys: Tensor
    own: Tensor
    hidden: Tensor
    heads: tuple[int, int]

    @property
    def keeps_weights(self) -> bool:
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
    """All batches of a layout. `num_queries`: their rows of queries, padding included; `back`: (num_tokens *
    num_heads,) int64, where each row is among those, one batch after another; `keys`: all rows of keys alike."""

    batches: tuple[Batch, ...]
    num_queries: int
    back: Tensor
    keys: Tensor

    @classmethod
    def of(cls, found: Sequence[Block], sees: Sees, heads: tuple[int, int]) -> Plan:
        """`sees`: the layout's rule, of int64 tokens that broadcast. `heads`: those of queries, and those of keys."""
        made = [_batch(part, sees, heads) for part in batches(found)]
        rows = torch.cat([batch.queries for batch in made])
        own = torch.cat([batch.own for batch in made]).nonzero()[:, 0]
        back = torch.empty(len(own), dtype=torch.int64)
        back[rows[own]] = own
        return cls(tuple(made), len(rows), back, torch.cat([batch.keys for batch in made]))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Query (num_tokens, num_heads, size), key and value (num_tokens, key_heads, their size) -> (num_tokens,
        num_heads, size of values)."""
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
    """Runs (length,) as rows of one length, filled up with their last, and which entries are theirs."""
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
    """Writes a batch of products, as rows, into `out` from a row on; returns the row after."""
    end = start + one.shape[0] * one.shape[1]
    torch.bmm(one, other, out=out[start:end].unflatten(0, one.shape[:2]))
    return end
