from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.records.failures import Failure, FailureCause
from squelch.learner.batching import Row, collate, even_parts, plan, refuse_non_finite, to_rows
from squelch.learner.config import ObjectiveConfig
from squelch.learner.refusal import StepRefused
from squelch.learner.tensors import inputs_of
from tests.learner.models import make_groups
from tests.pictures import placed

LENGTHS = st.lists(st.integers(1, 90), min_size=0, max_size=40)


def rows_of(lengths: list[int]) -> list[Row]:
    return [
        Row(f"g{i:03d}", 0, np.arange(n, dtype=np.int32), np.array([n - 1]), np.array([1]), np.zeros(1), 1.0)
        for i, n in enumerate(lengths)
    ]


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 6), st.integers(90, 500), st.integers(1, 4), st.integers(0, 5), st.booleans())
def test_every_row_is_in_one_micro_batch_within_the_budget_and_ranks_match(
    lengths: list[int], minibatches: int, budget: int, world: int, step: int, share: bool
) -> None:
    rows = rows_of(lengths)
    steps = plan(rows, minibatches, budget, world, seed=3, step=step, share=share)
    assert len(steps) == min(minibatches, len(rows))
    places = Counter(int(i) for part in steps for hand in part.micro_batches for micro in hand for i in micro)
    assert places == Counter(range(len(rows)))
    for part in steps:
        assert len(part.micro_batches) == world
        assert len({len(hand) for hand in part.micro_batches}) == 1
        micros = [micro for hand in part.micro_batches for micro in hand]
        assert all(collate([rows[i] for i in micro], share).forest.num_tokens <= budget for micro in micros)
        assert part.num_sequences == part.num_tokens == sum(map(len, micros))
    sizes = [part.num_sequences for part in steps]
    assert not sizes or max(sizes) - min(sizes) <= 1


def rows_in_groups(counts: list[int], seed: int = 0) -> list[Row]:
    """Groups of `counts` members: 20 ids that all share, 10 to 60 of the group, 1 to 60 of the member."""
    rng = np.random.default_rng(seed)
    some, rows = lambda least: rng.integers(1, 1000, rng.integers(least, 61)).astype(np.int32), []
    system = rng.integers(1, 1000, 20).astype(np.int32)
    for g, count in enumerate(counts):
        prompt = np.concatenate([system, some(10)])
        for i in range(count):
            ids = np.concatenate([prompt, some(1)])
            places = np.arange(len(prompt) - 1, len(ids))
            rows.append(Row(f"g{g:03d}", i, ids, places, places, np.zeros(len(places)), 1.0))
    return rows


def tokens_fed(rows: list[Row], steps: list) -> int:
    """Tokens of the packed layouts of all micro-batches."""
    micros = [micro for part in steps for hand in part.micro_batches for micro in hand if len(micro)]
    return sum(collate([rows[i] for i in micro]).forest.num_tokens for micro in micros)


def with_every_row_a_group(rows: list[Row]) -> list[Row]:
    """The rows, of which none has a group in common with another, so that minibatches are cut between any two."""
    return [replace(row, group_id=f"{row.group_id}-{row.index:03d}") for row in rows]


GROUPS = st.lists(st.integers(1, 8), min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(GROUPS, st.integers(1, 6), st.integers(141, 900), st.integers(1, 4), st.integers(0, 5))
def test_an_optimizer_step_has_whole_groups_unless_there_are_fewer_than_minibatches(
    counts: list[int], minibatches: int, budget: int, world: int, step: int
) -> None:
    rows = rows_in_groups(counts)
    steps = plan(rows, minibatches, budget, world, seed=3, step=step)
    assert len(steps) == min(minibatches, len(rows)), "the number of steps does not depend on that of groups"
    places = [int(i) for part in steps for hand in part.micro_batches for micro in hand for i in micro]
    assert sorted(places) == list(range(len(rows)))
    groups = [{rows[i].group_id for hand in part.micro_batches for micro in hand for i in micro} for part in steps]
    if len(counts) >= minibatches:
        assert sum(map(len, groups)) == len(counts)
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
    else:
        sizes = [part.num_sequences for part in steps]
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=30)
@given(GROUPS, st.integers(1, 6), st.integers(0, 5))
def test_whole_groups_feed_at_most_the_tokens_that_minibatches_of_any_rows_do(
    counts: list[int], minibatches: int, step: int
) -> None:
    rows, minibatches = rows_in_groups(counts), min(minibatches, len(counts))
    whole, any_rows = (
        tokens_fed(own, plan(own, minibatches, 100_000, 1, seed=3, step=step))
        for own in (rows, with_every_row_a_group(rows))
    )
    assert whole <= any_rows


