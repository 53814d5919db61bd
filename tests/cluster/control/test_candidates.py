"""What must hold of q: against a direct computation, under noise, for useless and harmful choices, and at its edges."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.config import FilterConfig
from squelch.actors.filter.measure import GroupStatistics
from squelch.actors.filter.windows import make_window
from squelch.cluster.control.candidates import _halves, alignment, chosen
from squelch.learner.decomposition.alignment import HalfGram

SIZE = 8


def groups_of(counts: list[int]) -> list[GroupStatistics]:
    """Groups of SIZE trajectories with so many successes."""
    return [
        GroupStatistics.from_row(
            f"000001-{i:03d}", 1, np.random.default_rng(i).permutation([1.0] * c + [0.0] * (SIZE - c))
        )
        for i, c in enumerate(counts)
    ]


def gram_of(ids: tuple[str, ...], vectors: np.ndarray, scales: np.ndarray | None = None) -> HalfGram:
    """`vectors`: (4, P, d) task a, task b, regulariser a, regulariser b."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    return HalfGram(ids, np.ones((2, len(ids))) if scales is None else scales, flat @ flat.T)


@given(st.integers(1, 6), st.integers(0, 2**31), st.integers(0, 1))
@settings(max_examples=50, deadline=None)
def test_q_is_the_inner_product_of_the_unit_step_with_the_gain(count: int, seed: int, half: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, scales = rng.normal(size=(4, count, 5)), rng.uniform(0.1, 3, size=(2, count))
    kept = rng.random(count) < 0.6
    found = gram_of(tuple(map(str, range(count))), vectors, scales).q(kept, half)
    if not kept.any():
        assert found == 0
        return
    step = (scales[half][:, None] * vectors[half] + vectors[2 + half])[kept].mean(0)
    assert found == pytest.approx(step @ vectors[1 - half].mean(0) / np.linalg.norm(step), abs=1e-9)


def test_a_set_that_makes_no_step_gains_nothing() -> None:
    gram = gram_of(("a", "b"), np.zeros((4, 2, 3)))
    assert gram.q(np.array([True, True]), 0) == gram.q(np.array([False, False]), 1) == 0


def test_regularisers_that_point_away_from_the_gain_lower_q_of_the_choice_that_holds_more_of_them() -> None:
    """Groups with less variance have a weaker task gradient under the same regulariser, as the paper says."""
    groups = groups_of([4, 4, 1, 1])
    task = np.array([[1.0, 0.0]] * 2 + [[0.2, 0.0]] * 2)
    vectors = np.stack([task, task, np.full((4, 2), [0.0, 0.5]), np.full((4, 2), [0.0, 0.5])])
    ids = tuple(group.group_id for group in groups)
    found = alignment(gram_of(ids, vectors), groups, FilterConfig(), (0.5, 1.0))
    assert found.q[0.5] > found.q[1.0] > 0 and found.kept[0.5] < found.kept[1.0] and found.num_groups == 4


def test_under_noise_alone_the_mean_of_q_is_zero_whatever_rho_keeps() -> None:
    rng, found = np.random.default_rng(1), []
    for _ in range(300):
        groups = groups_of(rng.integers(0, SIZE + 1, size=6).tolist())
        spread = np.array([[group.returns.std()] for group in groups])
        vectors = rng.normal(size=(4, 6, 20)) * spread
        ids = tuple(group.group_id for group in groups)
        found.append(list(alignment(gram_of(ids, vectors), groups, FilterConfig(), (0.5, 0.9, 1.0)).q.values()))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / math.sqrt(len(found))
    assert (np.abs(mean) < 3.5 * error).all()


@given(
    st.lists(st.integers(0, SIZE), min_size=1, max_size=8),
    st.sampled_from([0.3, 0.9, 1.0]),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_choice_is_that_of_the_filter_itself(counts: list[int], rho: float, floor: int, zeros: bool) -> None:
    config = FilterConfig(rho=rho, min_groups=floor, include_zero=zeros, no_signal_limit=99)
    window, groups = make_window(config), groups_of(counts)
    for group in groups:
        window.admit(group)
    kept = {decision.group_id for decision in window.close(1).kept}
    assert {g.group_id for g, inside in zip(groups, chosen(groups, config).tolist(), strict=True) if inside} == kept


def test_the_groups_of_the_gram_are_taken_in_its_order() -> None:
    groups, rng = groups_of([1, 4, 2, 0]), np.random.default_rng(0)
    ids = tuple(group.group_id for group in groups)
    gram = gram_of(ids, rng.normal(size=(4, 4, 3)))
    one, other = (alignment(gram, order, FilterConfig(), (0.5, 0.9)) for order in (groups, groups[::-1]))
    assert one == other


def test_halves_have_the_replays_of_their_own_trajectories() -> None:
    rng = np.random.default_rng(0)
    groups = [
        replace(group, replay_returns=rng.normal(size=(SIZE, 2)) + group.returns[:, None])
        for group in groups_of([4, 4])
    ]
    for half in (0, 1):
        for part, group in zip(_halves(groups, half), groups, strict=True):
            np.testing.assert_array_equal(part.replay_returns, group.replay_returns[list(part.indices)])
    ids = tuple(group.group_id for group in groups)
    config = FilterConfig(statistic="policy_variance")
    assert alignment(gram_of(ids, rng.normal(size=(4, 2, 3))), groups, config, (0.5, 1.0)).num_groups == 2


def test_a_gradient_that_is_not_finite_makes_no_measurement() -> None:
    """Found by a reviewer: it counted as q = 0 of every set."""
    vectors = np.ones((4, 2, 3))
    vectors[0, 1, 0] = math.nan
    gram = gram_of(("a", "b"), vectors)
    for kept in ([True, False], [False, True], [False, False]):
        assert math.isnan(gram.q(np.array(kept), 0)) and math.isnan(gram.q(np.array(kept), 1))
