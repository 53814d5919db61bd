"""The estimates against channels whose mutual information is known exactly.

A few dozen fixed draws each; the whole study is `python -m research.known_truth`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research import known_page
from research.channels.reasonings import Channel, draw, random_channel
from research.judging import PAGES
from research.known_page import DATA, LINKS, LM_PROMPTS, NULLS, figure, markdown, read_rows
from research.known_truth import CHANNELS, enumerate_lm, false_positives, study, tiny_lm
from squelch.kit.diagnosis.proxies import proxies_of_scores
from squelch.kit.diagnosis.uncertainty import ESTIMATED, uncertainty

MEDIUM = random_channel(1, strength=1.0, max_length=4)


def with_template(channel: Channel, alpha: float, seed: int = 0) -> Channel:
    """The channel of Lemma I.1: (1 - alpha) p(z|x) + alpha q(z), with a random q that does not depend on the prompt, on
    the same strings with terminator. The likelihood without terminator is not defined for a mixture and is NaN."""
    weights = np.random.default_rng(seed).gamma(0.3, size=channel.log_p.shape[1])
    mixed = (1 - alpha) * np.exp(channel.log_p) + alpha * weights / weights.sum()
    return replace(channel, log_p=np.log(mixed), log_open=np.full_like(mixed, np.nan))


@given(st.integers(0, 1000), st.floats(0, 4), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_channel_is_a_distribution_and_its_information_is_shannons(seed: int, strength: float, length: int) -> None:
    channel = random_channel(seed, num_prompts=12, max_length=length, strength=strength)
    p = np.exp(channel.log_p)
    assert p.sum(axis=1) == pytest.approx(1.0)
    marginal = p.mean(axis=0)
    entropy = -(marginal * np.log(marginal)).sum()
    conditional = -(p * channel.log_p).sum(axis=1).mean()
    assert channel.information() == pytest.approx(entropy - conditional, abs=1e-9)
    assert -1e-9 <= channel.information() <= np.log(12) + 1e-9


def test_without_the_terminator_the_moment_of_stopping_is_left_out() -> None:
    telling = random_channel(2, num_prompts=64, strength=1.0, stop_strength=2.0)
    silent = random_channel(2, num_prompts=64, strength=1.0, stop_strength=0.0)
    assert telling.information(True) > telling.information(False) + 0.02
    assert silent.information(True) == pytest.approx(silent.information(False), abs=1e-9)


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 6))
@settings(max_examples=40, deadline=None)
def test_template_mixing_contracts_information_as_lemma_i_1_says(seed: int, alpha: float, strength: float) -> None:
    channel = random_channel(seed, num_prompts=10, max_length=3, strength=strength)
    mixed = with_template(channel, alpha, seed)
    assert mixed.information() <= (1 - alpha) * channel.information() + 1e-9


def test_the_estimate_follows_the_mixing_down() -> None:
    rng, strong = np.random.default_rng(0), random_channel(1, strength=3.0, num_prompts=256, max_length=4)
    found = []
    for alpha in (0.0, 0.3, 0.6, 0.9):
        mixed = with_template(strong, alpha)
        estimates = [proxies_of_scores(draw(mixed, rng, 32, 8)).mi_seq_est for _ in range(20)]
        found.append(float(np.mean(estimates)))
        assert found[-1] <= (1 - alpha) * strong.information() + 0.03
    assert found == sorted(found, reverse=True) and found[-1] < 0.2 * found[0]


@pytest.mark.slow
def test_the_bias_is_downwards_and_shrinks_with_n_and_the_interval_covers_what_it_promises() -> None:
    few, many = (study(MEDIUM, n, 8, 60, 0, terminated=False) for n in (8, 32))
    assert few["bias"] < many["bias"] < 0.01 and abs(many["bias"]) < 0.1
    for row in (few, many):
        assert 0.85 <= row["covers_mean"] <= 1.0, row
        assert row["told_from_null"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.7, 2.0])
def test_every_metrics_interval_covers_its_mean(strength: float) -> None:
    channel, rng = random_channel(1, strength=strength, max_length=4), np.random.default_rng(1)
    rows = []
    for trial in range(60):
        scores = draw(channel, rng, 8, 8, terminated=False)
        report = proxies_of_scores(scores)
        values = report.as_dict() | {f"recall@{k}": value for k, value in report.recall.items()}
        found = uncertainty(scores, report, seed=(trial,)).intervals
        rows.append([(values[name], found[name].low, found[name].high) for name in ESTIMATED])
    value, low, high = np.moveaxis(np.array(rows), 2, 0)
    covered = ((low - 1e-9 <= value.mean(axis=0)) & (value.mean(axis=0) <= high + 1e-9)).mean(axis=0)
    assert covered.min() >= 0.85, dict(zip(ESTIMATED, covered, strict=True))


def test_every_prompt_drawn_means_no_bias() -> None:
    channel = random_channel(4, num_prompts=16, max_length=3, strength=1.5)
    rng = np.random.default_rng(0)
    for terminated in (True, False):
        reports = [proxies_of_scores(draw(channel, rng, 16, 8, terminated=terminated)) for _ in range(200)]
        for name, truth in (
            ("mi_seq_est", channel.information(terminated)),
            ("mi_est", channel.information(terminated, per_token=True)),
            ("conditional_entropy", channel.conditional_entropy(terminated)),
        ):
            values = np.array([vars(report)[name] for report in reports])
            assert abs(values.mean() - truth) <= 4 * values.std() / np.sqrt(len(values)), name


@pytest.mark.slow
def test_independence_is_not_told_from_zero() -> None:
    rate = false_positives(MEDIUM, 8, 8, 100, 0)
    assert 0.01 <= rate <= 0.1
    silent = random_channel(0, num_prompts=64, strength=0.0)
    report = proxies_of_scores(draw(silent, np.random.default_rng(0), 16, 8))
    assert silent.information() == pytest.approx(0, abs=1e-12)
    assert report.mi_seq_est == pytest.approx(0, abs=1e-9)
    assert report.retrieval_accuracy == pytest.approx(1 / 16)


@pytest.fixture(scope="module")
def language_model() -> tuple[object, list[np.ndarray], Channel, list[np.ndarray]]:
    model, prompts = tiny_lm()
    return (model, prompts, *enumerate_lm(model, prompts))


def test_a_language_models_strings_are_enumerated_to_the_end(language_model) -> None:
    channel = language_model[2]
    assert np.exp(channel.log_p).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert 0.5 < channel.information() < np.log(LM_PROMPTS)


def test_the_engine_gives_a_language_models_exact_likelihoods_and_information(language_model) -> None:
    from squelch.kit.scoring.cross_scoring import CrossScorer

    model, prompts, channel, strings = language_model
    engine = CrossScorer(model, 4096, 1.0)
    rng = np.random.default_rng(0)
    matrix = engine.matrix(prompts, strings)
    assert np.abs(matrix.T - channel.log_p).max() < 1e-4
    exact = Channel(matrix.T, channel.log_open, channel.lengths, channel.ends)
    assert exact.information() == pytest.approx(channel.information(), abs=1e-4)
    estimates = np.array([proxies_of_scores(draw(exact, rng, LM_PROMPTS, 8)).mi_seq_est for _ in range(60)])
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - channel.information()) <= 4 * error


def test_an_empty_string_is_excluded_without_the_terminator_and_counted(language_model) -> None:
    channel = language_model[2]
    scores = draw(channel, np.random.default_rng(0), LM_PROMPTS, 40, terminated=False)
    assert scores.excluded["empty reasoning"] > 0 and (scores.lengths > 0).all()
    assert not draw(channel, np.random.default_rng(0), LM_PROMPTS, 40).excluded


def test_the_committed_page_is_made_from_the_committed_tables() -> None:
    rows, page = read_rows(DATA), (PAGES / "known-truth.md").read_text()
    assert markdown(rows, read_rows(NULLS), read_rows(LINKS)) == page, "python -m research.known_truth --write"
    assert len(rows) == 66 and {row["channel"] for row in rows} == {*CHANNELS, "tiny LM"}
    assert all(text in figure(rows) for text in ("<title", "log N, the bound", "medium dependence", ">strong<"))


def test_a_measurement_is_written_as_the_page_reads_it(tmp_path, monkeypatch) -> None:
    row = {"channel": "medium", "terminator": True, "length": 3.6} | study(MEDIUM, 8, 8, 5, 0, True)
    data, nulls = tmp_path / "rows.csv", tmp_path / "nulls.csv"
    for name, value in {"DATA": data, "NULLS": nulls, "PAGES": tmp_path, "figure": lambda rows: ""}.items():
        monkeypatch.setattr(known_page, name, value)
    known_page.write({data: [row], nulls: [{"prompts": 8, "samples": 8, "rate": 0.05}]})
    page = (tmp_path / "known-truth.md").read_text()
    assert page.count("| medium | with terminator | 8 |") == 1 and "0.050 at N=8, K=8" in page
