"""The regimes: their rules, the order in which they are read, and the judge's baseline."""

import json
import math
from dataclasses import replace

import pytest

from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.diagnosis.modality import text_alone
from squelch.kit.diagnosis.regime import BASELINE_STEPS, RegimeGauge, RegimeInputs, decided_by, one_hot, true_share
from tests.kit.diagnosis.modal_channel import modal_channel

HEALTHY = RegimeInputs(1.5, 0.001, 0.7, 0.125, 1.2, reasoned=0.95, follows=1.0, true_share=0.6)
NOT_SIGNIFICANT = replace(HEALTHY, p_value=0.2)


def begun() -> RegimeGauge:
    gauge = RegimeGauge()
    assert [gauge.read(HEALTHY) for _ in range(BASELINE_STEPS)] == ["used"] * BASELINE_STEPS
    return gauge


@pytest.mark.parametrize(
    ("inputs", "regime"),
    [
        (HEALTHY, "used"),
        (replace(HEALTHY, reasoned=0.49), "mute"),
        (replace(HEALTHY, reasoned=0.0, marked=0.0), "unmarked"),
        (replace(HEALTHY, reasoned=0.0, marked=0.01), "mute"),
        (replace(HEALTHY, repeated=0.9), "echo"),
        (replace(HEALTHY, repeated=0.89), "used"),
        (replace(NOT_SIGNIFICANT, repeated=1.0), "template"),
        (replace(NOT_SIGNIFICANT, reasoned=0.49, follows=0.0), "mute"),
        (replace(HEALTHY, mi_seq_est=math.nan, reasoned=0.1), "mute"),
        (NOT_SIGNIFICANT, "template"),
        (replace(NOT_SIGNIFICANT, follows=math.nan), "template"),
        (replace(HEALTHY, retrieval_accuracy=0.15), "template"),  # at chance
        (replace(NOT_SIGNIFICANT, text_alone=1.0), "template"),
        (replace(HEALTHY, text_alone=1.0), "blind"),
        (replace(HEALTHY, text_alone=1.0, follows=0.0), "blind"),
        (replace(HEALTHY, text_alone=1.0, follows=math.nan), "blind"),
        (replace(HEALTHY, text_alone=0.0), "used"),
        (replace(HEALTHY, follows=0.0), "unused"),
        (replace(HEALTHY, follows=0.0, true_share=0.1), "unused"),
        (replace(HEALTHY, true_share=0.29), "private_code"),
        (replace(HEALTHY, true_share=0.31), "used"),
        (replace(HEALTHY, true_share=math.nan), "used"),  # there is no judge
        (replace(HEALTHY, true_share=math.nan, judged=True), "unknown"),  # it states too little to be judged
        (replace(HEALTHY, true_share=math.nan, judged=True, follows=0.0), "unused"),
        (replace(HEALTHY, true_share=0.31, judged=True), "used"),
        (replace(HEALTHY, follows=math.nan), "unknown"),
        (replace(HEALTHY, mi_seq_est=math.nan), "unknown"),
        (replace(HEALTHY, p_value=math.nan, low=math.nan), "unknown"),
        (replace(HEALTHY, reasoned=math.nan), "used"),
    ],
)
def test_each_regime_follows_from_its_inputs(inputs: RegimeInputs, regime: str) -> None:
    gauge = begun()
    gauge.read(inputs)
    assert gauge.read(inputs) == regime


@pytest.mark.parametrize(
    ("source", "regime"),
    [("text", "blind"), ("picture", "used"), ("both", "used"), ("either", "used")],
)
def test_reasoning_is_blind_only_where_it_is_read_from_the_text_and_not_where_the_parts_are_redundant(
    source: str, regime: str
) -> None:
    channel = modal_channel(source, seed=1, strength=2.0)
    found = channel.draw(num_tasks=32, samples=4, seed=2)
    verdict = text_alone(found["picture"], found["text"])
    assert channel.information() > 1.0 and verdict is not None
    assert RegimeGauge().read(replace(HEALTHY, text_alone=float(verdict))) == regime


def test_a_run_that_starts_without_dependence_is_a_template_without_a_baseline() -> None:
    assert RegimeGauge().read(NOT_SIGNIFICANT) == "template"
    assert RegimeGauge().read(replace(HEALTHY, follows=0.0)) == "unused"


def test_the_judges_baseline_is_of_the_first_scorer_steps_and_outlives_a_restart() -> None:
    gauge = begun()
    for _ in range(20):
        gauge.read(replace(HEALTHY, true_share=0.35))
    again = RegimeGauge()
    again.restore(json.loads(json.dumps(gauge.state())))
    low = replace(HEALTHY, true_share=0.2)
    assert again.read(low) == gauge.read(low) == "private_code", "a slow fall does not lower the bar"


def test_one_low_share_of_true_statements_is_no_private_code_and_two_are() -> None:
    gauge, low = begun(), replace(HEALTHY, true_share=0.2)
    assert [gauge.read(one) for one in (low, HEALTHY, low, low, HEALTHY)] == [
        *("used", "used", "used", "private_code", "used")
    ]


