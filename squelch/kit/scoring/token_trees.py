"""Continuations of a prompt as trees of tokens, so that what several of them share is computed once. Pure numpy.

A `Path` is a continuation of a prompt; the log-likelihood of its ids from `start` on is wanted. Paths of a row are
merged where they begin alike. Each node of the tree is a token, fed after its ancestors; the log-probability of a token
comes from its parent's state, or from the prompt's last state. So only nodes with children are fed, and a token that
several paths share is fed and scored once.

Invariant: a node comes after its parent, so that a tree that is a chain is an ordinary causal row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Path:
    """`ids`: a continuation of the prompt, at least one; `start`: index of the first id whose likelihood counts."""

    ids: np.ndarray
    start: int = 0


@dataclass(frozen=True)
class TokenTree:
    """Merged paths. Fed nodes are numbered from 0; -1 is the prompt's last token.

    `fed`, `parent`: (num_fed,) token and parent of each fed node; `before`, `target`: (num_edges,) the node whose state
    predicts each wanted token, and the token; `paths`: for each path the indices of its edges from its start on.
    """

    fed: np.ndarray
    parent: np.ndarray
    before: np.ndarray
    target: np.ndarray
    paths: list[np.ndarray]

    @cached_property
    def depth(self) -> np.ndarray:
        """(num_fed,) number of tokens between the prompt and each fed node."""
        found = np.zeros(len(self.fed), dtype=np.int64)
        for node, parent in enumerate(self.parent):
            found[node] = found[parent] + 1 if parent >= 0 else 0
        return found

    @property
    def is_chain(self) -> bool:
        """Whether every fed node follows the one before it."""
        return bool((self.parent == np.arange(-1, len(self.parent) - 1)).all())

    def seen(self) -> np.ndarray:
        """(num_fed, num_fed) bool: each node's ancestors and itself."""
        found = np.eye(len(self.fed), dtype=bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                found[node] |= found[parent]
        return found


def tree_of(paths: Sequence[Path]) -> TokenTree:
    """The tree of a row's paths."""
    node_of: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    walks = []
    for path in paths:
        node, walk = -1, []
        for token in path.ids.tolist():
            after = node_of.setdefault((node, token), len(tokens))
            if after == len(tokens):
                tokens.append(token)
                parents.append(node)
            node = after
            walk.append(node)
        walks.append(walk[path.start :])
    return _numbered(np.array(tokens), np.array(parents), walks)


def _numbered(tokens: np.ndarray, parents: np.ndarray, walks: list[list[int]]) -> TokenTree:
    """The tree with its fed nodes numbered, and with an edge for each token that some path wants."""
    inner = np.zeros(len(tokens), dtype=bool)
    inner[parents[parents >= 0]] = True
    number = np.append(np.cumsum(inner) - 1, -1)  # the last entry is that of the prompt, whose index is -1
    wanted = np.unique(np.concatenate([np.array(walk, dtype=np.int64) for walk in walks]))
    edges = [np.searchsorted(wanted, walk) for walk in walks]
    return TokenTree(tokens[inner], number[parents[inner]], number[parents[wanted]], tokens[wanted], edges)
