"""`squelch.mi` gives Table 1 with its intervals in either form of the matrix, and refuses what is no log-likelihood."""

import dataclasses

import numpy as np
import pytest
import torch

import squelch


def matrix(num: int = 8, draws: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    found = rng.normal(size=(num, draws, num)) - 20
    found[np.arange(num), :, np.arange(num)] += 3
    return found, rng.integers(2, 9, (num, draws))


def test_both_forms_of_a_matrix_and_tensors_give_the_same() -> None:
    scores, lengths = matrix()
    found = squelch.mi(scores, lengths)
    rows = squelch.mi(scores.reshape(16, 8), lengths.reshape(16), source=np.repeat(np.arange(8), 2))
    tensors = squelch.mi(torch.tensor(scores), torch.tensor(lengths))
    assert found.metrics() == rows.metrics() == tensors.metrics()
    assert found.proxies.mi_seq_est is not None and found.proxies.mi_seq_est > 1
    interval, null = found.uncertainty.intervals["mi_seq_est"], found.uncertainty.nulls["mi_seq_est"]
    assert interval.low < found.proxies.mi_seq_est < interval.high and null.p_value <= 0.01


def test_the_moving_average_is_the_callers_to_keep() -> None:
    (scores, lengths), ema = matrix(), squelch.EmaState()
    first, second = squelch.mi(scores, lengths, ema=ema), squelch.mi(scores * 2, lengths, ema=ema)
    assert first.proxies.mi_zscore_ema == first.proxies.mi_zscore
    assert second.proxies.mi_zscore_ema != second.proxies.mi_zscore
    assert squelch.mi(scores * 2, lengths).proxies.mi_zscore_ema == second.proxies.mi_zscore


def test_results_cannot_be_changed() -> None:
    found = squelch.mi(*matrix())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.proxies = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m, t: (-m, t),
            r"`log_likelihood` is .* at \(0, 0, 0\), and no log-likelihood",
        ),
        (lambda m, t: (m[0], t), r"log_likelihood has shape \(2, 8\); it must be \(N, K, N\)"),
        (lambda m, t: (m, t[:, :1]), "lengths has shape|`lengths`"),
        (lambda m, t: (m, t + 0.5), "`lengths` must hold whole numbers of tokens"),
        (lambda m, t: (m, -t), "`lengths` must hold whole numbers of tokens"),
    ],
)
def test_bad_input_is_named(change, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        squelch.mi(*change(*matrix()))
