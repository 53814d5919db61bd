"""Splits groups into micro-batches: decides which rows are processed together, and on which rank. Pure numpy.

Invariants:

- Rows are sorted by (group id, trajectory index) before they are shuffled, so that the order of arrival has no effect;
  the shuffle is a function of (seed, step).
- An optimizer step is made of whole groups, whose common prompts it feeds once. With fewer groups than minibatches,
  trajectories are dealt one by one, so that the number of optimizer steps does not depend on that of groups.
- A row is one segment of a trajectory. The rows of a trajectory follow each other, are in one optimizer step, and share
  its advantage and its weight in the mean, which its sampled tokens in all segments determine.
- They are also in one micro-batch, unless together they exceed the token budget. That is refused if the objective needs
  all of a trajectory's tokens at once (`whole`).
- Every row is in exactly one micro-batch of one rank. Ranks with fewer micro-batches than others get empty ones (which
  the trainer runs with weight 0); no row is duplicated.
- The plan depends only on the rows, the settings, the seed and the step. Every rank computes the whole plan, without
  communication.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from squelch.actors.messages import StepTerms
from squelch.kit.packed.packing import Forest, added_tokens, pack
from squelch.kit.pictures.arrays import PictureArrays, Shown, arrays_of, shown_of
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.content import Picture, pictures_within
from squelch.kit.records.equal_rewards import are_equal
from squelch.kit.records.records import Trajectory
from squelch.kit.records.shared_prefix import common_lengths, identities, in_order
from squelch.learner.config import ObjectiveConfig
from squelch.learner.objective.advantages import group_advantages, overlong_penalties, shaped_returns, token_rewards
from squelch.learner.refusal import SettingRefused, StepRefused

NO_TERMS = StepTerms()
"""A loss that is not scaled, of which no group lacks a term."""
Groups = Sequence[tuple[str, Sequence[Trajectory]]]
"""(group id, its trajectories) per group. Failed trajectories may be among them; `survivors` excludes them."""


@dataclass(frozen=True)
class Row:
    """One segment of a trajectory to learn from. `token_ids` (length,) int32 are the inputs: all of its ids before the
    last sampled one; with `bootstrap` also that one, because the critic then evaluates the state after it.

    `positions` (num_sampled,) are the indices of inputs whose next token was sampled; `targets` and `log_probs`
    (num_sampled,) are these sampled tokens and their rollout log-probabilities.
    """

    group_id: str
    index: int
    token_ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    log_probs: np.ndarray
    advantage: float
    rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """(num_sampled,) float64, reward of each sampled token (`learner.objective.advantages.token_rewards`)."""
    bootstrap: bool = False
    """The episode was ended from outside, so the critic's value of the state after the last token is used."""
    pictures: tuple[Picture, ...] = ()
    """The pictures whose positions are among the inputs."""
    versions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(num_sampled,) int64, the policy version that sampled each token; where only the oldest and the newest of a turn
    are known, the oldest."""
    spared: bool = False
    """Whether one term of the loss leaves the row out (`StepTerms.without`)."""
    all_sampled: int | None = None
    """Sampled tokens of the trajectory in all of its segments; None: the row is the whole trajectory."""

    @property
    def trajectory(self) -> tuple[str, int]:
        """The trajectory that the row belongs to."""
        return self.group_id, self.index

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class MicroBatch:
    """Rows in one packed layout. Flat fields have one entry per sampled token, (num_sampled,), row after row."""

    rows: tuple[Row, ...]
    forest: Forest
    positions: np.ndarray
    """Index, among the packed tokens, of the input that predicts each sampled token."""
    targets: np.ndarray
    rollout: np.ndarray
    versions: np.ndarray
    advantages: np.ndarray
    lengths: np.ndarray
    """(num_sequences,) sampled tokens of each trajectory in this micro-batch."""
    totals: np.ndarray
    """(num_sequences,) sampled tokens of each trajectory, wherever its rows are."""
    ends: np.ndarray
    """(num_rows,) index, among the packed tokens, of each row's last input."""
    spared: np.ndarray | None
    """(num_sampled,) bool, the tokens that one term of the loss leaves out; None if no row of the micro-batch is."""
    pictures: PictureArrays | None = None
    """What a policy with a vision tower is fed beside the ids; None for other policies."""


