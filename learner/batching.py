"""From groups to micro-batches: which rows are learned from together, on which rank. Pure numpy.

Invariants:

- Rows are in order of (group id, trajectory index) before anything random happens to them, so that arrival order
  cannot matter; the shuffle is a function of (seed, step).
- Every row is in exactly one micro-batch of one rank. Where ranks would have unequal numbers of micro-batches, the
  short ones get empty ones (which the trainer runs with weight 0); no row is ever duplicated.
- The plan is a function of the rows alone, so that every rank computes all of it and none has to ask another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.records import Trajectory
from learner.advantages import group_advantages, shaped_returns
from learner.config import ObjectiveConfig
from learner.prefixes import shared_prefixes

Groups = Sequence[tuple[str, Sequence[Trajectory]]]
"""(group id, its trajectories), failed ones included or not: they are left out here."""


@dataclass(frozen=True)
class Row:
    """One trajectory to learn from. `token_ids` (length,) int32 are the inputs: all ids before the last sampled one.

    `positions` (num_sampled,) index the inputs whose next token was sampled; `targets` and `log_probs` are that token
    and its rollout log-probability. `prompt_length` tokens come before the first sampled one.
    """

    group_id: str
    index: int
    token_ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    log_probs: np.ndarray
    advantage: float

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded on the right. Flat fields have one entry a sampled token, (num_sampled,)."""

    rows: tuple[Row, ...]
    input_ids: np.ndarray
    """(num_rows, width): what comes after each row's prefix."""
    positions: np.ndarray
    """Of the prediction, into the flattened (num_rows * width,) inputs."""
    targets: np.ndarray
    rollout: np.ndarray
    advantages: np.ndarray
    lengths: np.ndarray
    """(num_rows,) sampled tokens of each row."""
    prefix_ids: np.ndarray
    """(num_prefixes, prefix_length): openings that rows share; the length may be 0."""
    prefix_of: np.ndarray
    """(num_rows,) which prefix a row begins with."""


@dataclass(frozen=True)
class OptimizerStep:
    """`micro_batches[rank][k]`: indices of rows, possibly none; every rank has the same number of micro-batches."""

    micro_batches: tuple[tuple[np.ndarray, ...], ...]
    num_sequences: int
    num_tokens: int
    """Sampled tokens of the step, over all ranks."""


def survivors(groups: Groups) -> list[tuple[str, list[Trajectory]]]:
    """Groups by id, each with the trajectories that did not fail, by index. Two groups of one id are refused."""
    ordered = sorted(groups, key=lambda group: group[0])
    ids = [group_id for group_id, _ in ordered]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise RuntimeError(f"group {twice} was handed to the learner {ids.count(twice)} times in one step")
    return [(gid, sorted((t for t in ts if t.failure is None), key=lambda t: t.index)) for gid, ts in ordered]


def non_finite(groups: Groups) -> str | None:
    """Why the step must be refused: the first group (by id) with a non-finite reward or log-probability, else None."""
    for group_id, trajectories in survivors(groups):
        for t in trajectories:
            if not np.isfinite(t.episode_return + t.format_penalty):
                return f"non-finite reward in group {group_id}"
            if not np.isfinite(t.log_probs[t.loss_mask]).all():
                return f"non-finite log-probability in group {group_id}"
    return None


def to_rows(groups: Groups, config: ObjectiveConfig) -> list[Row]:
    """Rows of all surviving trajectories that sampled anything, in order of (group id, index)."""
    rows: list[Row] = []
    for group_id, alive in survivors(groups):
        returns = np.array([t.episode_return for t in alive])
        penalties = np.array([t.format_penalty for t in alive])
        shaped = shaped_returns(returns, penalties, config.include_format_penalty)
        advantages = group_advantages(shaped, config.advantage)
        rows += [_row(group_id, t, float(a)) for t, a in zip(alive, advantages, strict=True) if t.loss_mask.any()]
    return rows


def _row(group_id: str, trajectory: Trajectory, advantage: float) -> Row:
    sampled = np.flatnonzero(trajectory.loss_mask)
    if sampled[0] == 0:
        raise RuntimeError(f"group {group_id}, trajectory {trajectory.index}: the first token is marked as sampled")
    return Row(
        group_id=group_id,
        index=trajectory.index,
        token_ids=trajectory.token_ids[: sampled[-1]],
        positions=sampled - 1,
        targets=trajectory.token_ids[sampled],
        log_probs=trajectory.log_probs[sampled],
        advantage=advantage,
    )


