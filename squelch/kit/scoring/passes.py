"""Passes that hold the continuations of many prompts, and what a pass costs on the device at hand. Pure numpy.

A forward pass of few tokens takes as long as its launches do. One prompt's continuations are often few, so the scorer
packs those of many prompts into one pass (`kit.packed.packing`), in which each prompt is fed once for all its
continuations. A prompt whose continuations fill a pass is cheaper on its own keys and values, which several passes
reuse. `PassCosts` says which of the two ways is faster, from what passes have cost so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squelch.kit.packed.packing import MIN_SAVED, Forest
from squelch.kit.pictures.arrays import Shown
from squelch.kit.records.shared_prefix import common_length, common_lengths, in_order
from squelch.kit.scoring.token_trees import Path, tree_of

ENOUGH_TOKENS = 512
"""Tokens in a batch beyond which throughput no longer grows on a CPU core (0.8 M parameters)."""
MAX_SHRINK = 0.75
"""A row that is shorter than this share of its batch's longest row starts a new batch."""
FADING = 0.9
"""Weight of the measurements so far when another one comes, so that a measurement on a busy machine is forgotten."""


def token_batches(lengths: Sequence[int], budget: int) -> list[np.ndarray]:
    """Indices in batches of similar length, longest first; rows x longest <= budget, or a single row.

    A batch of at least `ENOUGH_TOKENS` also ends before a row of which more than 25% would be padding.
    """
    batches: list[list[int]] = []
    for index in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        if batches:
            rows, longest = len(batches[-1]), lengths[batches[-1][0]]
            similar = rows * longest < ENOUGH_TOKENS or lengths[index] >= MAX_SHRINK * longest
            if similar and (rows + 1) * longest <= budget:
                batches[-1].append(index)
                continue
        batches.append([index])
    return [np.array(batch, dtype=np.int64) for batch in batches]


def common_prefix_length(rows: Sequence[np.ndarray]) -> int:
    """Number of leading tokens that all rows share, below the shortest row's length so that each row keeps a token."""
    return min(common_length(rows), min(len(row) for row in rows) - 1)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """(..., rows, longest) int64, with zeros on the right of each row (..., length)."""
    longest = max(row.shape[-1] for row in rows)
    found = np.zeros((*rows[0].shape[:-1], len(rows), longest), dtype=np.int64)
    for place, row in enumerate(rows):
        found[..., place, : row.shape[-1]] = row
    return found


@dataclass(frozen=True)
class Columns:
    """Prompts and the continuations to score after each.

    `prompts`: (length,) int64 ids each; `shown`: their identities (`kit.records.shared_prefix.identities`); `rows`: by
    prompt, the paths of each row (`kit.scoring.token_trees`); `positions`: by prompt the position of each of its
    tokens, (length,) or (axes, length), int64; None: they count from 0. Tokens after a prompt count on from its largest
    position, in every axis. `pictures`: by prompt, what is fed of its pictures; None for a model without a tower.
    """

    prompts: Sequence[np.ndarray]
    shown: Sequence[np.ndarray]
    rows: Sequence[Sequence[Sequence[Path]]]
    positions: Sequence[np.ndarray] | None = None
    pictures: Sequence[Sequence[Shown]] | None = None

    @cached_property
    def paths(self) -> list[list[Path]]:
        """The paths of each prompt's rows, one after another."""
        return [[path for row in rows for path in row] for rows in self.rows]

    def start(self, j: int) -> int:
        """The position of the first token after a prompt."""
        return len(self.prompts[j]) if self.positions is None else int(self.positions[j].max()) + 1

    def positions_of(self, j: int, after: int = 0) -> np.ndarray:
        """Positions of a prompt's tokens and of `after` tokens that follow it, (..., length + after) int64."""
        if self.positions is None:
            return np.arange(len(self.prompts[j]) + after)
        rest = self.start(j) + np.arange(after)
        own = self.positions[j]
        return np.concatenate([own, np.broadcast_to(rest, (*own.shape[:-1], after))], axis=-1)

    def packed_positions(self, places: Sequence[Place], forest: Forest) -> np.ndarray:
        """(..., num_tokens) int64: positions of a layout's tokens; `places`: its rows."""
        if self.positions is None:
            return forest.position_ids
        found = np.zeros((*self.positions[0].shape[:-1], forest.num_tokens), dtype=np.int64)
        for (j, _), at in zip(places, forest.places, strict=True):
            found[..., at] = self.positions_of(j, len(at) - len(self.prompts[j]))
        return found

    def first(self, count: int) -> Columns:
        """The first `count` prompts."""
        positions = None if self.positions is None else self.positions[:count]
        pictures = None if self.pictures is None else self.pictures[:count]
        return Columns(self.prompts[:count], self.shown[:count], self.rows[:count], positions, pictures)


