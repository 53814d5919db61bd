"""The packed layout of several rows of tokens, in which common prefixes of rows are stored once. Pure numpy.

The rows of a micro-batch form a forest. A segment is a run of tokens that one or more rows have in common; its parent
is the segment before it in those rows; and a row consists of the tokens on a path from a root to a segment. This covers
system prompts, prompts of a group, common turns, and equal beginnings of two answers. `kit.records.shared_prefix`
determines which tokens rows have in common.

Invariants:

- A row equals its path: `token_ids[places[i]]` is row i, and `position_ids[places[i]]` counts from 0.
- Segments are stored in depth-first order, so that all tokens after a segment in any row (its subtree) directly follow
  it as one run. The mask follows: token i sees token j if and only if `j <= i < ends[j]`, where `ends[j]` is the end of
  the subtree of j's segment.
- A segment that several rows share saves at least `MIN_SAVED` tokens. Shorter common prefixes are repeated, because
  each segment adds cost to attention. `added_tokens` bounds the repeated tokens, and micro-batches are filled by this
  bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.records.shared_prefix import common_lengths, in_order

MIN_SAVED = 16
"""Smallest number of tokens that a shared segment must save."""

Span = tuple[int, int]
"""(first token, token after the last)."""


@dataclass(frozen=True)
class Link:
    """The tokens `queries`, whose segments have the same parent, see all tokens of `context`, the path to that
    parent."""

    queries: Span
    context: tuple[Span, ...]


@dataclass(frozen=True)
class Forest:
    """The packed layout. Flat fields have one entry per token, (num_tokens,) int64."""

    token_ids: np.ndarray
    position_ids: np.ndarray
    ends: np.ndarray
    """End (exclusive) of the subtree of the token's segment."""
    segments: tuple[Span, ...]
    """Within a segment, every token sees itself and the tokens before it."""
    links: tuple[Link, ...]
    """The tokens before their own segment that queries see; every token is a query of at most one link."""
    places: tuple[np.ndarray, ...]
    """Per row, the indices of its tokens in the layout, (length,) int64."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def pairs(self) -> int:
        """Number of (query, key) pairs that the mask allows."""
        own = sum((end - start) * (end - start + 1) // 2 for start, end in self.segments)
        return own + sum((x.queries[1] - x.queries[0]) * sum(b - a for a, b in x.context) for x in self.links)


@dataclass(frozen=True)
class _Node:
    parent: int
    """Index of the parent's node, -1 for a root."""
    depth: int
    tokens: np.ndarray


