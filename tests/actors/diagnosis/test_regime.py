"""The four regimes of Figure 1 against a run's own start, chance and null."""

import json
import math

import pytest

from actors.diagnosis.metrics import REGIMES
from actors.diagnosis.regime import BASELINE_SCORINGS, Reading, RegimeGauge, one_hot

HEALTHY = Reading(1.5, 0.001, 0.7, 0.125, 0.8)


def begun() -> RegimeGauge:
    gauge = RegimeGauge()
    assert [gauge.read(HEALTHY) for _ in range(BASELINE_SCORINGS)] == ["diverse"] * BASELINE_SCORINGS
    return gauge


@pytest.mark.parametrize(
    ("reading", "regime"),
    [
        (Reading(1.4, 0.001, 0.65, 0.125, 0.9), "diverse"),
        (Reading(1.4, 0.001, 0.65, 0.125, 0.3), "compressed"),
        (Reading(0.6, 0.001, 0.5, 0.125, 0.9), "template_collapse"),  # below half of the baseline
        (Reading(1.4, 0.2, 0.65, 0.125, 0.9), "template_collapse"),  # not told from the null
        (Reading(1.4, 0.001, 0.15, 0.125, 0.9), "template_collapse"),  # at chance
        (Reading(0.0, 0.6, 0.125, 0.125, 0.05), "low_entropy_collapse"),
        (Reading(math.nan, 0.001, 0.7, 0.125, 0.8), "unknown"),
        (Reading(1.5, math.nan, 0.7, 0.125, 0.8), "unknown"),
    ],
)
def test_each_regime_is_told_by_its_reading(reading: Reading, regime: str) -> None:
    assert begun().read(reading) == regime


def test_a_run_that_starts_collapsed_is_told_so_without_a_baseline() -> None:
    assert RegimeGauge().read(Reading(0.01, 0.4, 0.13, 0.125, 2.0)) == "template_collapse"


def test_the_baseline_is_the_first_scorings_and_outlives_a_restart() -> None:
    gauge = begun()
    for _ in range(20):
        gauge.read(Reading(0.8, 0.001, 0.5, 0.125, 0.8))
    again = RegimeGauge()
    again.restore(json.loads(json.dumps(gauge.state())))
    low = Reading(0.7, 0.001, 0.5, 0.125, 0.8)
    assert again.read(low) == gauge.read(low) == "template_collapse", "a slow fall does not lower the bar"


def test_an_unknown_reading_leaves_no_trace_in_the_baseline() -> None:
    gauge = RegimeGauge()
    gauge.read(Reading(math.nan, math.nan, math.nan, math.nan, math.nan))
    assert gauge.state() == RegimeGauge().state()


def test_exactly_one_regime_is_set() -> None:
    for regime in REGIMES:
        flags = one_hot(regime)
        assert sum(flags.values()) == 1.0 and flags[f"regime/{regime}"] == 1.0 and len(flags) == len(REGIMES)


def test_where_pairs_were_left_out_the_interval_tells_dependence_from_none() -> None:
    """A part of the pairs has no p-value."""
    part = {"p_value": math.nan, "retrieval_accuracy": 0.7, "retrieval_chance": 0.125, "conditional_entropy": 0.8}
    assert Reading(1.5, **part, low=0.4).told_from_null
    assert not Reading(1.5, **part, low=-0.1).told_from_null
    assert not Reading(1.5, **part).told_from_null
    assert not Reading(1.5, **part | {"retrieval_accuracy": 0.15}, low=0.4).told_from_null