@dataclass(frozen=True)
class Work:
    """Number of forward passes, and of tokens that they are fed."""

    passes: int
    tokens: int


class OneAPass:
    """How prompts are scored on their own keys and values.

    `shared`: number of tokens that all prompts have in common; `prompts`: batches of prompts whose keys and values are
    computed together; by prompt, `trees`: its rows as trees, None if each row is one path, of which all is wanted;
    `batches`: of the rows that have a token to feed; `total`: the work."""

    def __init__(self, columns: Columns, budget: int) -> None:
        self.shared, self._budget = common_prefix_length(columns.shown), budget
        lengths = [len(prompt) for prompt in columns.prompts]
        self.prompts = token_batches(lengths, budget)
        chains = [all(len(row) == 1 and row[0].start == 0 for row in rows) for rows in columns.rows]
        self.trees = [
            None if chain else [tree_of(row) for row in rows] for chain, rows in zip(chains, columns.rows, strict=True)
        ]
        self.batches: list[list[np.ndarray]] = []
        passes, tokens, self._fed = len(self.prompts) + (self.shared > 0), self.shared, 0
        for batch in self.prompts:
            tokens += len(batch) * (max(lengths[j] for j in batch) - self.shared)
        known: dict[bytes, tuple[list[np.ndarray], int]] = {}
        for paths, trees in zip(columns.paths, self.trees, strict=True):
            own = [len(path.ids) - 1 for path in paths] if trees is None else [len(tree.fed) for tree in trees]
            fed = np.array(own, dtype=np.int64)
            chain = np.array([trees is None or trees[i].is_chain for i in range(len(own))], dtype=bool)
            key = np.append(fed, chain).tobytes()
            if key not in known:
                known[key] = _row_batches(fed, chain, budget)
            batches, padded_tokens = known[key]
            self.batches.append(batches)
            passes, tokens, self._fed = passes + len(batches), tokens + padded_tokens, self._fed + int(fed.sum())
        self.total = Work(passes, tokens)

    def fills_passes(self) -> bool:
        """Whether packing could save no pass."""
        return len(self.trees) < 2 or not 0 < self._fed < self._budget * self.total.passes


def _row_batches(fed: np.ndarray, chain: np.ndarray, budget: int) -> tuple[list[np.ndarray], int]:
    """Batches of the rows with a fed token, chains apart because they need no mask; and their tokens with padding."""
    found = []
    for kind in (True, False):
        own = np.flatnonzero((fed > 0) & (chain == kind))
        found += [own[batch] for batch in token_batches(fed[own].tolist(), budget)]
    return found, sum(len(batch) * int(fed[batch].max()) for batch in found)


Place = tuple[int, int]
"""(prompt, continuation)."""


