"""What is drawn to be scored: seeded, valid, merged with its multiplicity, and counted where it is left out."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Segment, Trajectory, Turn
from squelch.kit.scoring.drawing import (
    Draw,
    draw_first_turn,
    draw_trajectory,
    newest_version,
    version_mismatch,
    within_context,
)
from tests.pictures import placed


def turn(start: int, size: int, reasoning: int, version: int = 0) -> Turn:
    return Turn(start, start + size, start, start + reasoning, 0.0, 0.0, True, False, 1, version, version)


def trajectory(
    index: int, prompt: list[int], reasonings: list[int], failure: Failure | None = None, version: int = 0
) -> Trajectory:
    """Turns of 3 fed ids (the prompt first), then the reasoning's ids (100 * index + turn), then 2 ids of answer."""
    ids, turns = [], []
    for t, size in enumerate(reasonings):
        ids += prompt if t == 0 else [1, 2, 3]
        turns.append(turn(len(ids), size + 2, size, version))
        ids += [100 * index + t] * size + [7, 8]
    tokens = np.array(ids, dtype=np.int32)
    mask, zeros = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=np.float32)
    return Trajectory(index, tokens, mask, zeros, turns, False, False, failure)


def unclosed(trajectory: Trajectory) -> Trajectory:
    """With a first turn that ends in the middle of its reasoning."""
    first = trajectory.turns[0]
    first.reasoning_start = first.reasoning_end = first.sample_end
    return trajectory


def window(num_groups: int, size: int, prompts: list[list[int]] | None = None) -> dict[str, list[Trajectory]]:
    prompts = prompts or [[10 + g, 11, 12] for g in range(num_groups)]
    return {f"g{g}": [trajectory(i, prompts[g], [3, 4]) for i in range(size)] for g in range(num_groups)}


def same(a: Draw, b: Draw) -> bool:
    return (
        [x.tolist() for x in a.prompts] == [x.tolist() for x in b.prompts]
        and [z.tolist() for z in a.reasonings] == [z.tolist() for z in b.reasonings]
        and np.array_equal(a.source, b.source)
        and np.array_equal(a.weights, b.weights)
        and a.excluded == b.excluded
    )


def test_first_turn_draws_k_reasonings_of_each_group_under_its_own_prompt() -> None:
    groups = window(4, 6)
    draw = draw_first_turn(groups, 64, 3, (0, 1), 0)
    assert sorted(x.tolist() for x in draw.prompts) == [[10 + g, 11, 12] for g in range(4)]
    assert Counter(draw.source.tolist()) == dict.fromkeys(range(4), 3)
    assert np.allclose(draw.weights, 1.0)
    for column in range(4):
        drawn = [z.tolist() for z, j in zip(draw.reasonings, draw.source, strict=True) if j == column]
        assert all(z == [z[0]] * 3 and z[0] % 100 == 0 for z in drawn), "Z is the first turn's reasoning, all of it"
        assert len({z[0] for z in drawn}) == 3, "without replacement"


def test_a_draw_is_a_function_of_the_seed_and_not_of_the_order_of_arrival() -> None:
    groups = window(5, 4)
    arrived = {name: groups[name][::-1] for name in reversed(groups)}
    for draw in (lambda g, s: draw_first_turn(g, 3, 2, s, 0), lambda g, s: draw_trajectory(g, 16, s, 0)):
        assert same(draw(groups, (0, 1)), draw(arrived, (0, 1)))
        assert not same(draw(groups, (0, 1)), draw(groups, (0, 2)))


def test_identical_prompts_are_one_column_with_the_mass_of_all_their_groups() -> None:
    groups = window(3, 4, [[1, 2], [5, 6], [1, 2]])
    draw = draw_first_turn(groups, 64, 2, (0,), 0)
    weights = {tuple(x.tolist()): w for x, w in zip(draw.prompts, draw.weights, strict=True)}
    assert weights == {(1, 2): 2.0, (5, 6): 1.0}
    assert len(draw.reasonings) == 6