def added_tokens(lengths: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Largest number of tokens that each row, in order, adds to a layout that contains the previous row, (num_rows,).

    If rows branch without a shared segment, fewer than `MIN_SAVED` of their common tokens are repeated.
    """
    return lengths - common + np.minimum(common, MIN_SAVED - 1)


def pack(rows: Sequence[np.ndarray], share: bool = True, identities: Sequence[np.ndarray] | None = None) -> Forest:
    """The layout of these rows, each (length,) with at least one token; without `share`, each row is one segment.

    `identities`: identities of the inputs (`kit.records.shared_prefix.identities`), by which common prefixes are
    determined; None: the rows' token ids.
    """
    shown = rows if identities is None else identities
    order = in_order(shown) if share else np.arange(len(rows))
    common = common_lengths([shown[i] for i in order.tolist()]) if share else np.zeros(len(rows), dtype=np.int64)
    nodes, node_of = _grow([rows[i] for i in order.tolist()], common)
    return _lay_out(nodes, [node_of[k] for k in np.argsort(order)])


def _grow(rows: Sequence[np.ndarray], common: np.ndarray) -> tuple[list[_Node], dict[int, int]]:
    """Nodes in depth-first order, and the node at which each row ends."""
    nodes: list[_Node] = []
    node_of: dict[int, int] = {}
    waiting = [(-1, span, 0) for span in reversed(_children(rows, common, (0, len(rows)), 0))]
    while waiting:
        parent, (low, high), depth = waiting.pop()
        end = len(rows[low]) if high - low == 1 else int(common[low + 1 : high].min())
        nodes.append(_Node(parent, depth, rows[low][depth:end]))
        here = len(nodes) - 1
        node_of |= {k: here for k in range(low, high) if len(rows[k]) == end}
        rest = [part for part in _parts(common, (low, high), end) if len(rows[part[1] - 1]) > end]
        below = [child for part in rest for child in _children(rows, common, part, end)] if high - low > 1 else []
        waiting += [(here, span, end) for span in reversed(_alone_first(below))]
    return nodes, node_of


def _parts(common: np.ndarray, span: Span, depth: int) -> list[Span]:
    """Splits the rows `span` into runs in which adjacent rows have more than `depth` tokens in common."""
    cuts = [k for k in range(span[0] + 1, span[1]) if common[k] <= depth]
    return list(zip([span[0], *cuts], [*cuts, span[1]], strict=True))


def _children(rows: Sequence[np.ndarray], common: np.ndarray, span: Span, depth: int) -> list[Span]:
    """Runs of rows that each get a segment beginning at `depth`: single rows, or several rows that share enough
    tokens."""
    found, waiting = [], [span] if span[0] < span[1] else []
    while waiting:
        low, high = waiting.pop()
        shared = int(common[low + 1 : high].min()) if high - low > 1 else len(rows[low])
        if high - low == 1 or (shared - depth) * (high - low - 1) >= MIN_SAVED:
            found.append((low, high))
        else:
            waiting += reversed(_parts(common, (low, high), shared))
    return _alone_first(found)


def _alone_first(spans: Sequence[Span]) -> list[Span]:
    """Sorts single rows before runs, so that segments without a subtree are adjacent and share one link."""
    return sorted(spans, key=lambda span: (span[1] - span[0] > 1, span))


def _lay_out(nodes: Sequence[_Node], node_of: Sequence[int]) -> Forest:
    stops = np.cumsum([len(node.tokens) for node in nodes], dtype=np.int64)
    segments = [(int(stop) - len(node.tokens), int(stop)) for node, stop in zip(nodes, stops, strict=True)]
    ends = [end for _, end in segments]
    for k in reversed(range(len(nodes))):
        if nodes[k].parent >= 0:
            ends[nodes[k].parent] = max(ends[nodes[k].parent], ends[k])
    paths: list[tuple[Span, ...]] = []
    for node, segment in zip(nodes, segments, strict=True):
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), segment))
    sizes = [len(node.tokens) for node in nodes]
    return Forest(
        token_ids=_join([node.tokens for node in nodes]),
        position_ids=_join([np.arange(node.depth, node.depth + size) for node, size in zip(nodes, sizes, strict=True)]),
        ends=np.repeat(np.array(ends, dtype=np.int64), sizes),
        segments=tuple(segments),
        links=_links(nodes, segments, paths),
        places=tuple(_join([np.arange(*span) for span in paths[k]]) for k in node_of),
    )


def _links(nodes: Sequence[_Node], segments: Sequence[Span], paths: Sequence[tuple[Span, ...]]) -> tuple[Link, ...]:
    links: list[Link] = []
    parent = -1
    for node, (start, end) in zip(nodes, segments, strict=True):
        if node.parent >= 0 and links and node.parent == parent and links[-1].queries[1] == start:
            links[-1] = Link((links[-1].queries[0], end), links[-1].context)
        elif node.parent >= 0:
            links.append(Link((start, end), _merged(paths[node.parent])))
        parent = node.parent
    return tuple(links)


def _merged(path: Sequence[Span]) -> tuple[Span, ...]:
    """The path, with adjacent segments merged into one span."""
    spans: list[Span] = []
    for start, end in path:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return tuple(spans)


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
