"""What must hold of intervals over prompts and of the exchangeable null."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.metrics import REGISTRY
from squelch.kit.diagnosis.proxies import Proxies, Scores, proxies_of_scores, usable
from squelch.kit.diagnosis.uncertainty import (
    ESTIMATED,
    MIN_INTERVAL,
    MIN_PROMPTS,
    SHARES,
    TESTED,
    Interval,
    Uncertainty,
    delete_one,
    t_quantile,
    uncertainty,
    wilson_interval,
)


def scores_of(seed: int, prompts: int = 8, samples: int = 3, own: float = 1.0, copies: int = 0) -> Scores:
    """Noise around -20 nats a token, own prompts likelier by `own` nats; the first `copies` columns repeat the last."""
    rng = np.random.default_rng(seed)
    source = np.repeat(np.arange(prompts), samples)
    lengths = rng.integers(4, 12, len(source))
    matrix = -20.0 * lengths[:, None] + rng.normal(size=(len(source), prompts))
    label = np.arange(prompts)
    label[:copies] = prompts - 1
    matrix[:, label == prompts - 1] = matrix[:, -1:]
    matrix[label[source][:, None] == label] += own
    return usable(matrix, lengths, source, prompt_id=label)


def measured(scores: Scores, **options: object) -> tuple[Proxies, Uncertainty]:
    report = proxies_of_scores(scores)
    return report, uncertainty(scores, report, **options)


def without(scores: Scores, prompt: int) -> Scores:
    """The same scores as if the prompt had never been drawn."""
    rows, columns = scores.prompt[scores.source] != prompt, np.flatnonzero(scores.prompt != prompt)
    source = np.searchsorted(columns, scores.source[rows])
    weights = scores.weights[columns]
    labels = scores.prompt[columns]
    return usable(scores.likelihood[rows][:, columns], scores.lengths[rows], source, weights, labels)


@given(st.integers(0, 10_000), st.integers(4, 7), st.integers(0, 2), st.sampled_from(["paper", "ragen"]))
@settings(max_examples=25, deadline=None)
def test_values_without_a_prompt_equal_those_computed_without_it(seed: int, n: int, copies: int, compat: str) -> None:
    scores = scores_of(seed, n, copies=copies)
    found = delete_one(scores, compat, 1e-3)
    for prompt in range(scores.num_prompts):
        plain = proxies_of_scores(without(scores, prompt), compat=compat)
        expected = plain.as_dict() | {f"recall@{k}": value for k, value in plain.recall.items()}
        for name, values in found.items():
            assert values[prompt] == pytest.approx(expected[name], abs=1e-9), name


@given(st.integers(0, 10_000), st.integers(6, 9), st.floats(-1, 60))
@settings(max_examples=40, deadline=None)
def test_intervals_contain_their_metric_and_keep_to_its_range(seed: int, n: int, own: float) -> None:
    report, sure = measured(scores_of(seed, n, own=own))
    values = report.as_dict() | {f"recall@{k}": value for k, value in report.recall.items()}
    assert set(sure.intervals) == set(ESTIMATED) and set(sure.nulls) == set(TESTED)
    for name, found in sure.intervals.items():
        assert found.low <= values[name] + 1e-9 and values[name] <= found.high + 1e-9, name
    assert all(sure.intervals[name].low >= 0 and sure.intervals[name].high <= 1 for name in SHARES)
    assert sure.intervals["mi_seq_est"].high <= report.upper_bound + 1e-9
    assert all(1 / 1000 <= null.p_value <= 1 for null in sure.nulls.values())


def test_the_interval_of_a_saturated_estimate_is_not_cut_at_the_entropy_of_the_prompts_that_were_drawn() -> None:
    report, sure = measured(scores_of(0, 12, own=200.0, copies=4))
    interval = sure.intervals["mi_seq_est"]
    assert report.mi_seq_est == pytest.approx(report.upper_bound) and report.num_prompts == 8
    assert report.upper_bound + 0.05 < interval.high <= np.log(8) + 1e-9, "other draws repeat other prompts"


def test_a_perfect_share_is_not_certain_and_one_by_construction_is() -> None:
    report, sure = measured(scores_of(0, 8, own=80.0))
    assert report.retrieval_accuracy == 1.0
    assert 0.6 < sure.intervals["retrieval_accuracy"].low < 0.8, "8 prompts in a row: Wilson's interval"
    assert sure.intervals["recall@8"].low == sure.intervals["recall@8"].high == 1.0


def test_dependence_is_significant_and_a_template_is_not() -> None:
    _, grounded = measured(scores_of(1, own=4.0))
    assert all(null.p_value <= 0.002 for null in grounded.nulls.values())
    scores = scores_of(1)
    template = usable(np.repeat(scores.likelihood[:, :1], 8, axis=1), scores.lengths, scores.source)
    report, sure = measured(template)
    assert report.mi_est == pytest.approx(0, abs=1e-12)
    assert all(null.p_value == 1.0 for null in sure.nulls.values())
    assert sure.nulls["retrieval_accuracy"].point_95 == pytest.approx(1 / 8)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [4, 5, 6])
def test_of_few_prompts_the_null_is_exact(prompts: int) -> None:
    for seed in range(30):
        _, found = measured(scores_of(seed, prompts, own=50.0), seed=(seed,))
        values = [null.p_value for null in found.nulls.values()]
        assert values == [pytest.approx(1 / math.factorial(prompts))] * 3


@pytest.mark.parametrize(("prompts", "samples", "copies"), [(8, 4, 0), (32, 1, 0), (10, 4, 2)])
def test_independence_is_significant_one_time_in_twenty(prompts: int, samples: int, copies: int) -> None:
    """Reasonings that vary, and favour some prompts, but no more their own than another. `research.known_truth`
    counts over thousands of trials."""
    trials = 100
    hits = dict.fromkeys(("retrieval_accuracy", "mi_est"), 0)
    for seed in range(trials):
        nulls = measured(scores_of(seed, prompts, samples, own=0.0, copies=copies))[1].nulls
        for name in hits:
            hits[name] += nulls[name].p_value <= 0.05
    assert 0.01 * trials <= hits["mi_est"] <= 0.1 * trials
    assert hits["retrieval_accuracy"] <= 0.1 * trials, "ties make it cautious"


def test_too_few_prompts_say_so_and_every_key_is_still_there() -> None:
    report, sure = measured(scores_of(0, MIN_PROMPTS - 1))
    assert sure.why_not == "3 distinct prompts with a usable reasoning; p-values need 4, intervals 6"
    assert sure.prompts_needed("mi_est", 0.1) is None
    assert set(sure.metrics()) == set(measured(scores_of(0))[1].metrics())
    assert all(math.isnan(value) for value in sure.metrics().values())
    between = measured(scores_of(0, MIN_INTERVAL - 1))[1]
    assert between.nulls and not between.intervals and between.why_not.startswith("5 distinct")
    for sent in (between, pickle.loads(pickle.dumps(between))):
        with pytest.raises(KeyError, match=r"mi_est: 5 distinct prompts with a usable reasoning; .* intervals 6"):
            sent.intervals["mi_est"]
    with pytest.raises(KeyError, match=r"mi: there are .*mi_est"):
        between.nulls["mi"]
    nothing = usable(np.full((8, 4), np.nan), np.ones(8), np.repeat(np.arange(4), 2))
    assert measured(nothing)[1].why_not is not None and report.num_prompts == 3


def test_the_prompts_needed_follow_the_square_of_the_width() -> None:
    _, sure = measured(scores_of(0, 16))
    half = sure.intervals["mi_est"].half_width
    assert sure.prompts_needed("mi_est", half * 1.0001) == 16
    assert sure.prompts_needed("mi_est", half / 2) in (64, 65)
    assert sure.prompts_needed("mi_est", 1e-320) == 16 * 10**12, "as far as is extrapolated"
    wide = replace(sure, intervals={"mi_est": Interval(-math.inf, math.inf, math.inf)})
    assert wide.prompts_needed("mi_est", 0.1) is None
    assert sure.prompts_needed("mi_est", 1e9) == MIN_INTERVAL
    with pytest.raises(ValueError, match="half_width"):
        sure.prompts_needed("mi_est", 0.0)


def test_more_prompts_give_a_narrower_interval() -> None:
    narrow, wide = (measured(scores_of(2, n))[1].intervals["mi_est"].half_width for n in (64, 8))
    assert narrow < wide / 2


def test_the_seed_decides_and_nothing_else() -> None:
    first, again, other = (measured(scores_of(3), seed=(s,))[1] for s in (1, 1, 2))
    assert first == again and first != other


def test_students_quantiles() -> None:
    for degrees, expected in ((3, 3.1824), (7, 2.3646), (15, 2.1314), (63, 1.9983)):
        assert t_quantile(0.975, degrees) == pytest.approx(expected, rel=5e-3)


def test_every_key_is_in_the_registry() -> None:
    assert all(REGISTRY.series_of(f"trajectory/{key}") for key in measured(scores_of(0))[1].metrics())


def test_wilson_interval_matches_its_textbook_values() -> None:
    low, high = wilson_interval(50, 100)
    assert (round(low, 4), round(high, 4)) == (0.4038, 0.5962)
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    for trials in range(1, 200):
        assert wilson_interval(0, trials)[0] == 0.0 and wilson_interval(trials, trials)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)