def test_at_most_max_prompts_columns_chosen_at_random() -> None:
    chosen = [tuple(sorted(x[0] for x in draw_first_turn(window(8, 2), 3, 1, (s,), 0).prompts)) for s in range(20)]
    assert {len(columns) for columns in chosen} == {3}
    assert len(set(chosen)) > 5


def test_prompts_with_equal_ids_and_other_pictures_are_columns_of_their_own() -> None:
    pictures = [placed(1, data) for data in (b"one", b"other", b"one")]
    groups = window(3, 2, [[10, 11, 12]] * 3)
    for name, picture in zip(groups, pictures, strict=True):
        for one in groups[name]:
            one.pictures = (picture, placed(10, b"shown after the first turn's prompt"))
    draw = draw_first_turn(groups, 64, 2, (0,), 0)
    assert [x.tolist() for x in draw.prompts] == [[10, 11, 12]] * 2
    assert sorted(draw.weights.tolist()) == [1.0, 2.0]
    assert len({shown[0].digest for shown in draw.pictures}) == 2
    for group, column in zip(draw.groups, draw.source, strict=True):
        assert draw.pictures[column] == groups[group][0].pictures[:1]


def test_first_turn_counts_what_it_cannot_use_and_draws_from_the_rest() -> None:
    group = [
        trajectory(0, [1, 2], [3]),
        trajectory(1, [1, 2], [0]),
        unclosed(trajectory(5, [1, 2], [3])),
        trajectory(2, [1, 2], [3], failure=Failure(FailureCause.STEP_TIMEOUT)),
        trajectory(3, [1, 2], []),
        trajectory(4, [1, 2], [3], version=-1),
    ]
    draw = draw_first_turn({"a": group}, 64, 8, (0,), 0)
    assert [z.tolist() for z in draw.reasonings] == [[0, 0, 0]]
    assert draw.weights.tolist() == [1.0]
    assert draw.excluded == {"empty": 1, "unclosed": 1, "failed": 1, "no_turn": 1, "stale": 1}


def test_trajectory_draws_are_whole_contexts_of_a_random_turn() -> None:
    groups = window(3, 2)
    draw = draw_trajectory(groups, 200, (0,), 0)
    assert len(draw.reasonings) == 200 and draw.weights.sum() == 200
    assert {len(x) for x in draw.prompts} == {3, 3 + 5 + 3}, "X of the second turn holds all of the first"
    for z, column in zip(draw.reasonings, draw.source, strict=True):
        later = len(draw.prompts[column]) > 3
        assert z[0] % 100 == (1 if later else 0) and len(z) == (4 if later else 3)
    assert np.array_equal(draw.weights, np.bincount(draw.source))


def test_a_turn_is_scored_under_what_its_own_segment_showed_and_no_other_segment() -> None:
    cut = [trajectory(i, [10, 11, 12], [3, 4]) for i in range(2)]  # 8 ids, then the second turn's segment
    for one, data in zip(cut, (b"one", b"other"), strict=True):
        one.segments, one.pictures = (Segment(8, "compaction"),), (placed(9, data),)
    apart = [replace(one, segments=(), turns=[turn(3, 6, 4)], pictures=()) for one in cut]
    for one in apart:
        one.token_ids = one.token_ids[8:]
    draw, first = draw_trajectory({"a": cut}, 200, (0,), 0), draw_first_turn({"a": cut}, 64, 2, (0,), 0)
    assert sorted({tuple(x.tolist()) for x in draw.prompts}) == [(1, 2, 3), (10, 11, 12)]
    assert sorted(p[0].position for p in draw.pictures if p) == [1, 1], "pictures are placed in their own segment"
    assert [x.tolist() for x in first.prompts] == [[10, 11, 12]] and first.pictures == [()]
    later = {z.tobytes() for z, number in zip(draw.reasonings, draw.turns, strict=True) if number == 1}
    assert later == {one.reasoning_ids(0).astype(np.int64).tobytes() for one in apart}