def test_minibatches_of_whole_groups_repeat_no_prompt() -> None:
    rows = rows_in_groups([8] * 32)
    whole, any_rows, one = (
        tokens_fed(own, plan(own, count, 4000, 1, seed=0, step=0))
        for own, count in ((rows, 4), (with_every_row_a_group(rows), 4), (rows, 1))
    )
    assert whole <= one + 3 * 20, "only the system prompt is fed in every minibatch"
    assert any_rows > 1.3 * whole


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.integers(1, 8), st.integers(0, 9))
def test_parts_of_groups_have_similar_sizes_and_are_the_same_every_time(
    sizes: list[int], count: int, seed: int
) -> None:
    count = min(count, len(sizes))
    parts = even_parts(sizes, count, np.random.default_rng(seed))
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    loads = [sum(sizes[i] for i in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes)
    assert {len(part) for part in parts} <= {len(sizes) // count, -(-len(sizes) // count)}
    assert parts == even_parts(sizes, count, np.random.default_rng(seed))


def test_groups_meet_others_in_another_step() -> None:
    drawn = [even_parts(list(range(8)), 2, np.random.default_rng([0, step])) for step in range(10)]
    assert len({frozenset(parts[0]) for parts in drawn}) > 7


def test_no_rank_is_idle_when_there_are_rows_for_all() -> None:
    (part,) = plan(rows_of([10] * 8), 1, 1000, 4, seed=0, step=0)
    assert [[len(micro) for micro in hand] for hand in part.micro_batches] == [[2]] * 4


def test_the_plan_ignores_arrival_order_and_follows_seed_and_step() -> None:
    groups = make_groups(8)
    config = ObjectiveConfig()
    one, other = to_rows(groups, config), to_rows([(g, ts[::-1]) for g, ts in groups[::-1]], config)
    assert [(row.group_id, row.index) for row in one] == [(row.group_id, row.index) for row in other]
    draw = lambda seed, step: [m.tolist() for p in plan(one, 2, 128, 1, seed, step) for m in p.micro_batches[0]]  # noqa: E731
    assert draw(1, 2) == draw(1, 2)
    assert draw(1, 2) != draw(1, 3)
    assert draw(1, 2) != draw(2, 2)


def test_a_budget_below_one_trajectory_names_the_key_and_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"learner\.token_budget=64 .* group g001, trajectory 0 has 80 tokens .* 80"):
        plan(rows_of([20, 80]), 1, 64, 1, 0, 0)


def test_nothing_to_learn_from_is_no_step() -> None:
    assert plan([], 4, 64, 2, 0, 0) == []


def test_rows_hold_what_the_policy_has_to_predict() -> None:
    groups = make_groups(1, 2)
    rows = to_rows(groups, ObjectiveConfig())
    for row, trajectory in zip(rows, groups[0][1], strict=True):
        sampled = np.flatnonzero(trajectory.loss_mask)
        assert row.length == sampled[-1]
        assert (row.targets == trajectory.token_ids[sampled]).all()
        assert (trajectory.token_ids[row.positions] == trajectory.token_ids[sampled - 1]).all()
        assert (row.log_probs == trajectory.log_probs[sampled]).all()


def test_failed_trajectories_are_neither_rows_nor_part_of_the_mean() -> None:
    (group_id, members), *_ = make_groups(1, 4)
    rewards = [1.0, 0.0, 0.5, 7.0]
    for t, reward in zip(members, rewards, strict=True):
        t.turns[-1].reward = reward
    members[3].failure = Failure(FailureCause.EPISODE_TIMEOUT)
    rows = to_rows([(group_id, members)], ObjectiveConfig(advantage="grpo_no_std"))
    assert np.allclose([row.advantage for row in rows], [0.5, -0.5, 0.0])


def test_one_group_twice_is_a_broken_invariant() -> None:
    groups = make_groups(1)
    with pytest.raises(RuntimeError, match="000001-000 was handed to the learner 2 times"):
        to_rows(groups * 2, ObjectiveConfig())


def test_non_finite_records_name_their_group() -> None:
    groups = make_groups(3)
    refuse_non_finite(groups)
    groups[1][1][0].turns[0].reward = float("nan")
    with pytest.raises(StepRefused, match=r"^non-finite reward in group 000001-001$"):
        refuse_non_finite(groups)
    groups = make_groups(3)
    trajectory = groups[2][1][1]
    trajectory.log_probs[np.flatnonzero(trajectory.loss_mask)[0]] = -np.inf
    with pytest.raises(StepRefused, match=r"^non-finite log-probability in group 000001-002$"):
        refuse_non_finite(groups)
    trajectory.failure = Failure(FailureCause.STEP_TIMEOUT)
    refuse_non_finite(groups)


def test_collate_packs_rows_and_places_their_predictions() -> None:
    rows = rows_of([20, 25])
    rows[0] = replace(rows[0], positions=np.array([1, 19]), targets=np.array([7, 8]), log_probs=np.zeros(2))
    shared, apart = collate(rows), collate(rows, share=False)
    assert shared.forest.token_ids.tolist() == list(range(25)) and apart.forest.num_tokens == 45
    assert shared.positions.tolist() == [1, 19, 24] and apart.positions.tolist() == [1, 19, 44]
    for micro in (shared, apart):
        assert micro.forest.token_ids[micro.positions].tolist() == [1, 19, 24]
        assert micro.targets.tolist() == [7, 8, 1] and micro.lengths.tolist() == [2, 1]


def test_an_empty_micro_batch_still_has_something_to_feed() -> None:
    micro = collate([])
    assert micro.forest.num_tokens == 1 and len(micro.positions) == len(micro.lengths) == 0


def test_rows_with_equal_ids_and_other_pictures_share_nothing_behind_them_and_are_not_fed_to_a_policy_of_text() -> None:
    (group_id, members) = make_groups(1)[0]
    one, other = (placed(2, data) for data in (b"one", b"other"))
    same = [replace(members[0], index=i, pictures=(p,)) for i, p in enumerate((one, one, other))]
    rows = to_rows([(group_id, same)], ObjectiveConfig())
    assert [row.pictures for row in rows] == [(one,), (one,), (other,)]
    length = rows[0].length
    assert collate(rows[:2]).forest.num_tokens == length
    assert collate(rows).forest.num_tokens == 2 * length
    with pytest.raises(ValueError, match=rf"group {group_id}, trajectory 0 shows 1 pictures"):
        inputs_of(collate(rows), torch.device("cpu"))