@dataclass(frozen=True)
class OptimizerStep:
    """`micro_batches[rank][k]`: indices of rows, possibly none; every rank has the same number of micro-batches."""

    micro_batches: tuple[tuple[np.ndarray, ...], ...]
    num_sequences: int
    """Trajectories of the step, over all ranks."""
    num_tokens: int
    """Sampled tokens of the step, over all ranks."""

    def groups(self, rows: Sequence[Row]) -> list[list[str]]:
        """For each place k, the ids of the groups with a row in micro-batch number k of any rank, sorted."""
        return [
            sorted({rows[i].group_id for indices in place for i in indices})
            for place in zip(*self.micro_batches, strict=True)
        ]


def survivors(groups: Groups) -> list[tuple[str, list[Trajectory]]]:
    """Groups sorted by id, each with its surviving trajectories sorted by index.

    Raises RuntimeError when two groups have the same id.
    """
    ordered = sorted(groups, key=lambda group: group[0])
    ids = [group_id for group_id, _ in ordered]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise RuntimeError(f"group {twice} was handed to the learner {ids.count(twice)} times in one step")
    return [(gid, sorted((t for t in ts if t.failure is None), key=lambda t: t.index)) for gid, ts in ordered]


def refuse_non_finite(groups: Groups) -> None:
    """Raises StepRefused, which names the first group (by id) with a non-finite reward or log-probability."""
    for group_id, trajectories in survivors(groups):
        for t in trajectories:
            if not np.isfinite(t.episode_return + t.format_penalty):
                raise StepRefused(f"non-finite reward in group {group_id}")
            if not np.isfinite(t.log_probs[t.loss_mask]).all():
                raise StepRefused(f"non-finite log-probability in group {group_id}")


def to_rows(groups: Groups, config: ObjectiveConfig, terms: StepTerms = NO_TERMS) -> list[Row]:
    """Rows of all surviving trajectories, of their segments with sampled tokens, sorted by (group id, index, segment).

    SettingRefused if a critic is needed for a trajectory of several segments.
    """
    rows: list[Row] = []
    of_all, spared = survivors(groups), set(terms.spared)
    divisor = None
    if config.divisor == "window":
        divisor = _window_std([alive for _, alive in of_all]) if terms.window_std is None else terms.window_std
    for group_id, alive in of_all:
        advantages = group_advantages(ranked_returns(alive, config), config.advantage, divisor)
        pairs = zip(alive, advantages.tolist(), strict=True)
        found = [row for t, advantage in pairs for row in _rows(group_id, t, advantage, config)]
        rows += [replace(row, spared=True) for row in found] if group_id in spared else found
    return rows


def _window_std(groups: Sequence[Sequence[Trajectory]]) -> float:
    """Root of the groups' mean reward variance."""
    returns = [np.array([t.episode_return for t in alive]) for alive in groups if len(alive) > 1]
    variances = [0.0 if are_equal(own) else float(np.var(own, ddof=1)) for own in returns]
    return math.sqrt(np.mean(variances)) if variances else 0.0


def ranked_returns(alive: Sequence[Trajectory], config: ObjectiveConfig) -> np.ndarray:
    """Returns that advantages compare within a group, (num_survivors,) float64: episode returns plus over-long
    penalties and, if configured, format penalties. `learner.objective.credit` subtracts a KL term in the reward
    later."""
    returns = np.array([t.episode_return for t in alive])
    penalties = np.array([t.format_penalty for t in alive])
    shaped = shaped_returns(returns, penalties, config.include_format_penalty)
    return shaped + np.array([overlong_penalties(_turn_lengths(t), config.overlong).sum() for t in alive])


def _turn_lengths(trajectory: Trajectory) -> np.ndarray:
    return np.array([turn.sample_end - turn.sample_start for turn in trajectory.turns])


