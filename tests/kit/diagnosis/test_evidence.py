"""Evidence from another model's scores, compared with channels whose mutual information is known exactly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.diagnosis.evidence import DEPENDS, DOUBT, FEWEST, NOT_SHOWN, SCALES, bound_of, evidence_of, gains
from squelch.kit.diagnosis.proxies import Scores, usable

STRINGS = 24


def channel(rng: np.random.Generator, prompts: int, strength: float) -> np.ndarray:
    """(prompts, STRINGS): log p(z|x), with Gaussian logits."""
    logits = strength * rng.normal(size=(prompts, STRINGS)) + rng.normal(size=STRINGS)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def information(log_p: np.ndarray) -> float:
    """I(U;Z) in nats, U uniform over the rows."""
    p = np.exp(log_p)
    return float((p * (log_p - np.log(p.mean(axis=0)))).sum() / len(p))


def expected_bound(log_p: np.ndarray, log_q: np.ndarray, scale: float = 1.0) -> float:
    """The bound's expectation, over all strings; log_q: (prompts, STRINGS)."""
    num = len(log_p)
    each = [gains(np.repeat(log_q[:, [z]].T, num, axis=0), np.arange(num), scale) for z in range(STRINGS)]
    return float((np.exp(log_p) * np.array(each).T).sum() / num)


def draw(rng: np.random.Generator, log_p: np.ndarray, f: np.ndarray, counts: np.ndarray) -> Scores:
    """`counts` (prompts,) strings of each prompt, with the scores f (prompts, STRINGS)."""
    own = np.repeat(np.arange(len(log_p)), counts)
    strings = np.array([rng.choice(STRINGS, p=np.exp(log_p[u])) for u in own])
    return usable(f[:, strings].T, np.ones(len(own)), own)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.floats(0, 4), st.floats(0, 8))
def test_no_scorer_is_told_more_than_there_is(seed: int, prompts: int, strength: float, noise: float) -> None:
    rng = np.random.default_rng(seed)
    log_p = channel(rng, prompts, strength)
    f = log_p + noise * rng.normal(size=log_p.shape)
    for scale in (0.0, 0.25, 1.0, 4.0):
        assert expected_bound(log_p, f, scale) <= information(log_p) + 1e-9
    exact = log_p + rng.normal(size=STRINGS)  # what depends on the reasoning alone does not matter
    assert information(log_p) + math.log(1 - DOUBT) <= expected_bound(log_p, exact) + 1e-9


@pytest.mark.parametrize(
    ("prompts", "count", "strength"), [(8, 1, 2.0), (16, 4, 1.0), (16, 2, 8.0), (48, 2, 0.5), (32, 1, 0.0)]
)
def test_the_bounds_interval_is_above_what_there_is_in_few_samples(prompts: int, count: int, strength: float) -> None:
    """The scorer is the channel itself, so that the bound has no slack: another scorer's bound lies lower."""
    rng, above = np.random.default_rng((prompts, count)), 0
    log_p = channel(rng, prompts, strength)
    for _ in range(300):
        scores = draw(rng, log_p, log_p, np.full(prompts, count))
        found = bound_of(scores.likelihood, scores.source, rng)
        assert found is not None
        above += found.interval.low > information(log_p[found.prompts]) + 1e-9
    assert above <= 0.025 * 300 + 3 * math.sqrt(0.025 * 0.975 * 300)


def test_the_tests_level_is_exact_whatever_the_scorer_prefers_and_however_alike_a_prompts_reasonings_are() -> None:
    rng, significant, total = np.random.default_rng(0), 0, 2000
    for trial in range(total):
        counts = rng.permutation([2, 2, 2, 2, 2, 3, 3, 3, 3, 5, 5, 5]) if trial % 2 else np.full(12, 3)
        own = np.repeat(np.arange(12), counts)
        # the scorer prefers some prompts, and every other file repeats one reasoning for each prompt, as a cache does
        reasonings = rng.normal(size=(12, 12))[own] if trial % 4 < 2 else rng.normal(size=(len(own), 12))
        shown = evidence_of(usable(reasonings + 0.7 * rng.normal(size=12), np.ones(len(own)), own), seed=trial)
        significant += shown.verdict == DEPENDS
    assert 0.02 <= significant / total <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / total)


