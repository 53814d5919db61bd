"""What resampling the noise of a series around its trend keeps."""

import numpy as np
import pytest

from research.renoising import BLOCK, renoised


def trend(values: np.ndarray) -> np.ndarray:
    return np.array([values[max(0, i - BLOCK) : i + BLOCK + 1].mean() for i in range(len(values))])


def test_the_trend_stays_and_independent_noise_keeps_its_variance() -> None:
    rng, around = np.random.default_rng(0), []
    for _ in range(20):
        values = 0.1 * np.arange(400) + rng.normal(size=400)
        around.append(renoised(values, rng) - trend(values))
    assert np.mean(around) == pytest.approx(0.0, abs=0.05)
    assert np.var(around) == pytest.approx(1.0, abs=0.05), "0.89 without the correction"


def test_a_series_of_one_value_has_no_noise() -> None:
    assert renoised(np.array([3.0]), np.random.default_rng(0)).tolist() == [3.0]
