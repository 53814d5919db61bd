"""The sampling temperature from ids and recorded values: found at the tokens that it takes, and never in clean runs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from squelch.kit.checks.result import Result
from squelch.kit.checks.weights.data import Scores, WeightClaims
from squelch.kit.checks.weights.temperature import recording_mode, temperature
from squelch.kit.checks.weights.weighing import Weighing
from tests.kit.checks.weights.categorical import World, language_like, run_of, trained

TABLES = {1: language_like(), 2: trained(language_like(), 0.15, 1)}
WORLDS = {one: World(TABLES, one) for one in (0.6, 1.0)}


def found(
    sampled_at: float, tokens: int, seed: int = 0, *, claimed: float = 1.0, cuts_tail: bool | None = False, **how
) -> Result:
    scores = run_of(
        WORLDS[claimed],
        np.random.default_rng(seed),
        {1: 1},
        temperature=sampled_at,
        rollouts=tokens // 50,
        length=50,
        **how,
    )
    return temperature(Weighing(scores, WeightClaims(claimed, cuts_tail)))


@pytest.mark.parametrize(("sampled_at", "tokens"), [(0.7, 2000), (0.9, 7700), (1.2, 7700), (0.98, 200_000)])
def test_a_wrong_temperature_is_found_in_the_tokens_that_it_takes(sampled_at: float, tokens: int) -> None:
    results = [found(sampled_at, tokens, seed) for seed in range(10 if tokens < 100_000 else 2)]
    assert sum(one.verdict == "fault" for one in results) >= 0.9 * len(results)
    one = results[0].size
    assert one is not None
    assert one.value == pytest.approx(sampled_at, rel=0.1)
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.value < one.high


@pytest.mark.parametrize("claimed", [0.6, 1.0])
def test_the_claimed_temperature_is_no_fault_in_any_of_many_clean_runs(claimed: float) -> None:
    results = Counter(found(claimed, 1500, seed, claimed=claimed).verdict for seed in range(300))
    assert results["fault"] <= 1  # 0.15 are expected; of 3,000 such runs, 3 were beyond
    assert found(claimed, 40_000, claimed=claimed).verdict == "sound"


def test_few_tokens_are_unknown_and_say_how_many_would_do() -> None:
    one = found(1.0, 200)
    assert one.verdict == "unknown"
    more = int(one.needs.split()[1].replace(",", ""))
    assert found(1.0, 2 * more).verdict == "sound"


@pytest.mark.parametrize("top_p", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("cuts_tail", [None, True])
def test_a_cut_tail_that_nobody_declared_is_no_other_temperature(top_p: float, cuts_tail: bool | None) -> None:
    for tokens in (500, 5000, 40_000):
        assert found(1.0, tokens, cuts_tail=cuts_tail, top_p=top_p).verdict != "fault"


@pytest.mark.parametrize("sampled_at", [0.7, 0.9])
def test_a_wrong_temperature_is_found_without_declared_settings_and_under_a_cut_tail(sampled_at: float) -> None:
    assert found(sampled_at, 40_000, cuts_tail=None).verdict == "fault"
    assert found(sampled_at, 60_000, cuts_tail=True, top_p=0.95).verdict == "fault"


def test_processed_values_at_another_temperature_show_it_in_few_tokens() -> None:
    one = found(0.9, 400, engine=1e-3)
    assert one.verdict == "fault"
    assert "at temperature 0.9" in one.says
    assert found(1.0, 400, engine=1e-3).verdict != "fault"
    assert found(0.6, 400, claimed=0.6, engine=1e-3).verdict == "sound"
    assert found(0.6, 4000, claimed=0.6, engine=1e-3, recorded_at=1.0).verdict != "fault"


@pytest.mark.parametrize(
    ("recorded_at", "error", "verdict", "word"),
    [
        (1.0, 1e-3, "sound", "raw"),
        (0.6, 1e-3, "sound", "processed"),
        (0.6, 1.0, "unknown", "err by"),
        (None, None, "unknown", "No log-probabilities"),
    ],
)
def test_the_mode_of_recording_is_told_apart(
    recorded_at: float | None, error: float | None, verdict: str, word: str
) -> None:
    scores = run_of(WORLDS[0.6], np.random.default_rng(0), {1: 1}, engine=error, recorded_at=recorded_at)
    one = recording_mode(Weighing(scores, WeightClaims(0.6, False)))
    assert one.verdict == verdict
    assert word in one.says


def test_rows_of_unsaved_checkpoints_and_encoded_texts_do_not_tell_the_temperature() -> None:
    rng = np.random.default_rng(0)
    between = trained(TABLES[1], 0.5, 9)
    unsaved = run_of(WORLDS[1.0], rng, {5: between}, {5: (5, 5)}, rollouts=200)
    assert temperature(Weighing(unsaved, WeightClaims(1.0, False))).verdict == "unknown"
    scores = run_of(WORLDS[1.0], rng, {1: 1}, temperature=0.7, rollouts=200)
    texts = [replace(one, exact=False) for one in scores.samples]
    of_texts = Scores(texts, scores.candidates, scores.temperatures, scores.tokens)
    one = temperature(Weighing(of_texts, WeightClaims(1.0, False)))
    assert (one.verdict, one.needs) == ("unknown", "the sampled token ids")


def test_prompts_that_were_encoded_again_explain_a_higher_temperature_and_no_lower_one() -> None:
    found = {}
    for sampled_at in (0.7, 1.3):
        scores = run_of(WORLDS[1.0], np.random.default_rng(0), {1: 1}, temperature=sampled_at, rollouts=200)
        rendered = replace(scores, samples=[replace(one, fed=False) for one in scores.samples])
        found[sampled_at] = temperature(Weighing(rendered, WeightClaims(1.0, False))).verdict
    assert found == {0.7: "fault", 1.3: "unknown"}


def test_without_a_claim_the_temperature_is_said_and_judged_by_nobody() -> None:
    scores = run_of(WORLDS[1.0], np.random.default_rng(0), {1: 1}, temperature=0.7, rollouts=200)
    one = temperature(Weighing(scores, WeightClaims(None, False)))
    assert one.verdict == "unknown"
    assert one.size is not None
    assert one.size.value == pytest.approx(0.7, abs=0.05)
