import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.learner.objective.gae import Moments, explained_variance, gae, whiten


def naive(rewards: np.ndarray, values: np.ndarray, end: float, gamma: float, lam: float) -> np.ndarray:
    """Eq. 16 as written, O(n^2): A_t = sum_l (gamma lambda)^l delta_{t+l} of one row."""
    following = np.append(values[1:], end)
    deltas = rewards + gamma * following - values
    n = len(rewards)
    return np.array([sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, n)) for t in range(n)])


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    lengths = np.array(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    numbers = st.floats(-5, 5)
    total = int(lengths.sum())
    flat = [np.array(draw(st.lists(numbers, min_size=total, max_size=total))) for _ in range(2)]
    ends = np.array(draw(st.lists(numbers, min_size=len(lengths), max_size=len(lengths))))
    return *flat, lengths, ends


RATES = st.floats(0.0, 1.0)


@given(batches(), RATES, RATES)
def test_flat_rows_have_the_advantages_of_the_definition(batch: tuple, gamma: float, lam: float) -> None:
    rewards, values, lengths, ends = batch
    advantages, returns = gae(rewards, values, lengths, ends, gamma, lam)
    cuts = np.cumsum(lengths)[:-1]
    rows = zip(np.split(rewards, cuts), np.split(values, cuts), ends, strict=True)
    wanted = np.concatenate([naive(r, v, end, gamma, lam) for r, v, end in rows])
    assert np.allclose(advantages, wanted, atol=1e-9)
    assert np.allclose(returns, wanted + values, atol=1e-9)


def test_by_hand() -> None:
    # one row, rewards on its second and last token: two turns
    advantages, returns = gae(
        np.array([0.0, 1.0, 0.0, 2.0]), np.array([0.5, 1.0, -1.0, 0.0]), np.array([4]), np.array([0.0]), 0.5, 0.5
    )
    # deltas: 0 + .5 - .5 = 0; 1 - .5 - 1 = -.5; 0 + 0 + 1 = 1; 2 + 0 - 0 = 2
    assert np.allclose(advantages, [0 + 0.25 * (-0.5 + 0.25 * (1 + 0.25 * 2)), -0.5 + 0.25 * 1.5, 1.5, 2.0])
    assert np.allclose(returns, advantages + np.array([0.5, 1.0, -1.0, 0.0]))


@given(batches())
def test_with_gamma_and_lambda_1_the_return_is_what_is_still_to_come(batch: tuple) -> None:
    rewards, values, lengths, ends = batch
    _, returns = gae(rewards, values, lengths, ends, 1.0, 1.0)
    cuts = np.cumsum(lengths)[:-1]
    to_come = [np.cumsum(r[::-1])[::-1] + end for r, end in zip(np.split(rewards, cuts), ends, strict=True)]
    assert np.allclose(returns, np.concatenate(to_come), atol=1e-9)


@given(batches(), RATES)
def test_with_lambda_0_the_advantage_is_the_one_token_difference(batch: tuple, gamma: float) -> None:
    rewards, values, lengths, ends = batch
    advantages, _ = gae(rewards, values, lengths, ends, gamma, 0.0)
    following = np.append(values[1:], 0.0)
    following[np.cumsum(lengths) - 1] = ends
    assert np.allclose(advantages, rewards + gamma * following - values)


@given(batches(), RATES, RATES, st.randoms())
def test_a_row_does_not_feel_its_neighbours(batch: tuple, gamma: float, lam: float, random: object) -> None:
    rewards, values, lengths, ends = batch
    cuts = np.cumsum(lengths)[:-1]
    parts = list(zip(np.split(rewards, cuts), np.split(values, cuts), lengths, ends, strict=True))
    whole, _ = gae(rewards, values, lengths, ends, gamma, lam)
    order = list(range(len(parts)))
    random.shuffle(order)
    shuffled = [parts[k] for k in order]
    moved, _ = gae(*(np.concatenate([p[i] for p in shuffled]) for i in (0, 1)), lengths[order], ends[order], gamma, lam)
    assert np.array_equal(moved, np.concatenate([np.split(whole, cuts)[k] for k in order]))


def test_no_rows_have_no_advantages() -> None:
    nothing = np.zeros(0)
    assert gae(nothing, nothing, nothing.astype(int), nothing, 1, 1)[0].shape == (0,)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=50))
def test_whitened_advantages_have_mean_0_and_std_1_or_are_all_0(numbers: list[float]) -> None:
    values = np.array(numbers)
    white = whiten(values, Moments(float(values.mean()), float(values.std()), float(np.abs(values).max())))
    assert abs(white.mean()) < 1e-6
    assert not white.any() or white.std() == pytest.approx(1, abs=1e-6)


def test_equal_advantages_whiten_to_nothing_not_to_rounding() -> None:
    values = np.array([0.1 + 0.2, 0.3, 0.3])
    assert not whiten(values, Moments(float(values.mean()), float(values.std()), 0.3)).any()


def moments(values: np.ndarray) -> tuple[float, float, float]:
    return float(len(values)), float(values.sum()), float(np.square(values).sum())


def test_explained_variance_by_hand() -> None:
    returns, values = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 1.0])
    wanted = 1 - np.var(returns - values) / np.var(returns)
    assert explained_variance(moments(returns), moments(returns - values)) == pytest.approx(wanted)
    assert explained_variance(moments(returns), moments(np.zeros(4))) == 1.0
    assert math.isnan(explained_variance(moments(np.ones(4)), moments(np.ones(4))))


def padded(rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """The padded form that trainers use: over every column, those outside the mask passed over. All (rows, width)."""
    following, carried = np.zeros(len(mask)), np.zeros(len(mask))
    advantages = np.zeros(mask.shape)
    for t in reversed(range(mask.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        carried = np.where(here, delta + gamma * lam * carried, carried)
        following = np.where(here, values[:, t], following)
        advantages[:, t] = carried
    return advantages


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 1000), RATES, RATES)
def test_without_padding_and_observations_the_advantages_are_those_of_the_padded_form(
    num_rows: int, width: int, seed: int, gamma: float, lam: float
) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((num_rows, width)) < 0.6
    mask[:, 0] = True
    rewards, values = (
        np.where(mask, rng.normal(size=mask.shape), 99.0) for _ in range(2)
    )  # garbage where nobody looks
    flat, _ = gae(rewards[mask], values[mask], mask.sum(axis=1), np.zeros(num_rows), gamma, lam)
    assert np.allclose(flat, padded(rewards, values, mask, gamma, lam)[mask], atol=1e-9)
