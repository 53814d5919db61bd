"""Recorded values tell which of two weights computed them, as far as they are exact enough, and else nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.checks.weights.likelihood import NODE_TEMPERATURES
from squelch.kit.checks.weights.recorded import rounding, slope, temperature_of
from tests.kit.checks.weights.categorical import language_like, log_softmax

NUM = 600


def two(size: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Log-probabilities under A and under B, and the rollout of each token."""
    rng = np.random.default_rng(seed)
    first = -rng.exponential(1.5, NUM)
    return first, first + size * rng.normal(size=NUM), [k // 20 for k in range(NUM)]


def bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-5, 0.3), st.booleans())
def test_exact_values_are_those_of_the_weights_that_computed_them(seed: int, size: float, is_second: bool) -> None:
    first, second, rollouts = two(size, seed)
    recorded = (second if is_second else first) + size / 10 * np.random.default_rng(seed + 1).normal(size=NUM)
    found = slope(recorded, first, second, rollouts)
    assert (found.is_first, found.is_second) == (not is_second, is_second)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.4, 20.0), st.floats(-1.0, 2.0))
def test_values_that_err_by_more_than_a_third_of_the_difference_decide_nothing(
    seed: int, error: float, bias: float
) -> None:
    first, second, rollouts = two(0.01, seed)
    recorded = first + bias * (second - first) + 0.01 * error * np.random.default_rng(seed + 1).normal(size=NUM)
    found = slope(recorded, first, second, rollouts)
    assert not (found.is_first or found.is_second)


def test_a_float32_engine_tells_a_step_at_a_rate_of_a_millionth_and_bfloat16_does_not() -> None:
    first, second, rollouts = two(5e-4)
    engine = 7e-7 * np.random.default_rng(1).normal(size=NUM)
    assert slope(second + engine, first, second, rollouts).is_second
    assert not slope(bfloat16(second), first, second, rollouts).decides


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_weights_between_two_saved_ones_are_a_share_of_the_way(share: float) -> None:
    first, second, rollouts = two(0.01)
    found = slope(first + share * (second - first), first, second, rollouts)
    assert found.value == pytest.approx(share)


def test_equal_weights_decide_nothing() -> None:
    first, _, rollouts = two(0.01)
    found = slope(first, first, first, rollouts)
    assert not (found.is_first or found.is_second)


def test_missing_values_are_left_out() -> None:
    first, second, rollouts = two(0.01)
    recorded = np.where(np.arange(NUM) % 3, second, np.nan)
    found = slope(recorded, first, second, rollouts)
    assert found.is_second
    assert found.num_tokens == 400
    assert not slope(np.where(np.arange(NUM) < 20, second, np.nan), first, second, rollouts).decides


def test_how_values_are_stored_shows_in_their_grid() -> None:
    values, _, _ = two(0.01)
    assert rounding(values) == 0
    assert rounding(values.astype(np.float32)) == 0
    for stored in (bfloat16(values), values.astype(np.float16).astype(np.float64), np.round(values, 2)):
        error = float(np.sqrt(np.mean((stored - values) ** 2)))
        assert rounding(stored) == pytest.approx(error, rel=0.25)


@pytest.mark.parametrize("temperature", [0.6, 0.9, 1.0, 1.3])
def test_the_temperature_of_recorded_values_is_found_from_a_hundred_tokens(temperature: float) -> None:
    logits, ids = language_like()[:100], np.arange(100) % 40
    nodes = np.stack([log_softmax(logits / one)[np.arange(100), ids] for one in NODE_TEMPERATURES])
    exact = log_softmax(logits / temperature)[np.arange(100), ids]
    found, values = temperature_of(exact, nodes)
    assert found == pytest.approx(temperature, rel=1e-3)
    assert values == pytest.approx(exact, abs=2e-3)