def _rows(group_id: str, trajectory: Trajectory, advantage: float, config: ObjectiveConfig) -> list[Row]:
    """One row for each segment with sampled tokens."""
    everywhere = np.flatnonzero(trajectory.loss_mask)
    if not len(everywhere):
        return []
    if config.needs_critic and trajectory.segments:
        raise SettingRefused(
            f"learner.objective.advantage={config.advantage} needs a critic, whose time runs along one sequence, and "
            f"group {group_id}, trajectory {trajectory.index} has {len(trajectory.spans)} segments; set "
            "learner.algorithm to grpo, dr_grpo, dapo or gspo"
        )
    bootstrap = config.needs_critic and trajectory.bootstrap_last_state
    rewards, versions = token_rewards(trajectory, config), _versions(trajectory)
    rows: list[Row] = []
    for start, end in trajectory.spans:
        first, last = np.searchsorted(everywhere, (start, end)).tolist()
        if first == last:
            continue
        sampled = everywhere[first:last]
        if sampled[0] == start:
            raise RuntimeError(
                f"group {group_id}, trajectory {trajectory.index}: the first token of its segment at {start} is sampled"
            )
        stop = sampled[-1] + bootstrap
        rows.append(
            Row(
                group_id=group_id,
                index=trajectory.index,
                token_ids=trajectory.token_ids[start:stop],
                positions=sampled - 1 - start,
                targets=trajectory.token_ids[sampled],
                log_probs=trajectory.log_probs[sampled],
                advantage=advantage,
                rewards=rewards[first:last],
                bootstrap=bootstrap,
                pictures=pictures_within(trajectory.pictures, start, stop),
                versions=versions[sampled],
                all_sampled=len(everywhere),
            )
        )
    return rows


def _versions(trajectory: Trajectory) -> np.ndarray:
    """(length,) int64, the version that sampled each token; -1 for tokens that were fed."""
    found = np.full(len(trajectory.token_ids), -1, np.int64)
    for turn in trajectory.turns:
        found[turn.sample_start : turn.sample_end] = turn.version_min
    for span in trajectory.version_spans or ():
        found[span.start : span.end] = span.version
    return found


def shown(rows: Sequence[Row]) -> list[np.ndarray]:
    """Per row, the identities of its inputs (`kit.records.shared_prefix.identities`), (length,): rows share inputs as
    far as
    these are equal."""
    return identities([row.token_ids for row in rows], [row.pictures for row in rows])


def plan(
    rows: Sequence[Row],
    minibatches: int,
    token_budget: int,
    world_size: int,
    seed: int,
    step: int,
    share: bool = True,
    whole: str = "",
) -> list[OptimizerStep]:
    """Split the trajectories into at most `minibatches` optimizer steps (fewer when there are fewer) and pack each.

    With `share`, rows with a common prefix go to the same micro-batch, and the prefix counts once. `whole`: the setting
    that needs all rows of a trajectory in one micro-batch, "" if none does. SettingRefused if one row, or the rows of
    one trajectory that must stay together, are longer than `token_budget`.
    """
    if not len(rows):
        return []
    if max(row.length for row in rows) > token_budget:
        worst = max(rows, key=lambda row: row.length)
        raise SettingRefused(
            f"learner.token_budget={token_budget} is smaller than one trajectory: group {worst.group_id}, trajectory "
            f"{worst.index} has {worst.length} tokens to feed; set learner.token_budget to at least {worst.length}"
        )
    sizes = _Sizes(shown(rows), share)
    trajectories = _runs([row.trajectory for row in rows])
    groups = _runs([rows[own[0]].group_id for own in trajectories])
    random = np.random.default_rng([seed, step])
    if len(groups) < minibatches:
        parts = np.array_split(random.permutation(len(trajectories)), min(minibatches, len(trajectories)))
    else:
        tokens = [sizes.of(np.concatenate([trajectories[k] for k in group])) for group in groups]
        parts = [np.concatenate([groups[g] for g in part]) for part in even_parts(tokens, minibatches, random)]
    chosen = [[trajectories[k] for k in part] for part in parts]
    return [_optimizer_step(rows, part, token_budget, world_size, sizes, whole) for part in chosen]


