import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.learner.decomposition.statistics import (
    Decomposition,
    GroupMetrics,
    bucket_indices,
    gradient_bound,
    half_weights,
    rank_correlation,
    share,
    split_halves,
    split_metrics,
    summarise_bucket,
)

RETURNS = st.lists(st.floats(-5, 5), min_size=4, max_size=24)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.7]), max_size=60), st.integers(1, 8))
def test_buckets_hold_every_group_once_in_order_and_differ_by_at_most_one(variances: list, count: int) -> None:
    ids = [f"{i:03d}" for i in range(len(variances))]
    buckets = bucket_indices(variances, ids, count)
    assert sorted(i for b in buckets for i in b) == list(range(len(ids)))
    assert len(buckets) == min(count, len(ids))
    sizes = [len(b) for b in buckets]
    assert not sizes or max(sizes) - min(sizes) <= 1
    ordered = [(variances[i], ids[i]) for b in buckets for i in b]
    assert ordered == sorted(ordered)


def test_a_remainder_is_spread_over_the_lowest_buckets() -> None:
    assert [len(b) for b in bucket_indices(range(50), [f"{i:02d}" for i in range(50)])] == [9, 9, 8, 8, 8, 8]


@given(RETURNS)
def test_each_half_has_its_own_baseline(returns: list[float]) -> None:
    values = np.array(returns)
    first = split_halves("000001-000", len(values))
    assert abs(int(first.sum()) - int((~first).sum())) <= 1
    for half in (first, ~first):
        weights = half_weights(values, half)
        assert abs(weights.sum()) < 1e-9 and (weights[~half] == 0).all()
        assert float((weights * values).sum()) == pytest.approx(values[half].var(ddof=1), abs=1e-9)


def test_halves_follow_from_the_groups_id() -> None:
    assert (split_halves("a", 16) == split_halves("a", 16)).all()
    assert any((split_halves("a", 16) != split_halves(name, 16)).any() for name in "bcd")
    assert split_halves("a", 3) is None


