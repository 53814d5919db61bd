import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.records import Group, Task, Ticket, Trajectory, summarise
from cluster.runs.figures import EarlyStop, clip_intervals, gain_interval, reward_spread, union_seconds


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_the_paired_gain_is_the_difference_of_means_inside_its_interval(pairs):
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    mean, low, high = gain_interval(before, after)
    assert mean == pytest.approx(after.mean() - before.mean()) and low <= mean <= high


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_the_union_of_intervals_counts_each_second_once(spans):
    intervals = [(float(start), float(start + length)) for start, length in spans]
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert union_seconds(intervals) == len(covered)
    inside = {s for s in covered if 10 <= s < 30}
    assert union_seconds(clip_intervals(intervals, 10.0, 30.0)) == len(inside)


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


def test_a_rule_begins_anew_where_the_steps_before_were_judged_by_another_figure():
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


def test_early_stop_when_off_never_stops():
    stop = EarlyStop("off", 0.01)
    assert all(stop.step(v) is None for v in [1.0] * 10 + [0.0] * 50)
    assert all(stop.validation(0.0) is None for _ in range(20))


def test_the_authors_spread_is_a_std_with_the_format_penalties_inside():
    first, second = group([1.0, 0.0, 0.0, 0.0], [0.0, -0.1, 0.0, -0.1]), group([0.0, 0.0], [0.0, -0.2])
    summaries = [first, second, group([1.0], [0.0])]
    assert reward_spread(summaries, "paper") == pytest.approx((0.25 + 0.0) / 2)
    stds = [np.std([1.0, -0.1, 0.0, -0.1], ddof=1), np.std([0.0, -0.2], ddof=1)]
    assert reward_spread(summaries, "ragen") == pytest.approx(np.mean(stds))


def group(returns, penalties):
    found = Trajectory(0, np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32), [], False, False)
    summary = summarise(Group(Ticket("g", 1, Task("FrozenLake", 0), len(returns), 0), "", [found]))
    return replace(summary, returns=np.array(returns), format_penalties=np.array(penalties))


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