@pytest.mark.parametrize(
    ("inputs", "untrue"),
    [
        (HEALTHY, 0.0),
        (replace(HEALTHY, true_share=0.29), 1.0),
        (replace(HEALTHY, true_share=0.29, follows=math.nan), 1.0),
        (replace(NOT_SIGNIFICANT, true_share=0.29), 1.0),
        (replace(HEALTHY, true_share=math.nan), math.nan),
    ],
)
def test_that_reasoning_became_untrue_is_known_without_the_answers(inputs: RegimeInputs, untrue: float) -> None:
    gauge = begun()
    gauge.read(inputs)
    gauge.read(inputs)
    assert gauge.untrue == pytest.approx(untrue, nan_ok=True)


def test_unknown_inputs_leave_no_trace_in_the_baseline() -> None:
    gauge = RegimeGauge()
    gauge.read(RegimeInputs(math.nan, math.nan, math.nan, math.nan))
    assert gauge.state() == RegimeGauge().state()


def test_a_share_of_true_statements_needs_statements() -> None:
    assert true_share(0.5, 0.2, 16) == pytest.approx(0.4)
    assert math.isnan(true_share(0.4, 0.2, 16)) and math.isnan(true_share(math.nan, math.nan, 16))
    assert math.isnan(true_share(0.0, 0.0, 64))
    assert all(not math.isnan(true_share(8 / n, 4 / n, n)) for n in range(8, 200)), "eight are eight"


def test_exactly_one_regime_is_set() -> None:
    for regime in REGIMES:
        flags = one_hot(regime)
        assert sum(flags.values()) == 1.0 and flags[f"regime/{regime}"] == 1.0 and len(flags) == len(REGIMES)


def test_where_pairs_were_left_out_the_interval_tells_dependence_from_none() -> None:
    """A part of the pairs has no p-value."""
    part = replace(HEALTHY, p_value=math.nan)
    assert replace(part, low=0.4).significant
    assert not replace(part, low=-0.1).significant
    assert not replace(part, low=math.nan).significant
    assert not replace(part, retrieval_accuracy=0.15, low=0.4).significant


MEASURED = {
    "mi_seq_est": 1.5,
    "mi_seq_est_p_value": 0.001,
    "retrieval_accuracy": 0.7,
    "retrieval_chance": 0.125,
    "reasoned": 0.95,
    "judge/true_share": 0.231,
    "judge/least_true": 0.25,
}
LINKS = {
    "dependence": 3.36,
    "dependence_low": 3.25,
    "dependence_high": 3.47,
    "dependence_p_value": 0.002,
    "dependence_share": 0.52,
    "follows": 1.0,
}


@pytest.mark.parametrize(
    ("regime", "metrics", "links", "words"),
    [
        ("unmarked", {}, {}, "no turn marks a reasoning; if answers begin with a fixed text, reasoning=before_answer"),
        ("echo", {"repeated": 0.97}, {}, "97% of the reasoning repeats its prompt, at least 90%"),
        ("mute", {"reasoned": 0.12}, {}, "12% of the turns have reasoning, less than 50%"),
        ("template", {"mi_seq_est_p_value": 0.4}, {}, "MI 1.50 nats, p = 0.400, more than 0.05"),
        ("template", {"retrieval_accuracy": 0.15}, {}, "p = 0.001, but the own prompt is found in 15%, less than 21%"),
        ("template", {"mi_seq_est_p_value": math.nan, "mi_seq_est_low": -0.2}, {}, "at least -0.20, not above 0"),
        ("blind", {}, {}, "none of it from the pictures"),
        ("unused", {}, {"dependence_share": 0.04}, "4% of the answer's surprise, less than 10% of it"),
        ("unused", {}, {"dependence_p_value": 0.3}, "D 3.36 [3.25, 3.47] nats, p = 0.300, more than 0.05"),
        ("unused", {}, {"dependence_low": -0.1}, "[-0.10, 3.47] nats, not above 0"),
        ("private_code", {}, {}, "but 23% of what it states is true, less than 25%, half of before"),
        ("used", {}, {}, "MI 1.50 nats, p = 0.001; D 3.36 [3.25, 3.47] nats, 52% of the answer's surprise"),
        ("unknown", {"mi_seq_est": math.nan}, {}, "MI is not known"),
        ("unknown", {}, {"dependence": math.nan}, "MI 1.50 nats, p = 0.001; D is not known"),
        ("unknown", {}, {"follows": math.nan, "step": 25.0}, "MI 1.50 nats, p = 0.001; D has no interval or no null"),
        ("unknown", {}, {}, "p = 0.001; the reasoning states too little to be judged"),
        ("unknown", {}, {"step": 25.0}, "; D of step 25 is too old, or the reasoning states too little to be judged"),
    ],
)
def test_a_regime_says_what_was_measured_and_against_which_floor(
    regime: str, metrics: dict[str, float], links: dict[str, float], words: str
) -> None:
    assert words in decided_by(regime, MEASURED | metrics, LINKS | links)