def plan(
    rows: Sequence[Row], minibatches: int, token_budget: int, world_size: int, seed: int, step: int
) -> list[OptimizerStep]:
    """Split the rows into at most `minibatches` optimizer steps (fewer when there are fewer rows) and pack each.

    Raises ValueError when one row is longer than `token_budget`.
    """
    lengths = np.array([row.length for row in rows], dtype=np.int64)
    if len(rows) and lengths.max() > token_budget:
        worst = rows[int(lengths.argmax())]
        raise ValueError(
            f"learner.token_budget={token_budget} is smaller than one trajectory: group {worst.group_id}, trajectory "
            f"{worst.index} has {worst.length} tokens to feed; set learner.token_budget to at least {worst.length}"
        )
    order = np.random.default_rng([seed, step]).permutation(len(rows))
    parts = np.array_split(order, min(minibatches, len(rows))) if len(rows) else []
    return [_optimizer_step(rows, part, lengths, token_budget, world_size) for part in parts]


def _optimizer_step(
    rows: Sequence[Row], part: np.ndarray, lengths: np.ndarray, token_budget: int, world_size: int
) -> OptimizerStep:
    by_length = part[np.lexsort((part, -lengths[part]))]
    packed = balanced(by_length, lengths, token_budget, world_size)
    return OptimizerStep(
        micro_batches=deal(packed, lengths, world_size),
        num_sequences=len(part),
        num_tokens=sum(rows[i].num_sampled for i in part),
    )


def pack(by_length: np.ndarray, lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Cut rows, longest first, into runs whose padded size (rows times the longest) is within `budget`."""
    cuts, start = [], 0
    for i in range(1, len(by_length)):
        if (i - start + 1) * lengths[by_length[start]] > budget:
            cuts.append(i)
            start = i
    return np.split(by_length, cuts)


def balanced(by_length: np.ndarray, lengths: np.ndarray, budget: int, world_size: int) -> list[np.ndarray]:
    """The smallest equal-sized runs that need no more of them than the budget does, rounded up to whole ranks."""
    count = -(-len(pack(by_length, lengths, budget)) // world_size) * world_size
    low, high = int(lengths[by_length].max()), budget
    while low < high:
        middle = (low + high) // 2
        if len(pack(by_length, lengths, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return pack(by_length, lengths, low)


def deal(packed: list[np.ndarray], lengths: np.ndarray, world_size: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Micro-batches to ranks, costliest first to the least loaded rank that has a place left; empty ones fill up."""
    places = -(-len(packed) // world_size)
    hands: list[list[np.ndarray]] = [[] for _ in range(world_size)]
    load = [0] * world_size
    for run in sorted(packed, key=lambda run: -len(run) * int(lengths[run].max())):
        rank = min((r for r in range(world_size) if len(hands[r]) < places), key=lambda r: (load[r], r))
        hands[rank].append(run)
        load[rank] += len(run) * int(lengths[run].max())
    empty = np.zeros(0, dtype=np.int64)
    return tuple(tuple(hand + [empty] * (places - len(hand))) for hand in hands)


def collate(rows: Sequence[Row], share: bool = False) -> MicroBatch:
    """Pad rows on the right with id 0, their shared openings apart if `share`.

    No rows: one row of one token with nothing sampled, so that ranks stay in step.
    """
    width = max((row.length for row in rows), default=1)
    none = np.zeros((1, 0), dtype=np.int64), np.zeros(max(len(rows), 1), dtype=np.int64)
    prefixes, prefix_of = _prefixes(rows, width) if share else none
    start = prefixes.shape[1]
    width -= start
    input_ids = np.zeros((max(len(rows), 1), width), dtype=np.int64)
    for i, row in enumerate(rows):
        input_ids[i, : row.length - start] = row.token_ids[start:]
    return MicroBatch(
        rows=tuple(rows),
        input_ids=input_ids,
        positions=_join([i * width + row.positions - start for i, row in enumerate(rows)], np.int64),
        targets=_join([row.targets for row in rows], np.int64),
        rollout=_join([row.log_probs for row in rows], np.float32),
        advantages=_join([np.full(row.num_sampled, row.advantage) for row in rows], np.float32),
        lengths=np.array([row.num_sampled for row in rows], dtype=np.int64),
        prefix_ids=prefixes,
        prefix_of=prefix_of,
    )


def all_share(hands: Sequence[Sequence[Row]]) -> bool:
    """Whether each of these micro-batches, one a rank, has an opening worth sharing.

    A shared opening is a forward pass of its own, with its own collectives: ranks that run their k-th micro-batch
    together must share in all or in none, or they wait for one another for ever.
    """
    return all(_prefixes(rows, max((row.length for row in rows), default=1))[0].shape[1] > 0 for rows in hands)


def _prefixes(rows: Sequence[Row], width: int) -> tuple[np.ndarray, np.ndarray]:
    return shared_prefixes([row.token_ids for row in rows], [int(row.positions[0]) for row in rows], width)


def _join(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)
