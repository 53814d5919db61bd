"""What must hold of the mutual-information proxies."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.metrics import REGISTRY
from squelch.kit.diagnosis.proxies import (
    EMPTY,
    NON_FINITE,
    EmaState,
    Proxies,
    proxies_of_scores,
    scores_of_matrix,
    usable,
)


def matrix(seed: int, n: int = 5, k: int = 3, own: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """L (n, k, n) whose own prompts are likelier by `own` nats, and lengths (n, k)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, (n, k))
    scores = -2.0 * lengths[..., None] + rng.normal(size=(n, k, n))
    scores[np.arange(n), :, np.arange(n)] += own
    return scores, lengths


def proxies(
    log_likelihood: np.ndarray, lengths: np.ndarray, prompt_id: np.ndarray | None = None, **how: Any
) -> Proxies:
    """Table 1 for N prompts with K reasonings each."""
    return proxies_of_scores(scores_of_matrix(log_likelihood, lengths, prompt_id), **how)


def brute_force(scores: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Eq. 1 and Table 1 with plain loops."""
    n, k, _ = scores.shape
    matched, marginal, sequence, hits = [], [], [], []
    for i in range(n):
        for s in range(k):
            row = [float(value) for value in scores[i, s]]
            mixture = math.log(sum(math.exp(value) for value in row) / n)
            matched.append(row[i] / lengths[i, s])
            marginal.append(mixture / lengths[i, s])
            sequence.append(row[i] - mixture)
            hits.append(float(row[i] == max(row)))
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    std = math.sqrt(mean([(value - mean(marginal)) ** 2 for value in marginal]))
    mi = mean(matched) - mean(marginal)
    return {
        "retrieval_accuracy": mean(hits),
        "mi_est": mi,
        "mi_seq_est": mean(sequence),
        "mi_zscore": mi / (std + 1e-3),
        "conditional_entropy": -mean(matched),
        "marginal_entropy": -mean(marginal),
        "upper_bound": math.log(n),
        "upper_bound_per_token": math.log(n) * mean([1 / length for length in lengths.ravel()]),
    }


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 4), st.floats(-3, 5))
@settings(max_examples=50, deadline=None)
def test_metrics_equal_a_brute_force_computation_of_table_1(seed: int, n: int, k: int, own: float) -> None:
    scores, lengths = matrix(seed, n, k, own)
    found = proxies(scores, lengths).as_dict()
    for key, value in brute_force(scores, lengths).items():
        assert found[key] == pytest.approx(value, abs=1e-10), key


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(["paper", "ragen"]))
@settings(max_examples=40, deadline=None)
def test_permuting_prompts_changes_nothing(seed: int, n: int, compat: str) -> None:
    scores, lengths = matrix(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    before, after = (
        proxies(scores, lengths, compat=compat),
        proxies(scores[order][:, :, order], lengths[order], compat=compat),
    )
    assert after.metrics() == pytest.approx(before.metrics(), abs=1e-10)


@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0, 8))
@settings(max_examples=40, deadline=None)
def test_mutual_information_stays_below_its_bounds_and_entropies_add_up(seed: int, n: int, own: float) -> None:
    found = proxies(*matrix(seed, n, own=own))
    assert found.mi_seq_est <= found.upper_bound + 1e-12
    assert found.mi_est <= found.upper_bound_per_token + 1e-12
    assert found.marginal_entropy == pytest.approx(found.mi_est + found.conditional_entropy)


def test_reasoning_that_ignores_its_input_has_no_information_and_retrieves_by_chance() -> None:
    scores, lengths = matrix(0, 8)
    found = proxies(np.repeat(scores[:, :, :1], 8, axis=2), lengths)
    assert found.mi_est == pytest.approx(0, abs=1e-12)
    assert found.mi_seq_est == pytest.approx(0, abs=1e-12)
    assert found.retrieval_accuracy == pytest.approx(found.retrieval_chance) == pytest.approx(1 / 8)
    assert found.recall == pytest.approx(found.recall_chance)


def test_reasoning_that_names_its_input_reaches_the_bound() -> None:
    found = proxies(*matrix(1, 8, own=200.0))
    assert found.retrieval_accuracy == 1
    assert found.mi_seq_est == pytest.approx(math.log(8))
    assert found.mi_est == pytest.approx(found.upper_bound_per_token)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(1, 3), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_reasoning_that_names_its_input_reaches_the_bound_however_often_prompts_repeat(
    counts: list[int], k: int, seed: int
) -> None:
    label = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    lengths = np.random.default_rng(seed).integers(1, 12, (len(label), k))
    scores = -2.0 * lengths[..., None] - 500.0 * (label[:, None, None] != label)
    found = proxies(scores, lengths, label)
    shares = np.array(counts) / sum(counts)
    assert found.upper_bound == pytest.approx(-(shares * np.log(shares)).sum())
    assert found.mi_seq_est == pytest.approx(found.upper_bound)
    assert found.mi_est == pytest.approx(found.upper_bound_per_token)
    lengths[0] = 0  # a lost prompt stays in the mixture
    lost = proxies(scores, lengths, label)
    assert lost.mi_seq_est == pytest.approx(lost.upper_bound)


def test_a_tie_counts_one_over_its_size() -> None:
    scores = np.array([[[-1.0, -1.0, -5.0, -6.0]], [[-9.0, -1.0, -5.0, -6.0]]] + [[[0.0, 0.0, 0.0, 0.0]]] * 2)
    found = proxies(scores, np.ones((4, 1)))
    assert found.retrieval_accuracy == pytest.approx((1 / 2 + 1 + 1 / 4 + 1 / 4) / 4)
    assert found.recall[2] == pytest.approx((1 + 1 + 1 / 2 + 1 / 2) / 4)
    assert found.recall[4] == found.recall[8] == 1


def test_marginal_is_normalised_after_the_mixture_and_before_it_under_ragen() -> None:
    scores, lengths = np.array([[[-2.0, -8.0]], [[-9.0, -3.0]]]), np.array([[2], [3]])
    paper, ragen = proxies(scores, lengths), proxies(scores, lengths, compat="ragen")
    mixture = [math.log((math.exp(-2) + math.exp(-8)) / 2), math.log((math.exp(-9) + math.exp(-3)) / 2)]
    assert paper.marginal_entropy == pytest.approx(-(mixture[0] / 2 + mixture[1] / 3) / 2)
    of_means = [math.log((math.exp(-1) + math.exp(-4)) / 2), math.log((math.exp(-3) + math.exp(-1)) / 2)]
    assert ragen.marginal_entropy == pytest.approx(-sum(of_means) / 2)
    assert ragen.mi_seq_est == paper.mi_seq_est
    assert (ragen.retrieval_accuracy, ragen.recall) == (paper.retrieval_accuracy, paper.recall)


def test_64_draws_with_a_context_each_are_retrieved_by_chance_once_in_64() -> None:
    found = proxies(np.zeros((64, 1, 64)), np.ones((64, 1)), compat="ragen")
    assert found.retrieval_chance == found.retrieval_accuracy == pytest.approx(1 / 64)
    assert found.upper_bound == pytest.approx(math.log(64)) and found.mi_est == pytest.approx(0)


def test_identical_prompts_are_one_candidate_and_keep_their_weight_in_the_mixture() -> None:
    scores, lengths = matrix(3, 4)
    scores[:, :, 1] = scores[:, :, 0]  # prompts 0 and 1 are the same text
    merged = proxies(scores, lengths, np.array(["a", "a", "b", "c"]))
    apart = proxies(scores, lengths)
    assert merged.num_prompts == 3
    assert merged.retrieval_chance == pytest.approx(1 / 3)
    assert merged.mi_est == apart.mi_est
    assert merged.retrieval_accuracy > apart.retrieval_accuracy
    assert merged.upper_bound == pytest.approx((2 * math.log(2) + 2 * math.log(4)) / 4)
    assert merged.mi_seq_est <= merged.upper_bound + 1e-12


def test_columns_merged_beforehand_with_weights_give_the_same_metrics() -> None:
    scores, lengths = matrix(4, 4)
    scores[:, :, 1] = scores[:, :, 0]
    whole = proxies(scores, lengths, np.array([0, 0, 1, 2]))
    source = np.repeat([0, 0, 1, 2], 3)
    small = proxies_of_scores(
        usable(scores.reshape(12, 4)[:, [0, 2, 3]], lengths.ravel(), source, column_weights=np.array([2, 1, 1]))
    )
    assert small.metrics() == pytest.approx(whole.metrics())


def test_samples_in_any_number_per_prompt_equal_the_full_matrix_where_they_coincide() -> None:
    scores, lengths = matrix(5, 6, k=1)
    by_draw = proxies_of_scores(usable(scores.reshape(6, 6), lengths.ravel(), np.arange(6)))
    assert by_draw.metrics() == proxies(scores, lengths).metrics()


def test_unusable_reasonings_are_left_out_and_counted() -> None:
    scores, lengths = matrix(6, 4, k=2)
    kept = proxies_of_scores(usable(scores.reshape(8, 4)[3:], lengths.ravel()[3:], np.repeat(np.arange(4), 2)[3:]))
    scores[0, 0, 2], scores[0, 1, 0] = np.nan, -np.inf
    lengths[1, 0] = 0
    found = proxies(scores, lengths)
    assert found.excluded == {EMPTY: 1, NON_FINITE: 2}
    assert (found.num_samples, found.num_excluded) == (5, 3)
    assert found.mi_est == pytest.approx(kept.mi_est)


def test_nothing_usable_gives_no_metrics_and_leaves_the_average_alone() -> None:
    ema = EmaState(value=0.5)
    found = proxies(np.full((3, 2, 3), np.nan), np.ones((3, 2)), ema=ema)
    assert found.mi_est is None and found.retrieval_accuracy is None and found.mi_zscore_ema is None
    assert found.excluded == {NON_FINITE: 6}
    assert ema.value == 0.5


def test_moving_average_starts_at_the_first_std_and_survives_a_restart() -> None:
    ema, metrics = EmaState(alpha=0.9), []
    for seed in range(3):
        if seed == 2:
            state = json.loads(json.dumps(ema.state()))
            ema = EmaState(alpha=0.9)
            ema.restore(state)
        metrics.append(proxies(*matrix(seed), ema=ema))
    stds = [metric.marginal_std for metric in metrics]
    assert metrics[0].mi_zscore_ema == metrics[0].mi_zscore
    expected = 0.9 * (0.9 * stds[0] + 0.1 * stds[1]) + 0.1 * stds[2]
    assert ema.value == pytest.approx(expected)
    assert metrics[2].mi_zscore_ema == pytest.approx(metrics[2].mi_est / (expected + 1e-3))


def test_huge_negative_likelihoods_do_not_underflow() -> None:
    scores, lengths = matrix(7)
    shifted = proxies(scores - 5000, lengths)
    assert shifted.mi_seq_est == pytest.approx(proxies(scores, lengths).mi_seq_est)


@pytest.mark.parametrize(
    ("shape", "lengths", "names"),
    [((3, 2, 4), (3, 2), "log_likelihood"), ((3, 2), (3, 2), "log_likelihood"), ((3, 2, 3), (2, 3), "lengths")],
)
def test_a_wrong_shape_is_named(shape: tuple[int, ...], lengths: tuple[int, ...], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        proxies(np.zeros(shape), np.ones(lengths))


def test_a_prompt_id_of_another_size_is_named() -> None:
    with pytest.raises(ValueError, match="prompt_id"):
        proxies(np.zeros((3, 1, 3)), np.ones((3, 1)), np.arange(2))


def test_every_metric_key_is_in_the_registry() -> None:
    keys = set(proxies(*matrix(0)).metrics())
    assert all(REGISTRY.series_of(f"first_turn/{key}") for key in keys)
    assert {key for key in keys if key.startswith("recall@")} == {"recall@2", "recall@4", "recall@8"}
