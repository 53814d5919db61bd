"""The engine's values against the checkpoint's and the trainer's: which side is off, and how exact they are."""

from dataclasses import replace

import numpy as np
import pytest

from squelch.kit.checks.result import Result
from squelch.kit.checks.weights.data import Scores, WeightClaims
from squelch.kit.checks.weights.engine_values import engine_against_trainer, logprobs_of_other_ids, precision
from squelch.kit.checks.weights.verdicts import check_weights
from squelch.kit.checks.weights.weighing import Weighing
from tests.kit.checks.weights.categorical import World, language_like, log_softmax, run_of, trained

TABLES = {1: language_like(), 2: trained(language_like(), 0.5, 1)}
WORLD = World(TABLES)


def with_trainer(scores: Scores, number: int, error: float = 1e-4, temperature: float = 1.0) -> Scores:
    """The same with what a trainer with these weights would compute, whose values `exact` holds at temperature 1."""
    row = scores.tokens[list(TABLES).index(number)]
    rng = np.random.default_rng(5)
    at = {one: k for k, one in enumerate(scores.temperatures)}[temperature]
    samples = [
        replace(one, trainer=tokens.exact[at] + error * rng.normal(size=one.num_tokens))
        for one, tokens in zip(scores.samples, row, strict=True)
    ]
    return Scores(samples, scores.candidates, scores.temperatures, scores.tokens)


def sides(engine: int, trainer: int, **how: float) -> Result:
    scores = run_of(WORLD, np.random.default_rng(0), {1: engine}, {1: (1, 1)}, engine=1e-3)
    (found,) = engine_against_trainer(Weighing(with_trainer(scores, trainer, **how), WeightClaims(1.0, False)))
    return found


def test_the_side_that_differs_from_the_checkpoint_is_off() -> None:
    assert sides(1, 1).verdict == "sound"
    off = sides(2, 1)
    assert off.verdict == "fault"
    assert "the engine is off" in off.says
    off = sides(1, 2)
    assert off.verdict == "fault"
    assert "the trainer is off" in off.says


def test_what_bfloat16_makes_of_a_healthy_run_is_no_fault() -> None:
    assert sides(1, 1, error=0.03).verdict == "sound"


def test_values_at_two_temperatures_are_said_and_blamed_on_nobody() -> None:
    world = World(TABLES, 0.6)
    scores = run_of(world, np.random.default_rng(0), {1: 1}, engine=1e-3, recorded_at=1.0)
    both = with_trainer(scores, 1, temperature=0.6)
    (found,) = engine_against_trainer(Weighing(both, WeightClaims(0.6, False)))
    assert found.verdict == "unknown"
    assert "temperatures 1 and 0.6" in found.says


def test_one_side_alone_is_not_compared() -> None:
    scores = run_of(WORLD, np.random.default_rng(0), {1: 1}, engine=1e-3)
    assert engine_against_trainer(Weighing(scores, WeightClaims(1.0, False))) == []


@pytest.mark.parametrize(
    ("error", "dtype", "verdict"),
    [
        (1e-5, "float32", "sound"),
        (1e-2, "float32", "fault"),
        (1e-2, "bfloat16", "sound"),
        (1e-2, None, "unknown"),
        (None, "float32", "unknown"),
    ],
)
def test_precision_is_judged_by_what_the_run_claims(error: float | None, dtype: str | None, verdict: str) -> None:
    scores = run_of(WORLD, np.random.default_rng(0), {1: 1}, engine=error)
    assert precision(Weighing(scores, WeightClaims(1.0, False, dtype)), False).verdict == verdict


def test_steps_whose_weights_were_not_saved_blur_the_precision_of_the_others_no_more() -> None:
    """Training made the policy of step 2 surer, which looks like a lower temperature under what was saved."""
    world = World({1: TABLES[1], 5: TABLES[2]})
    sampled_by = {1: 1, 2: 1.05 * TABLES[1]}
    scores = run_of(world, np.random.default_rng(0), sampled_by, {1: (1, 1), 2: (2, 2)}, engine=1e-6)
    weighing = Weighing(scores, WeightClaims(1.0, False, "float32"))
    assert weighing.recording_temperature == 1
    found = precision(weighing, False)
    assert found.verdict == "sound" and found.size is not None and found.size.value < 1e-4


@pytest.mark.parametrize("error", [1e-6, 1e-2])
def test_values_beside_ids_that_were_encoded_again_are_found_and_blamed_on_no_weights(error: float) -> None:
    """From some place on a value is that of the token before."""
    scores = run_of(WORLD, np.random.default_rng(0), {1: 1, 2: 2}, engine=error)
    samples = list(scores.samples)
    for place, one in enumerate(samples[:-20]):
        assert one.engine is not None
        begin = 20 + place % 30
        samples[place] = replace(one, engine=np.concatenate([one.engine[:begin], np.roll(one.engine[begin:], 1)]))
    found = check_weights(replace(scores, samples=samples), WeightClaims(1.0, False, "float32"))
    assert {one.name: one.verdict for one in found} == {
        **dict.fromkeys(("stale_weights", "temperature", "precision"), "unknown"),
        "logprobs_of_other_ids": "fault",
    }
    assert 35 <= (found[-1].count or 0) <= 40 and found[-1].examples


@pytest.mark.parametrize(
    ("sampled_by", "error", "recorded_at", "verdict"),
    [
        (1, 1e-6, 1.0, "sound"),
        (1, 0.03, 1.0, "sound"),
        (1, 0.3, 1.0, "unknown"),
        (1, 1e-6, 0.7, "unknown"),
        (2, 1e-6, 1.0, "sound"),
        (trained(TABLES[1], 0.3, 7), 1e-6, 1.0, "unknown"),
        (trained(TABLES[1], 1.5, 7), 1e-6, 1.0, "unknown"),
    ],
)
def test_values_of_other_weights_temperatures_and_precisions_are_no_other_ids(
    sampled_by: int | np.ndarray, error: float, recorded_at: float, verdict: str
) -> None:
    scores = run_of(
        WORLD, np.random.default_rng(0), {1: sampled_by}, {1: (1, 1)}, engine=error, recorded_at=recorded_at
    )
    (found,) = logprobs_of_other_ids(Weighing(scores, WeightClaims(1.0, False)))
    assert found.verdict == verdict, found.says


def test_values_that_are_stored_coarsely_say_nothing_about_the_engine() -> None:
    scores = run_of(WORLD, np.random.default_rng(0), {1: 1}, engine=1e-6)
    rounded = [replace(one, engine=np.round(one.engine, 2)) for one in scores.samples if one.engine is not None]
    coarse = Scores(rounded, scores.candidates, scores.temperatures, scores.tokens)
    assert precision(Weighing(coarse, WeightClaims(1.0, False, "float32")), False).verdict == "unknown"


def test_what_the_trainers_values_are_made_of_is_the_tables_own() -> None:
    scores = run_of(WORLD, np.random.default_rng(0), {1: 1})
    exact = with_trainer(scores, 1, error=0).samples[0].trainer
    assert exact is not None
    assert exact.max() <= 0
    assert log_softmax(TABLES[1]).min() <= exact.min()