def test_trajectories_are_uniform_before_turns_are() -> None:
    groups = {"a": [trajectory(0, [1], [1]), trajectory(1, [2], [1] * 9)]}
    draw = draw_trajectory(groups, 2000, (3,), 0)
    short = sum(int(z[0]) == 0 for z in draw.reasonings)
    assert 900 < short < 1100, "a long trajectory is not drawn more often for its turns"


def test_a_drawn_turn_without_reasoning_is_counted_and_not_replaced() -> None:
    draw = draw_trajectory({"a": [trajectory(0, [1], [2, 0]), unclosed(trajectory(1, [1], [2]))]}, 100, (0,), 0)
    assert len(draw.reasonings) + draw.excluded["empty"] + draw.excluded["unclosed"] == 100
    assert 10 < draw.excluded["empty"] < 40 < draw.excluded["unclosed"] < 70


def test_a_window_in_which_everything_failed_yields_an_empty_draw() -> None:
    groups = {"a": [trajectory(0, [1], [2], failure=Failure(FailureCause.EPISODE_TIMEOUT))]}
    assert draw_first_turn(groups, 4, 2, (0,), 0).excluded == {"failed": 1}
    for draw in (draw_first_turn(groups, 4, 2, (0,), 0), draw_trajectory(groups, 8, (0,), 0)):
        assert draw.prompts == [] and draw.reasonings == [] and len(draw.source) == 0
        assert version_mismatch(draw, 3) == 0.0


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), min_size=1, max_size=20),
    st.integers(2, 60),
)
def test_what_is_left_fits_the_context_and_the_rest_is_counted(
    sizes: list[int], samples: list[tuple[int, int]], context: int
) -> None:
    source = np.array([column % len(sizes) for column, _ in samples])
    columns, source = np.unique(source, return_inverse=True)
    prompts = [np.full(sizes[j], j) for j in columns]
    reasonings = [np.full(n, s) for s, (_, n) in enumerate(samples)]
    versions = np.zeros((len(samples), 2), dtype=int)
    marks = np.zeros(len(samples), dtype=int)
    groups, none = marks.astype(str), [()] * len(prompts)
    draw = Draw(prompts, none, np.ones(len(columns)), reasonings, source, versions, {}, marks, groups, marks)
    left = within_context(draw, context)
    assert len(left.reasonings) + left.excluded.get("too_long", 0) == len(samples)
    assert len(left.versions) == len(left.reasonings) == len(left.source)
    for z, j in zip(left.reasonings, left.source, strict=True):
        assert left.prompts[j][0] == prompts[source[z[0]]][0], "a sample keeps its own prompt"
    if left.reasonings:
        assert max(map(len, left.prompts)) + max(map(len, left.reasonings)) <= context
        assert set(left.source.tolist()) == set(range(len(left.prompts))) and (left.weights > 0).all()


def test_one_overlong_prompt_leaves_alone() -> None:
    reasonings = [np.ones(4)] * 4
    prompts = [np.ones(10), np.ones(98), np.ones(20)]
    weights, source, marks = np.array([2.0, 1, 1]), np.array([0, 0, 1, 2]), np.arange(4)
    groups, none = marks.astype(str), [()] * len(prompts)
    draw = Draw(prompts, none, weights, reasonings, source, np.zeros((4, 2)), {"failed": 2}, marks, groups, marks)
    left = within_context(draw, 100)
    assert [len(x) for x in left.prompts] == [10, 20]
    assert left.source.tolist() == [0, 0, 1] and left.weights.tolist() == [2.0, 1.0]
    assert left.excluded == {"failed": 2, "too_long": 1}
    assert left.turns.tolist() == [0, 1, 3] and left.groups.tolist() == ["0", "1", "3"]


def test_version_mismatch_is_the_share_of_tokens_of_other_versions() -> None:
    groups = {"a": [trajectory(0, [1], [6], version=4), trajectory(1, [1], [2], version=3)]}
    draw = draw_first_turn(groups, 4, 2, (0,), 0)
    assert newest_version(groups) == 4
    assert version_mismatch(draw, 4) == pytest.approx(0.25)
    assert version_mismatch(draw, 5) == 1.0