def _runs(labels: Sequence[Hashable]) -> list[np.ndarray]:
    """The indices of each run of equal labels."""
    starts = [k for k, label in enumerate(labels) if not k or label != labels[k - 1]]
    return np.split(np.arange(len(labels)), starts[1:])


def even_parts(sizes: Sequence[int], count: int, random: np.random.Generator) -> list[list[int]]:
    """Deals items, at least `count`, into `count` parts of similar total size, at random.

    The numbers of items differ by at most 1. In each round every part gets one of `count` random items: the largest
    goes to the smallest part.
    """
    order = random.permutation(len(sizes)).tolist()
    parts: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    for start in range(0, len(order), count):
        smallest = sorted(range(count), key=load.__getitem__)
        largest = sorted(order[start : start + count], key=lambda item: -sizes[item])
        for place, item in zip(smallest, largest, strict=False):
            parts[place].append(item)
            load[place] += sizes[item]
    return [parts[k] for k in random.permutation(count)]


def _optimizer_step(
    rows: Sequence[Row],
    trajectories: Sequence[np.ndarray],
    token_budget: int,
    world_size: int,
    sizes: "_Sizes",
    whole: str,
) -> OptimizerStep:
    """`trajectories`: the indices of each one's rows; `sizes`: of all rows."""
    pieces: list[np.ndarray] = []
    for own in trajectories:
        cut = sizes.cut(own, token_budget)
        if whole and len(cut) > 1:
            row, size = rows[own[0]], sizes.of(own)
            raise SettingRefused(
                f"learner.token_budget={token_budget} is smaller than one trajectory: group {row.group_id}, trajectory "
                f"{row.index} has {len(own)} segments with {size} tokens to feed together, which {whole} needs in one "
                f"micro-batch; set learner.token_budget to at least {size}"
            )
        pieces += cut
    pieces.sort(key=lambda piece: sizes.rank[piece[0]])
    lengths = np.array([sizes.of(piece) for piece in pieces], dtype=np.int64)
    after = [sizes.of(np.concatenate(pair)) for pair in pairwise(pieces)]
    added = np.array([lengths[0], *after], dtype=np.int64)
    added[1:] -= lengths[:-1]
    runs = balanced(lengths, added, token_budget, world_size)
    fed = [int(lengths[start] + added[start + 1 : end].sum()) for start, end in runs]
    return OptimizerStep(
        micro_batches=deal([np.sort(np.concatenate(pieces[start:end])) for start, end in runs], fed, world_size),
        num_sequences=len(trajectories),
        num_tokens=sum(rows[i].num_sampled for own in trajectories for i in own),
    )


class _Sizes:
    """The largest number of packed tokens of any of these rows, given by their identities.

    As a function of the set of rows this is submodular: what rows add to a set, they add at most to any larger one. So
    the sizes of neighbours bound that of a run of them.
    """

    def __init__(self, ids: Sequence[np.ndarray], share: bool) -> None:
        order = in_order(ids) if share else np.arange(len(ids))
        self.rank = np.argsort(order)
        """(num_rows,) place of each row in the order in which rows with a common prefix are neighbours."""
        ordered = [ids[i] for i in order.tolist()]
        self._lengths = np.array([len(one) for one in ordered], dtype=np.int64)
        self._common = common_lengths(ordered) if share else np.zeros_like(self._lengths)

    def of(self, rows: np.ndarray) -> int:
        """The size of these rows, at least one."""
        places = np.sort(self.rank[rows])
        lengths = self._lengths[places]
        if len(places) == 1:
            return int(lengths[0])
        common = np.minimum.reduceat(self._common[places[0] + 1 : places[-1] + 1], places[:-1] - places[0])
        return int(lengths[0] + added_tokens(lengths[1:], common).sum())

    def cut(self, rows: np.ndarray, budget: int) -> list[np.ndarray]:
        """The rows in their order, in runs of at most `budget` tokens, each with at least one row."""
        cuts = [0]
        for k in range(1, len(rows)):
            if self.of(rows[cuts[-1] : k + 1]) > budget:
                cuts.append(k)
        return np.split(rows, cuts[1:])


