"""The alarm on the fixed probe: which evaluations raise it, for which metric, and that it survives a checkpoint."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.diagnosis import alarm as cusum
from squelch.kit.diagnosis import probe_alarm
from squelch.kit.diagnosis.probe_alarm import ProbeAlarm


def evaluation(mi: float, dependence: float, error: float = 0.05, p_value: float = 0.001) -> dict[str, float]:
    values = {"probe/mi": mi, "probe/link/dependence": dependence}
    return {f"{key}{end}": x for key, v in values.items() for end, x in zip(ENDS, (v, error, p_value), strict=True)}


ENDS = ("", "_standard_error", "_p_value")


def watch(pairs: list[tuple[float, float]]) -> tuple[ProbeAlarm, list[tuple[int, str]]]:
    alarm, raised = ProbeAlarm(), []
    for step, (mi, dependence) in enumerate(pairs):
        raised += [(step, name) for name in alarm.update(step, evaluation(mi, dependence))]
    return alarm, raised


def test_two_clearly_low_evaluations_raise_it_for_the_metric_that_fell():
    alarm, raised = watch([(2.0, 1.0)] * 4 + [(2.0, 0.2)] * 2)
    assert raised == [(5, "dependence")] and alarm.raised == ("dependence",)
    alarm, raised = watch([(2.0, 1.0)] * 4 + [(0.5, 1.0)] * 2)
    assert raised == [(5, "mi")] and alarm.alarms["mi"].since == 3


def test_one_low_evaluation_and_a_loss_within_the_tolerance_do_not():
    assert watch([(2.0, 1.0)] * 4 + [(0.0, 0.0)] + [(2.0, 1.0)] * 4)[1] == []
    assert watch([(2.0, 1.0)] * 4 + [(1.6, 0.8)] * 10)[1] == []


@pytest.mark.parametrize(("p_value", "armed"), [(0.5, False), (0.051, False), (0.05, True)])
def test_it_is_armed_by_significant_evaluations_alone(p_value: float, armed: bool):
    alarm = ProbeAlarm()
    for step in range(4):
        alarm.update(step, evaluation(2.0, 1.0, p_value=p_value))
    assert any(alarm.update(step, evaluation(0.0, 0.0)) for step in range(4, 9)) == armed


def test_unknown_metrics_change_nothing_and_one_metric_may_be_missing():
    alarm, _ = watch([(2.0, 1.0)] * 4)
    before = alarm.state()
    assert alarm.update(9, {"probe/mi": None, "probe/link/dependence": math.nan}) == () and alarm.state() == before
    low = {key: value for key, value in evaluation(0.1, 0.0).items() if "link" not in key}
    assert [alarm.update(step, low) for step in (10, 11)] == [(), ("mi",)]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=2, max_size=12), st.integers(0, 11))
def test_a_restored_alarm_goes_on_alike(pairs, at):
    whole, raised = watch(pairs)
    first, before = watch(pairs[:at])
    second = ProbeAlarm()
    second.restore(json.loads(json.dumps(first.state())))
    after = [(s, n) for s, pair in list(enumerate(pairs))[at:] for n in second.update(s, evaluation(*pair))]
    assert before + after == raised and second.state() == whole.state()


def test_the_parameters_are_those_that_were_fixed_before_the_runs_by_which_the_alarm_was_judged():
    """docs/research/alarms.md has the rates. An alarm with others must be judged on runs that it has not seen."""
    assert tuple(probe_alarm.WATCHED) == ("mi", "dependence")
    assert (probe_alarm.BASELINE, probe_alarm.DRIFT, probe_alarm.SIGNIFICANT) == (2, 0.25, 0.05)
    assert (cusum.FLOOR, cusum.ALLOWANCE, cusum.MOST, cusum.THRESHOLD) == (0.05, 0.5, 3.0, 4.0)
