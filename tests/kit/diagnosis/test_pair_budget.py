"""At a part of the pairs the metrics stay what they are at all of them, and say how far they can be trusted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.diagnosis.pair_budget import MIN_OTHERS, draw_pairs, estimate, others_within
from squelch.kit.diagnosis.proxies import proxies_of_scores, usable
from squelch.kit.diagnosis.uncertainty import uncertainty

QUARTER = 4
"""Scored pairs, own ones included, are one in so many."""


def matrix(
    rng: np.random.Generator, num_prompts: int, num_draws: int, signal: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(L, lengths, source) of a Gaussian channel in 6 dimensions: some prompts are near, some far, none are twins.
    Reasonings have 12 to 32 tokens."""
    prompts = signal * rng.normal(size=(num_prompts, 6))
    source = np.repeat(np.arange(num_prompts), num_draws)
    drawn = prompts[source] + rng.normal(size=(len(source), 6))
    likelihood = -0.5 * ((drawn[:, None] - prompts) ** 2).sum(-1) - 30
    return likelihood, rng.integers(12, 33, len(source)), source


@pytest.mark.slow
@pytest.mark.parametrize("signal", [0.3, 1.0, 1.5, 3.0])
def test_eight_prompts_under_two_others_give_the_same_within_the_interval(signal: float) -> None:
    """The fewest others, of the prompts of a usual step (64 reasonings)."""
    whole, part, held = [], [], []
    for repeat in range(100):
        likelihood, lengths, source = matrix(np.random.default_rng((repeat, 8)), 8, 8, signal)
        whole.append(proxies_of_scores(usable(likelihood, lengths, source)).mi_est)
        drawn = np.where(draw_pairs(source, 8, MIN_OTHERS, (repeat,)), likelihood, np.nan)
        found = estimate(drawn, lengths, source)
        part.append(found.mi_est)
        held.append((found.intervals["mi_est"].low, found.intervals["mi_est"].high))
    low, high = np.array(held).T
    assert abs(np.mean(part) - np.mean(whole)) <= 0.01
    assert np.mean((low <= whole) & (whole <= high)) >= 0.9
    assert np.mean((low <= np.mean(whole)) & (np.mean(whole) <= high)) >= 0.9


def at_a_quarter(likelihood: np.ndarray, source: np.ndarray, seed: int) -> np.ndarray:
    num = likelihood.shape[1]
    return np.where(draw_pairs(source, num, num // QUARTER - 1, (seed,)), likelihood, np.nan)


@pytest.mark.slow
@pytest.mark.parametrize(("num_prompts", "num_draws"), [(32, 1), (32, 8), (64, 4)])
@pytest.mark.parametrize("signal", [0.3, 1.0, 1.5, 3.0])
def test_at_a_quarter_of_the_pairs_it_differs_little_and_its_interval_holds(num_prompts, num_draws, signal) -> None:
    """From reasoning that hardly depends on its prompt to reasoning that names it. The interval holds both what the
    whole matrix gives and what it gives on average over other draws of prompts."""
    whole, part, held = [], [], []
    for repeat in range(60):
        likelihood, lengths, source = matrix(np.random.default_rng((repeat, num_draws)), num_prompts, num_draws, signal)
        whole.append(proxies_of_scores(usable(likelihood, lengths, source)).mi_est)
        found = estimate(at_a_quarter(likelihood, source, repeat), lengths, source)
        part.append(found.mi_est)
        held.append((found.intervals["mi_est"].low, found.intervals["mi_est"].high))
        assert found.share == 1 / QUARTER
    low, high = np.array(held).T
    assert abs(np.mean(part) - np.mean(whole)) <= 0.02
    assert np.mean((low <= whole) & (whole <= high)) >= 0.9
    assert np.mean((low <= np.mean(whole)) & (np.mean(whole) <= high)) >= 0.9


def test_the_correction_is_needed_and_goes_the_right_way() -> None:
    """Without it, the log of a mean over few is low and MI-Est too high."""
    plain, corrected = [], []
    for repeat in range(60):
        likelihood, lengths, source = matrix(np.random.default_rng(repeat), 32, 4, 1.0)
        whole = proxies_of_scores(usable(likelihood, lengths, source)).mi_est
        some = at_a_quarter(likelihood, source, repeat)
        rows = np.arange(len(source))
        others = some.copy()
        others[rows, source] = np.nan
        rest = 31 / 32 * np.nanmean(np.exp(others), axis=1)
        naive = np.log(np.exp(likelihood[rows, source]) / 32 + rest)
        plain.append(((likelihood[rows, source] - naive) / lengths).mean() - whole)
        corrected.append(estimate(some, lengths, source).mi_est - whole)
    assert np.mean(plain) > 0.004
    assert abs(np.mean(corrected)) < 0.6 * np.mean(plain)


def test_rare_twins_are_where_bias_is_left() -> None:
    """Each prompt has one other that explains its reasonings just as well: log 2 a sequence is to be found, of which a
    quarter of the pairs finds a part. It stays within 0.02 nats a token from 15 tokens on."""
    num = 32
    twin = np.arange(num) ^ 1
    likelihood = np.full((num, num), -60.0)
    likelihood[np.arange(num), np.arange(num)] = likelihood[np.arange(num), twin] = -10.0
    lengths, source = np.full(num, 15), np.arange(num)
    whole = proxies_of_scores(usable(likelihood, lengths, source)).mi_est
    found = [estimate(at_a_quarter(likelihood, source, seed), lengths, source).mi_est for seed in range(200)]
    assert whole == pytest.approx(np.log(num / 2) / 15)
    assert 0 < np.mean(found) - whole <= 0.02


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 12), st.integers(1, 3))
def test_at_all_pairs_it_is_table_1_with_nearly_the_same_interval(seed: int, num_prompts: int, num_draws: int) -> None:
    rng = np.random.default_rng(seed)
    likelihood, lengths, source = matrix(rng, num_prompts, num_draws, 1.0)
    weights = rng.uniform(0.5, 2.0, num_prompts)
    found = estimate(likelihood, lengths, source, weights)
    scores = usable(likelihood, lengths, source, weights)
    report = proxies_of_scores(scores)
    sure = uncertainty(scores, report)
    names = ("mi_est", "mi_seq_est", "marginal_entropy", "conditional_entropy", "marginal_std", "retrieval_accuracy")
    for name in names:
        assert vars(found)[name] == pytest.approx(getattr(report, name), abs=1e-9), name
    for name in ("mi_est", "mi_seq_est", "marginal_entropy", "conditional_entropy"):
        assert found.intervals[name].standard_error == pytest.approx(sure.intervals[name].standard_error, rel=0.35), (
            name
        )
    assert found.share == 1.0 and found.retrieval_chance == pytest.approx(1 / num_prompts)