def fill(lengths: np.ndarray, added: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Cut the sequence of pieces into runs of at most `budget` tokens, each with at least one: (start, end) of each.

    `lengths`: (num_pieces,) tokens of each piece (the rows of a trajectory) alone; `added`: (num_pieces,) tokens that
    each adds to a run that contains the previous one.
    """
    cuts, size = [0], int(lengths[0])
    for i in range(1, len(lengths)):
        size += int(added[i])
        if size > budget:
            cuts.append(i)
            size = int(lengths[i])
    return list(zip(cuts, [*cuts[1:], len(lengths)], strict=True))


def balanced(lengths: np.ndarray, added: np.ndarray, budget: int, world_size: int) -> list[tuple[int, int]]:
    """Runs of similar size: the number of runs that `budget` requires is rounded up to a multiple of `world_size`, and
    pieces are cut by the smallest budget that needs no more runs than that."""
    count = -(-len(fill(lengths, added, budget)) // world_size) * world_size
    low, high = int(lengths.max()), budget
    while low < high:
        middle = (low + high) // 2
        if len(fill(lengths, added, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return fill(lengths, added, low)


def deal(runs: Sequence[np.ndarray], sizes: Sequence[int], world_size: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Assign micro-batches to ranks: each, the largest first, goes to the least loaded rank that has a slot left.
    Empty micro-batches fill the remaining slots."""
    slots = -(-len(runs) // world_size)
    hands: list[list[np.ndarray]] = [[] for _ in range(world_size)]
    load = [0] * world_size
    for k in sorted(range(len(runs)), key=lambda k: -sizes[k]):
        rank = min((r for r in range(world_size) if len(hands[r]) < slots), key=lambda r: (load[r], r))
        hands[rank].append(runs[k])
        load[rank] += sizes[k]
    empty = np.zeros(0, dtype=np.int64)
    return tuple(tuple(hand + [empty] * (slots - len(hand))) for hand in hands)


def collate(rows: Sequence[Row], share: bool = True, vision: Vision | None = None) -> MicroBatch:
    """Pack rows into one layout; with `share`, common prefixes are stored once. `vision`: of a policy with a vision
    tower.

    Without rows, the micro-batch is one token with nothing sampled, so that this rank still takes part in collectives.
    Raises ValueError for a picture that the policy cannot be fed.
    """
    ids = [row.token_ids.astype(np.int64) for row in rows] or [np.zeros(1, dtype=np.int64)]
    forest = pack(ids, share, shown(rows) or None)
    sequences = [list(own) for _, own in groupby(rows, key=lambda row: row.trajectory)]
    return MicroBatch(
        rows=tuple(rows),
        forest=forest,
        positions=_join([place[row.positions] for place, row in zip(forest.places, rows, strict=False)], np.int64),
        targets=_join([row.targets for row in rows], np.int64),
        rollout=_join([row.log_probs for row in rows], np.float32),
        versions=_join([row.versions for row in rows], np.int64),
        advantages=_join([np.full(row.num_sampled, row.advantage) for row in rows], np.float32),
        lengths=np.array([sum(row.num_sampled for row in own) for own in sequences], dtype=np.int64),
        totals=np.array([_all_sampled(own[0]) for own in sequences], dtype=np.int64),
        ends=np.array([place[-1] for place, _ in zip(forest.places, rows, strict=False)], dtype=np.int64),
        spared=_join([np.full(row.num_sampled, row.spared) for row in rows], bool)
        if any(r.spared for r in rows)
        else None,
        pictures=None if vision is None else _pictures(rows, forest, vision),
    )


def _pictures(rows: Sequence[Row], forest: Forest, vision: Vision) -> PictureArrays:
    """The pictures of packed rows, of which there may be none, and the micro-batch's positions."""
    known: dict[str, Shown] = {}
    names = [f"group {row.group_id}, trajectory {row.index}" for row in rows]
    found = [shown_of(row.pictures, vision, name, known) for row, name in zip(rows, names, strict=True)]
    return arrays_of(found or [()], forest.places, forest.num_tokens, vision)


def _all_sampled(row: Row) -> int:
    return row.num_sampled if row.all_sampled is None else row.all_sampled


def _join(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)
