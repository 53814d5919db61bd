"""When a run that no longer learns is stopped, and what a step is judged by."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.early_stop import EarlyStop
from squelch.kit.filter.decisions import StepDecision
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import FilterWindow
from squelch.kit.records.records import GroupSummary
from tests.kit.filter.summaries import summary


def decide(summaries: list[GroupSummary], rule: str = "top_p") -> StepDecision:
    window = FilterWindow(FilterConfig(rule=rule))
    for found in summaries:
        window.admit(found)
    return window.close(summaries[0].step)


def test_early_stop_follows_the_papers_two_rules():
    stop = EarlyStop("paper", 0.01)
    assert [stop.step(1.0) for _ in range(10)] == [None] * 10
    assert [stop.step(0.09) for _ in range(4)] == [None] * 4
    assert "5 steps" in stop.step(0.09)
    assert [stop.validation(0.0) for _ in range(4)] == [None] * 4
    assert "5 validations" in stop.validation(0.0)


def test_the_authors_rule_waits_ten_steps_and_one_good_step_starts_the_count_again():
    stop = EarlyStop("ragen", 0.01)
    for _ in range(10):
        stop.step(1.0)
    assert [stop.step(0.05) for _ in range(9)] == [None] * 9
    assert stop.step(0.5) is None and stop.low_steps == 0
    assert [stop.step(0.05) for _ in range(9)] == [None] * 9
    restored = EarlyStop("ragen", 0.01)
    restored.restore(stop.state())
    assert "reward std below 10%" in restored.step(0.05)


def test_a_rule_begins_anew_where_the_steps_before_were_judged_by_another_metric():
    before, after = EarlyStop("off", 0.01), EarlyStop("ragen", 0.01)
    for _ in range(11):
        before.step(1.0), before.validation(0.0)
    after.restore(before.state())
    assert after.baseline == [] and after.low_validations == 11
    paper = EarlyStop("paper", 0.01)
    paper.restore(before.state())
    assert paper.baseline == [1.0] * 10
    silent = {name: value for name, value in before.state().items() if name != "spread"}
    after.restore(silent)
    assert after.baseline == [1.0] * 10


def test_its_metrics_are_the_spread_against_the_start_and_the_steps_below_a_tenth_of_it():
    stop = EarlyStop("off", 0.01)
    seen = [(stop.step(spread), stop.metrics())[1] for spread in [2.0] * 10 + [1.0, 0.1, 0.1, 2.0, float("nan")]]
    relative = [metrics["reward_spread_ratio"] for metrics in seen]
    assert all(math.isnan(value) for value in (*relative[:10], relative[-1]))
    assert relative[10:14] == [0.5, 0.05, 0.05, 1.0]
    assert [metrics["low_spread_streak"] for metrics in seen[10:]] == [0, 1, 2, 0, 0]


def test_early_stop_when_off_never_stops():
    stop = EarlyStop("off", 0.01)
    assert all(stop.step(v) is None for v in [1.0] * 10 + [0.0] * 50)
    assert all(stop.validation(0.0) is None for _ in range(20))


@pytest.mark.parametrize("kind", ["paper", "ragen"])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(0, 59))
def test_an_early_stop_that_is_checkpointed_stops_when_the_uninterrupted_one_does(kind, spreads, cut):
    whole, before = EarlyStop(kind, 0.01), EarlyStop(kind, 0.01)
    values = [spread if k < 10 else 0.05 * spread for k, spread in enumerate(spreads)]
    wanted = [whole.step(value) for value in values]
    found = [before.step(value) for value in values[:cut]]
    after = EarlyStop(kind, 0.01)
    after.restore(json.loads(json.dumps(before.state())))
    assert found + [after.step(value) for value in values[cut:]] == wanted


def test_a_step_is_judged_by_the_reward_variance_that_the_filter_reports():
    summaries = [summary([1, 0, 0, 0], "3-0"), summary([0, 0], "3-1"), summary([1, np.nan], "3-2")]
    decision = decide(summaries)
    for kind in ("paper", "off"):
        assert EarlyStop(kind, 0.01).spread(decision, summaries) == decision.metrics["reward_variance_mean"] == 0.125


def test_the_authors_spread_is_a_std_with_the_format_penalties_inside():
    rows = [([1, 0, 0, 0], [0, -0.1, 0, -0.1]), ([0, 0], [0, -0.2]), ([1, np.nan], [-0.5, 0]), ([1, np.inf], [0, 0])]
    summaries = [summary(rewards, f"3-{i}", penalties) for i, (rewards, penalties) in enumerate(rows)]
    stds = [np.std([1, -0.1, 0, -0.1], ddof=1), np.std([0, -0.2], ddof=1)]
    assert EarlyStop("ragen", 0.01).spread(decide(summaries), summaries) == pytest.approx(np.mean(stds))


@pytest.mark.parametrize("kind", ["paper", "ragen"])
def test_groups_of_one_have_no_spread_and_a_step_of_refused_groups_is_not_judged(kind):
    stop = EarlyStop(kind, 0.01)
    alone, refused = [summary([1], "3-0")], [summary([1, np.nan], "3-0")]
    assert stop.spread(decide(alone, "none"), alone) == 0.0
    assert np.isnan(stop.spread(decide(refused), refused))
    assert stop.step(stop.spread(decide(refused), refused)) is None and stop.baseline == []