def packed_passes(columns: Columns, budget: int) -> tuple[list[list[Place]], Work]:
    """The continuations of each pass, and an upper bound of the work; a pass has at most `budget` tokens, or a single
    continuation. A prompt's continuations begin another pass where they do not fit and less room is left than the
    prompt takes, because each of their passes feeds the prompt."""
    passes: list[list[Place]] = []
    sizes: list[int] = []
    before = None
    for j in in_order(columns.shown).tolist():
        prompt, fed = columns.shown[j], [path.ids[:-1] for path in columns.paths[j]]
        order = in_order(fed)
        common = common_lengths([fed[k] for k in order])
        added = np.array([len(fed[k]) for k in order]) - common + np.minimum(common, MIN_SAVED - 1)
        shared = common_length([before, prompt]) if before is not None else 0
        head = len(prompt) - shared + min(shared, MIN_SAVED - 1) + MIN_SAVED - 1
        room = budget - sizes[-1] if sizes else 0
        opens = head + added.sum() > room and room < len(prompt)
        for k, tokens in zip(order.tolist(), added.tolist(), strict=True):
            if opens or not sizes or sizes[-1] + head + tokens > budget:
                passes.append([])
                sizes.append(0)
                head, tokens, opens = len(prompt) + MIN_SAVED - 1, len(fed[k]), False
            passes[-1].append((j, k))
            sizes[-1], head = sizes[-1] + head + tokens, 0
        before = prompt if len(order) else before
    return passes, Work(len(passes), sum(sizes))


def refuse_bad_rows(prompts: Sequence[np.ndarray], reasonings: Sequence[np.ndarray], context: int) -> None:
    """Raises ValueError for an empty prompt or reasoning, and if a pair exceeds the context of so many tokens."""
    shortest = min((len(row) for row in (*prompts, *reasonings)), default=0)
    if not prompts or not reasonings or shortest == 0:
        raise ValueError(
            f"cross-scoring needs prompts and reasonings of at least one token; got {len(prompts)} prompts, "
            f"{len(reasonings)} reasonings, the shortest of {shortest} tokens"
        )
    longest = max(len(x) for x in prompts) + max(len(z) for z in reasonings)
    if longest > context:
        raise ValueError(f"prompt and reasoning take {longest} tokens; the model's context is {context}")


def refuse_bad_paths(prompts: Sequence[np.ndarray], rows: Sequence[Sequence[Sequence[Path]]], context: int) -> None:
    """As `refuse_bad_rows`, of paths after prompts."""
    paths = [(len(prompt), path) for prompt, own in zip(prompts, rows, strict=True) for row in own for path in row]
    if not paths or min(min(size, len(path.ids) - path.start) for size, path in paths) < 1:
        raise ValueError(f"{len(paths)} paths after {len(prompts)} prompts; each needs at least one token")
    longest = max(size + len(path.ids) for size, path in paths)
    if longest > context:
        raise ValueError(f"prompt and path take {longest} tokens; the model's context is {context}")


class PassCosts:
    """Seconds of a pass and of a token, of one way to score, by least squares of the relative errors."""

    def __init__(self) -> None:
        self._squares, self._sums = np.zeros((2, 2)), np.zeros(2)

    @property
    def known(self) -> bool:
        """Whether there is a measurement."""
        return bool(self._sums.any())

    def add(self, work: Work, seconds: float) -> None:
        """Takes a measurement into account."""
        row = np.array([work.passes, work.tokens]) / max(seconds, 1e-9)
        self._squares = FADING * self._squares + np.outer(row, row)
        self._sums = FADING * self._sums + row

    @property
    def each(self) -> tuple[float, float]:
        """(Seconds of a pass without tokens, seconds of a token), neither negative; NaN before a measurement."""
        if not self.known:
            return float("nan"), float("nan")
        found = np.linalg.lstsq(self._squares, self._sums, rcond=1e-12)[0]
        if found.min() < 0:  # then the best fit has one of the two alone
            alone = self._sums / np.diag(self._squares)
            kept = int(np.argmax(self._sums * alone))
            found = np.where(np.arange(2) == kept, alone, 0.0)
        return float(found[0]), float(found[1])

    def seconds(self, work: Work) -> float:
        """Expected seconds of that work."""
        launch, token = self.each
        return launch * work.passes + token * work.tokens
