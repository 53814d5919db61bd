"""One packed layout for rows of tokens: what rows begin with in common is in it once. Pure numpy.

The rows of a micro-batch form a forest: a segment is a run of tokens that one or more rows have in common, its parent
the segment before it in those rows, and a row is the tokens on a path from a root to a segment. System prompts, prompts
of a group, common turns and equal beginnings of two answers are all the same case. What rows have in common is
`actors.shared_prefix`'s to say.

Invariants:

- Every row is its path, exactly: `token_ids[places[i]]` is row i and `position_ids[places[i]]` counts from 0.
- Segments lie one after another in depth-first order, so that all that comes after a segment in any row (its subtree)
  is one run of tokens right behind it. Hence the whole mask: a token j is seen by a token i if and only if
  `j <= i < ends[j]`, `ends[j]` being where the subtree of j's segment ends.
- A segment that several rows share saves at least `MIN_SAVED` tokens; less is repeated instead, as each segment costs
  attention something. What is repeated is bounded by `added_tokens`, by which micro-batches are filled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.shared_prefix import common_lengths, in_order

MIN_SAVED = 16
"""Tokens that sharing has to save to be worth a segment."""

Span = tuple[int, int]
"""(first token, token after the last)."""


@dataclass(frozen=True)
class Link:
    """Tokens `queries`, whose segments have one parent, see all tokens of `context`: the path that ends there."""

    queries: Span
    context: tuple[Span, ...]


@dataclass(frozen=True)
class Forest:
    """The layout. Flat fields have one entry a token, (num_tokens,) int64."""

    token_ids: np.ndarray
    position_ids: np.ndarray
    ends: np.ndarray
    """Where the subtree of the token's segment ends."""
    segments: tuple[Span, ...]
    """In each, every token sees those up to itself."""
    links: tuple[Link, ...]
    """What tokens see before their own segment; every token is in at most one."""
    places: tuple[np.ndarray, ...]
    """Of each row, where its tokens are."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def pairs(self) -> int:
        """(query, key) pairs that attention has to look at."""
        own = sum((end - start) * (end - start + 1) // 2 for start, end in self.segments)
        return own + sum((x.queries[1] - x.queries[0]) * sum(b - a for a, b in x.context) for x in self.links)


@dataclass(frozen=True)
class _Node:
    parent: int
    """Index of the parent's node, -1 for a root."""
    depth: int
    tokens: np.ndarray


def added_tokens(lengths: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Tokens that each row, in order, adds at most to a layout that holds the row before it, (num_rows,).

    Where rows part without a segment of their own, fewer than `MIN_SAVED` of their common tokens are repeated.
    """
    return lengths - common + np.minimum(common, MIN_SAVED - 1)


def pack(rows: Sequence[np.ndarray], share: bool = True, identities: Sequence[np.ndarray] | None = None) -> Forest:
    """The layout of these rows, each (length,) of at least one token; without `share`, one segment a row.

    `identities`: what the rows show (`actors.shared_prefix.identities`), by which they share; None: their ids.
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
    """Runs of neighbours with more than `depth` tokens in common."""
    cuts = [k for k in range(span[0] + 1, span[1]) if common[k] <= depth]
    return list(zip([span[0], *cuts], [*cuts, span[1]], strict=True))


def _children(rows: Sequence[np.ndarray], common: np.ndarray, span: Span, depth: int) -> list[Span]:
    """Runs of rows that begin segments at `depth`: single rows, or several that share enough."""
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
    """Single rows before runs: segments without a subtree lie together, and what they see is one link."""
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
    """The path with neighbouring segments as one span."""
    spans: list[Span] = []
    for start, end in path:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return tuple(spans)


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