def test_the_level_holds_where_the_prompt_that_the_scorer_prefers_has_one_reasoning() -> None:
    rng, significant, total = np.random.default_rng(0), 0, 400
    own = np.repeat(np.arange(8), [1, *[12] * 7])
    for trial in range(total):
        scores = rng.normal(size=(len(own), 8)) + 1.2 * (np.arange(8) == 0)
        significant += evidence_of(usable(scores, np.ones(len(own)), own), seed=trial).verdict == DEPENDS
    assert significant / total <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / total)


def test_dependence_is_shown_by_a_scorer_that_is_no_policy_and_is_surer_than_it_should_be() -> None:
    rng = np.random.default_rng(1)
    log_p = channel(rng, 16, 2.0)
    scorer = 6 * (log_p + 0.5 * rng.normal(size=log_p.shape))
    shown = evidence_of(draw(rng, log_p, scorer, np.full(16, 8)))
    assert shown.verdict == DEPENDS and shown.retrieval_accuracy > 0.3 and shown.retrieval_chance == 1 / 16
    assert shown.bound is not None and shown.bound.scale < 1 and 0 < shown.bound.interval.low < information(log_p)
    blind = evidence_of(draw(rng, np.broadcast_to(log_p[:1], log_p.shape), scorer, np.full(16, 8)))
    assert blind.verdict == NOT_SHOWN and blind.bound is not None and blind.bound.interval.low < 0


def test_the_scale_is_not_fitted_on_the_prompts_of_the_bound() -> None:
    rng = np.random.default_rng(2)
    log_p = channel(rng, 16, 2.0)
    scores = draw(rng, log_p, log_p, np.full(16, 4))
    matrix, own = scores.likelihood.copy(), scores.source
    first = bound_of(matrix, own, np.random.default_rng(3))
    assert first is not None and first.ceiling == math.log(8 - 7 * DOUBT)
    held = np.isin(own, first.prompts)
    matrix[held] *= -3
    other = bound_of(matrix, own, np.random.default_rng(3))
    assert other is not None and other.scale == first.scale and other.value < first.value
    matrix[~held] *= -3
    assert bound_of(matrix, own, np.random.default_rng(3)).scale == SCALES[0]


def test_prompts_weigh_alike_however_many_reasonings_they_have() -> None:
    rng = np.random.default_rng(4)
    log_p = channel(rng, 12, 1.0)
    scores = draw(rng, log_p, log_p, np.full(12, 2))
    again = np.flatnonzero(scores.source == 3).repeat(5)
    rows = np.concatenate([np.arange(24), again])
    more = usable(scores.likelihood[rows], np.ones(len(rows)), scores.source[rows])
    one, other = evidence_of(scores), evidence_of(more)
    assert other.num_samples == 34 and other.retrieval_accuracy == pytest.approx(one.retrieval_accuracy)
    assert one.bound is not None and other.bound is not None
    assert other.bound.value == pytest.approx(one.bound.value)


def test_a_reasoning_that_cannot_be_scored_is_counted_and_its_prompt_is_none() -> None:
    rng = np.random.default_rng(5)
    log_p = channel(rng, 9, 2.0)
    scores = draw(rng, log_p, log_p, np.full(9, 2))
    matrix = scores.likelihood.copy()
    matrix[scores.source == 4, 0] = math.nan
    shown = evidence_of(usable(matrix, np.ones(18), scores.source))
    assert (shown.num_prompts, shown.num_samples, sum(shown.excluded.values())) == (8, 16, 2)
    assert shown.bound is not None and 4 not in shown.bound.prompts and shown.bound.prompts.max() < 9
    few = evidence_of(usable(log_p[:7, :7].T[:7], np.ones(7), np.arange(7)))
    assert few.num_prompts < 2 * FEWEST and few.bound is None and math.isnan(few.metrics()["bound"])
    with pytest.raises(ValueError, match="1 prompts have a usable reasoning"):
        evidence_of(usable(np.zeros((2, 3)), np.ones(2), np.array([1, 1])))