def synthetic(rng: np.random.Generator, size: int, slope: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores with mean 0 and unit covariance, and returns whose covariance with them is `slope`, the true gradient."""
    scores = rng.standard_normal((size, len(slope)))
    return scores, scores @ slope + noise * rng.standard_normal(size)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("slope", [(0.0, 0.0, 0.0), (0.6, -0.3, 0.2)])
def test_two_halves_estimate_signal_and_noise_without_bias(size: int, slope: tuple) -> None:
    rng, true = np.random.default_rng(3), np.array(slope)
    signals, noises, gradients = [], [], []
    for i in range(4000):
        scores, returns = synthetic(rng, size, true, 1.0)
        first = split_halves(str(i), size)
        one, two = (half_weights(returns, half) @ scores for half in (first, ~first))
        signal, noise = split_metrics(one @ one, one @ two, two @ two)
        signals.append(signal)
        noises.append(noise)
        gradients.append((one + two) / 2)
    error = np.std(signals) / math.sqrt(len(signals))
    assert abs(np.mean(signals) - true @ true) < 4 * error
    actual = np.square(np.array(gradients) - true).sum(1)
    assert abs(np.mean(noises) - actual.mean()) < 4 * (np.std(noises) + actual.std()) / math.sqrt(len(noises))
    naive = np.mean(np.square(gradients).sum(1))
    assert naive > true @ true + 10 * error, "the estimate would show nothing that the plain norm does not"


@given(RETURNS, st.integers(0, 2**32 - 1))
def test_the_bound_of_theorem_h2_holds_for_every_sample(returns: list[float], seed: int) -> None:
    values = np.array(returns)
    scores = np.random.default_rng(seed).standard_normal((len(values), 3))
    gradient = np.linalg.norm(((values - values.mean())[:, None] * scores).mean(0))
    assert gradient <= gradient_bound(values, float(np.square(scores).sum(1).mean())) + 1e-9


def test_the_bound_is_reached_when_scores_follow_the_advantages() -> None:
    values = np.array([0.0, 0.0, 1.0, 1.0])
    scores = (values - values.mean())[:, None]
    assert float(((values - values.mean())[:, None] * scores).mean()) == pytest.approx(
        gradient_bound(values, float(np.square(scores).mean()))
    )


def metrics(name: str, **changes: float) -> GroupMetrics:
    values = dict.fromkeys(GroupMetrics.__dataclass_fields__, 1.0) | {"group_id": name, "num_trajectories": 8}
    return GroupMetrics(**(values | changes))


def test_a_bucket_is_the_mean_of_its_groups_whatever_their_number() -> None:
    norms = dict.fromkeys(("task", "task_std", "kl", "entropy", "regulariser"), 0.5)
    few = summarise_bucket(1, [metrics("a", task=3.0, signal_square=4.0, noise_square=1.0)], norms)
    many = summarise_bucket(1, [metrics(n, task=3.0, signal_square=4.0, noise_square=1.0) for n in "abcd"], norms)
    assert few.task == many.task == 3.0 and few.dominance == many.dominance == 0.25
    assert few.snr == many.snr == 2.0 / (1.0 + 1.0) and many.snr_task == 2.0
    assert many.mean_task == 0.5 and many.signal_square_error == 0.0 and math.isnan(few.signal_square_error)


def test_a_negative_estimate_of_the_signal_is_kept_and_its_root_is_zero() -> None:
    norms = dict.fromkeys(("task", "task_std", "kl", "entropy", "regulariser"), 0.0)
    bucket = summarise_bucket(1, [metrics("a", signal_square=-2.0), metrics("b", signal_square=1.0)], norms)
    assert bucket.signal_square == -0.5 and bucket.snr == 0.0


def test_the_tightness_of_the_signal_compares_signal_and_bound_of_the_same_groups() -> None:
    norms = dict.fromkeys(("task", "task_std", "kl", "entropy", "regulariser"), 0.0)
    split = [metrics("a", signal_square=1.0, bound=1.0), metrics("b", signal_square=7.0, bound=7.0)]
    small = metrics("c", signal_square=math.nan, noise_square=math.nan, bound=100.0)
    for groups in (split, [*split, small]):
        assert summarise_bucket(1, groups, norms).tightness_signal == pytest.approx(2.0 / 5.0)
    assert math.isnan(summarise_bucket(1, [small], norms).tightness_signal)


def test_undefined_metrics_are_null_in_json_and_left_out_of_means() -> None:
    nothing = metrics("a", task=0.0, regulariser=0.0, bound=0.0, signal_square=math.nan, noise_square=math.nan)
    norms = dict.fromkeys(("task", "task_std", "kl", "entropy", "regulariser"), 0.0)
    bucket = summarise_bucket(1, [nothing, metrics("b")], norms)
    assert bucket.dominance == 0.5 and bucket.tightness == 1.0
    data = Decomposition((nothing,), (summarise_bucket(1, [nothing], norms),)).as_data()
    assert data["groups"][0]["dominance"] is None and data["buckets"][0]["snr"] is None
    assert data["groups"][0]["snr"] is None and metrics("c", signal_square=4.0, noise_square=9.0).snr == 2 / (3 + 1)
    assert math.isnan(share(0.0, 0.0))


@given(st.lists(st.integers(-3, 3), min_size=3, max_size=30))
def test_rank_correlation_knows_order_only(values: list[int]) -> None:
    found = rank_correlation(values, [math.exp(v) for v in values])
    assert math.isnan(found) if len(set(values)) == 1 else found == pytest.approx(1.0)


def test_rank_correlation_of_a_hand_made_case() -> None:
    assert rank_correlation([1, 2, 3, 4, math.nan], [2, 1, 4, 3, 9]) == pytest.approx(0.6)