@given(st.lists(st.integers(1, 9), min_size=4, max_size=12), st.integers(0, 500))
def test_reasoning_that_names_its_input_reaches_the_bound_however_often_prompts_repeat(counts, seed) -> None:
    source, num = np.repeat(np.arange(len(counts)), counts), len(counts)
    likelihood = np.where(source[:, None] == np.arange(num), -3.0, -500.0)
    some = np.where(draw_pairs(source, num, 2, (seed,)), likelihood, np.nan)
    found = estimate(some, np.ones(len(source)), source, np.array(counts))
    shares = np.array(counts) / sum(counts)
    assert found.mi_seq_est == pytest.approx(found.upper_bound) == pytest.approx(-(shares * np.log(shares)).sum())
    assert found.metrics(None, 1e-3)["upper_bound"] == found.upper_bound


@given(st.integers(0, 500), st.integers(2, 20), st.integers(1, 40), st.integers(0, 900))
def test_drawn_pairs_hold_the_matched_one_and_as_many_others_each(seed, num_prompts, num_samples, max_pairs) -> None:
    source = np.random.default_rng(seed).integers(0, num_prompts, num_samples)
    others = others_within(max_pairs, num_samples, num_prompts)
    wanted = draw_pairs(source, num_prompts, others, (seed,))
    assert wanted[np.arange(num_samples), source].all() and (wanted.sum(axis=1) == others + 1).all()
    assert wanted.sum() <= max_pairs or others in (MIN_OTHERS, num_prompts - 1)
    assert np.array_equal(wanted, draw_pairs(source, num_prompts, others, (seed,)))


def test_a_reasoning_is_scored_under_two_others_however_small_the_budget_so_that_the_jackknife_can_take_one() -> None:
    assert [others_within(budget, 10, 8) for budget in (0, 39, 40, 1000)] == [2, 2, 3, 7]
    assert others_within(0, 10, 2) == 1, "there is no second"


def test_every_other_prompt_is_equally_often_drawn() -> None:
    wanted = draw_pairs(np.zeros(4000, dtype=np.int64), 9, 2, (1,))
    assert np.abs(wanted[:, 1:].mean(axis=0) - 2 / 8).max() < 0.03


def test_a_reasoning_without_its_own_pair_or_without_another_is_refused() -> None:
    likelihood = np.array([[-1.0, -2.0], [np.nan, -2.0]])
    with pytest.raises(ValueError, match="under its own prompt and under one other"):
        estimate(likelihood, np.array([3, 3]), np.array([0, 1]))
    with pytest.raises(ValueError, match="under its own prompt and under one other"):
        estimate(likelihood[:, ::-1], np.array([3, 3]), np.array([0, 0]))
    with pytest.raises(ValueError, match="num_others=5; of 5 prompts"):
        draw_pairs(np.array([0]), 5, 5, (0,))


def test_below_six_prompts_no_interval_is_stated() -> None:
    likelihood, lengths, source = matrix(np.random.default_rng(0), 5, 3, 1.0)
    assert estimate(likelihood, lengths, source).intervals == {}


def test_chance_is_that_of_the_rows_where_they_have_different_numbers_of_candidates() -> None:
    """Rows of 2 and of 4 candidates: reasoning that depends on nothing is right in 3 of 8 cases."""
    rng = np.random.default_rng(3)
    likelihood, source = rng.normal(size=(4000, 4)), np.arange(4000) % 4
    few = np.arange(4000) % 8 < 4
    likelihood[few, (source[few] + 1) % 4] = likelihood[few, (source[few] + 2) % 4] = np.nan
    found = estimate(likelihood, np.full(4000, 5), source)
    assert found.retrieval_chance == pytest.approx(3 / 8)
    assert found.retrieval_accuracy == pytest.approx(3 / 8, abs=0.03)
