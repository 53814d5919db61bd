"""The likelihood between nodes is exact, its interval holds the temperature, and evidence is rare without a cause."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.checks.weights.likelihood import (
    NODE_TEMPERATURES,
    at,
    divergence,
    head_nodes,
    interval,
    log_evidence,
    log_mixture,
    peak,
)
from squelch.kit.checks.weights.temperature import DROP
from tests.kit.checks.weights.categorical import World, drawn, language_like, log_softmax, sample_of, trained

WORLD = World({1: language_like(), 2: trained(language_like(), 0.2, 1)})


def whole(pairs: list[tuple[np.ndarray, np.ndarray]], number: int = 1, head: bool = False) -> np.ndarray:
    scores = WORLD.scores([(sample_of(k, ids), where) for k, (ids, where) in enumerate(pairs)])
    rows = scores.tokens[list(WORLD.tables).index(number)]
    return np.sum([(head_nodes(one) if head else one.nodes).sum(axis=1) for one in rows], axis=0)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.26, 3.9), st.floats(0.2, 8.0), st.integers(0, 2**31))
def test_a_tokens_log_probability_between_the_nodes_is_what_its_logits_say(
    temperature: float, spread: float, seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=(20, 30)) * spread
    nodes = np.stack([log_softmax(logits / one) for one in NODE_TEMPERATURES])
    found = at(np.moveaxis(nodes, 0, -1), temperature)
    assert np.abs(found - log_softmax(logits / temperature)).max() < 2e-3 * max(1.0, spread / temperature)


def test_near_temperature_1_the_interpolation_errs_by_less_than_the_engine() -> None:
    for temperature in (0.6, 0.8, 0.9, 1.0, 1.1, 1.5):
        nodes = np.stack([log_softmax(language_like() / one) for one in NODE_TEMPERATURES])
        found = at(np.moveaxis(nodes, 0, -1), temperature)
        assert np.sqrt(np.mean((found - log_softmax(language_like() / temperature)) ** 2)) < 1e-4


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.0, 1.4])
@pytest.mark.parametrize("head", [False, True])
def test_the_interval_holds_the_temperature_as_often_as_it_says(temperature: float, head: bool) -> None:
    rng, missed, num = np.random.default_rng(3), 0, 150
    for _ in range(num):
        low, high = interval(whole(drawn(rng, WORLD.tables[1], temperature, 10), head=head), 1.92)
        missed += not low <= temperature <= high
    assert missed <= 0.05 * num + 3 * np.sqrt(0.05 * num)


def test_an_interval_ends_where_the_likelihood_has_dropped() -> None:
    curve = whole(drawn(np.random.default_rng(0), WORLD.tables[1], 0.8))
    top, (low, high) = peak(curve), interval(curve, DROP)
    assert low < top.temperature < high
    assert [at(curve, one) for one in (low, high)] == pytest.approx([top.value - DROP] * 2, abs=1e-6)
    width = np.sqrt(2 * DROP / top.information)
    assert np.log(high / low) == pytest.approx(2 * width, rel=0.1)


def test_tokens_that_say_nothing_leave_every_temperature_open() -> None:
    assert interval(np.zeros(len(NODE_TEMPERATURES)), DROP) == pytest.approx((0.25, 4.0))


def test_a_cut_tail_changes_the_whole_likelihood_and_not_that_of_the_head() -> None:
    rng = np.random.default_rng(5)
    pairs = drawn(rng, WORLD.tables[1], rollouts=200, top_p=0.9)
    assert interval(whole(pairs), DROP)[1] < 0.95
    low, high = interval(whole(pairs, head=True), DROP)
    assert low < 1 < high
    assert peak(whole(pairs, head=True)).temperature == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_evidence_against_the_weights_that_sampled_is_as_rare_as_it_says(temperature: float | None) -> None:
    rng, num, found = np.random.default_rng(1), 400, []
    for _ in range(num):
        pairs = drawn(rng, WORLD.tables[1], rollouts=5)
        found.append(log_evidence(whole(pairs), [whole(pairs, 2)], temperature))
    for bound in (5, 20, 100):
        assert sum(one >= np.log(bound) for one in found) <= num / bound + 2 * np.sqrt(num / bound)


def test_evidence_against_other_weights_grows_with_their_divergence() -> None:
    rng = np.random.default_rng(2)
    pairs = drawn(rng, WORLD.tables[2], rollouts=100)
    own, other = (WORLD.log_probs[n][-1] for n in (2, 1))
    ids, where = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    exact = float((np.exp(own) * (own - other)).sum(axis=1).mean())
    assert divergence(other[where, ids], own[where, ids]) == pytest.approx(exact, rel=0.15)
    expected = exact * len(ids)
    assert log_evidence(whole(pairs), [whole(pairs, 2)], 1.0) == pytest.approx(expected, abs=3 * np.sqrt(2 * expected))


def test_a_mixture_over_temperatures_is_below_its_peak_and_near_the_claimed_temperatures_value() -> None:
    curve = whole(drawn(np.random.default_rng(7), WORLD.tables[1]))
    assert log_mixture(curve, 1.0) <= peak(curve).value
    assert log_mixture(curve, 1.0) >= at(curve, 1.0) - np.log(2)
    assert log_mixture(curve, None) < log_mixture(curve, 1.0)
