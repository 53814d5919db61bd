"""What must hold of the filter's windows: decisions, refill, no signal, restarts, loss scale."""

import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.metrics import REGISTRY
from squelch.kit.filter.decisions import LossScale, StepDecision, loss_scale
from squelch.kit.filter.measure import GroupStatistics
from squelch.kit.filter.selection import select
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.ticket_order import RecentGroups, ticket_order
from squelch.kit.filter.windows import FilterWindow, NoSignal, SlidingWindow, make_window
from squelch.learner.config import ObjectiveConfig
from tests.kit.filter.summaries import summary

REWARD_ROWS = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, 0.5, math.nan]), min_size=4, max_size=4), min_size=1, max_size=10
)


def group(rewards: list[float], number: int = 0, step: int = 0) -> GroupStatistics:
    return GroupStatistics.from_row(f"{step:06d}-{number:03d}", step, np.array(rewards))


def wins(count: int, number: int = 0, step: int = 0) -> GroupStatistics:
    """A group of 8 with `count` successes: no variance at 0 and 8, the most at 4."""
    return group([1.0] * count + [0.0] * (8 - count), number, step)


def run(window: FilterWindow, rows: list[list[float]], step: int = 0, final: bool = True) -> StepDecision:
    for number, row in enumerate(rows):
        window.admit(group(row, number, step))
    return window.close(step, final)


def ids(decisions: list) -> list[int]:
    return [int(decision.group_id.split("-")[1]) for decision in decisions]


def test_a_summary_is_ranked_with_its_survivors_only() -> None:
    window = FilterWindow(FilterConfig(rho=1.0))
    window.admit(summary([1, 0, math.nan, 0]))
    found = window.close(3)
    assert found.kept[0].score == pytest.approx(1 / 3)
    assert (found.kept[0].decision, found.kept[0].step) == ("kept", 3)


@given(REWARD_ROWS, st.sampled_from(["none", "top_p", "top_k", "min_p"]), st.sampled_from(["whole", "sliding"]))
@settings(max_examples=60, deadline=None)
def test_every_admitted_group_gets_exactly_one_decision(rows: list[list[float]], rule: str, kind: str) -> None:
    window = make_window(FilterConfig(rule=rule, window=kind, rho=0.5, no_signal_limit=99))
    found = run(window, rows)
    assert sorted(ids(found.decisions)) == list(range(len(rows)))
    assert found.kept_fraction == pytest.approx(len(found.kept) / len(rows))
    assert all(decision.reason for decision in found.decisions)
    totals = found.metrics
    assert totals["kept_groups"] + totals["dropped_groups"] + totals["refused_groups"] == len(rows)


def test_decisions_come_in_order_of_tickets_whatever_the_order_of_arrival() -> None:
    window = FilterWindow(FilterConfig(rho=1.0))
    for number in (2, 10, 9, 0):
        window.admit(GroupStatistics.from_row(f"5-{number}", 5, np.array([0.0, 1.0])))
    assert ids(window.close(5).kept) == [0, 2, 9, 10]


def test_the_whole_window_keeps_what_select_keeps() -> None:
    counts = [0, 4, 1, 8, 3, 4, 2]
    window = FilterWindow(FilterConfig(rho=0.7))
    for number, count in enumerate(counts):
        window.admit(wins(count, number))
    found = window.close(0)
    variances = np.array([np.var([1.0] * c + [0.0] * (8 - c), ddof=1) for c in counts])
    expected = select(variances, None, FilterConfig(rho=0.7))
    assert tuple(ids(found.kept)) == expected.kept
    assert found.kept_mass == pytest.approx(expected.kept_mass)
    assert (found.num_zero, found.threshold) == (2, pytest.approx(expected.threshold))


def test_a_group_admitted_twice_is_a_broken_invariant() -> None:
    window = FilterWindow(FilterConfig())
    window.admit(wins(4))
    with pytest.raises(RuntimeError, match="000000-000"):
        window.admit(wins(4))


def test_steps_are_ranked_apart() -> None:
    window = FilterWindow(FilterConfig(rule="top_k", rho=0.5))
    for step in (0, 1):
        for number, count in enumerate((4, 1)):
            window.admit(wins(count if step == 0 else count - 1, number, step))
    assert ids(window.close(1).kept) == [0]
    assert ids(window.close(0).kept) == [0]


# Refill


def refill(**changes: object) -> FilterConfig:
    return FilterConfig(rule="top_k", rho=0.5, refill=True, **changes)


def test_refill_asks_for_what_is_missing_and_kept_stays_kept() -> None:
    window = FilterWindow(refill())
    for number, count in enumerate((1, 2, 0, 0)):
        window.admit(wins(count, number))
    first = window.close(0)
    assert (ids(first.kept), first.wanted, first.closed) == ([0, 1], 2, False)
    window.admit(wins(4, 4))
    window.admit(wins(3, 5))
    second = window.close(0)
    assert ids(second.kept) == [0, 1, 4, 5]  # 0 and 1 rank behind 4 and 5 but were kept before
    assert (second.wanted, second.closed) == (0, True)
    assert second.metrics["refill_rounds"] == 1


def test_a_refill_round_is_ranked_with_all_of_the_steps_groups() -> None:
    window = FilterWindow(FilterConfig(rule="min_p", rho=0.9, refill=True))
    window.admit(wins(4, 0))
    window.admit(wins(1, 1))
    assert window.close(0).wanted == 1
    window.admit(wins(2, 2))
    found = window.close(0)
    assert ids(found.dropped) == [1, 2]  # alone, group 2 would have been kept
    assert found.wanted == 1


def test_refill_ends_after_its_rounds_and_the_step_shrinks() -> None:
    window = FilterWindow(refill(max_refill_rounds=2))
    number, wanted = 0, 4
    for expected in (2, 1, 0):
        for _ in range(wanted):
            window.admit(wins(1, number))
            number += 1
        found = window.close(0)
        wanted = found.wanted
        assert bool(wanted) == bool(expected)
    assert found.closed
    assert len(found.decisions) == number


def test_a_final_close_asks_for_nothing() -> None:
    window = FilterWindow(refill())
    window.admit(wins(0))
    assert window.close(0, final=True).closed


def test_target_counts_the_tickets_that_were_lost() -> None:
    window = FilterWindow(FilterConfig(rho=1.0, refill=True))
    window.admit(wins(4))
    assert window.close(0, target=3).wanted == 2


@given(st.lists(st.integers(0, 8), min_size=2, max_size=8), st.data())
@settings(max_examples=50, deadline=None)
def test_refill_never_revises_a_decision_nor_keeps_more_than_the_first_round(counts: list[int], data) -> None:
    window = FilterWindow(FilterConfig(rho=0.6, refill=True, no_signal_limit=99))
    for number, count in enumerate(counts):
        window.admit(wins(count, number))
    found, number = window.close(0), len(counts)
    while not found.closed:
        before = {decision.group_id: decision.decision for decision in found.decisions}
        for count in data.draw(st.lists(st.integers(0, 8), min_size=found.wanted, max_size=found.wanted)):
            window.admit(wins(count, number))
            number += 1
        found = window.close(0)
        after = {decision.group_id: decision.decision for decision in found.decisions}
        assert before.items() <= after.items()
    assert len(found.kept) <= len(counts)
    assert len(found.decisions) == number


# No signal


def test_no_signal_skips_until_the_limit_then_ends_the_run() -> None:
    window = FilterWindow(FilterConfig(no_signal_limit=3))
    actions = [run(window, [[1, 1]] * 2, step).action for step in range(3)]
    assert actions == ["skip", "skip", "abort"]


def test_a_step_with_signal_resets_the_streak() -> None:
    policy = NoSignal("warn", 2)
    assert [policy.observe(flag) for flag in (False, True, False, False)] == ["skip", "learn", "skip", "abort"]


def test_abort_ends_the_run_at_the_first_step_without_signal() -> None:
    assert run(FilterWindow(FilterConfig(on_no_signal="abort")), [[0, 0]]).action == "abort"


@pytest.mark.parametrize("kind", ["whole", "sliding"])
def test_passthrough_learns_from_all_valid_groups_unscaled(kind: str) -> None:
    window = make_window(FilterConfig(on_no_signal="passthrough", window=kind))
    found = run(window, [[1, 1], [math.nan, 1], [0, 0]])
    assert (ids(found.kept), ids(found.refused), found.action) == ([0, 2], [1], "learn")
    assert {decision.code for decision in found.kept} == {"passthrough"}
    assert loss_scale("rho", found, 0.9) == 1.0


def test_passthrough_without_a_valid_group_skips() -> None:
    found = run(FilterWindow(FilterConfig(on_no_signal="passthrough")), [[math.nan, 1]])
    assert (found.action, found.kept) == ("skip", [])


def test_an_open_step_is_not_counted_as_without_signal() -> None:
    window = FilterWindow(FilterConfig(refill=True, no_signal_limit=1))
    window.admit(wins(0))
    assert window.close(0).action == "skip"
    window.admit(wins(4, 1))
    assert window.close(0).action == "learn"


def test_an_empty_step_is_a_step_without_signal() -> None:
    found = FilterWindow(FilterConfig()).close(7)
    assert (found.action, found.kept_mass, found.decisions) == ("skip", None, [])


# Sliding window


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_recent_groups_are_in_the_order_that_sorting_them_anew_gives(tickets: list, size: int) -> None:
    recent, added = RecentGroups(size), []
    for step, number in tickets:  # the same ticket may come again
        added.append((f"{step}-{number}", float(number)))
        recent.add(*added[-1])
        held = added[-size:]
        assert recent.order.tolist() == ticket_order([group_id for group_id, _ in held]).tolist()
        assert recent.scores.tolist() == [score for _, score in held]
        assert recent.state() == [list(item) for item in held]


@given(REWARD_ROWS, st.sampled_from(["top_p", "top_k", "min_p", "top_p_softmax"]))
@settings(max_examples=60, deadline=None)
def test_a_wide_sliding_window_decides_on_its_last_group_as_the_whole_one_does(rows: list, rule: str) -> None:
    whole = run(FilterWindow(FilterConfig(rule=rule, rho=0.5)), rows)
    sliding = run(SlidingWindow(FilterConfig(rule=rule, rho=0.5, window="sliding", window_size=99)), rows)
    last = len(rows) - 1
    verdicts = [next(d.decision for d in found.decisions if ids([d]) == [last]) for found in (whole, sliding)]
    assert verdicts[0] == verdicts[1]


@given(REWARD_ROWS)
@settings(max_examples=60, deadline=None)
def test_under_min_p_a_wide_sliding_window_keeps_all_that_the_whole_one_keeps(rows: list) -> None:
    whole = run(FilterWindow(FilterConfig(rule="min_p", rho=0.5)), rows)
    sliding = run(SlidingWindow(FilterConfig(rule="min_p", rho=0.5, window="sliding", window_size=99)), rows)
    assert set(ids(whole.kept)) <= set(ids(sliding.kept))


def test_whole_and_sliding_differ_where_better_groups_follow() -> None:
    rows = [[1.0, 0, 0, 0, 0, 0, 0, 0], [1.0, 1, 1, 1, 0, 0, 0, 0]]
    whole = run(FilterWindow(FilterConfig(rule="top_k", rho=0.5)), rows)
    sliding = run(SlidingWindow(FilterConfig(rule="min_p", rho=0.9, window="sliding")), rows)
    assert ids(whole.kept) == [1]
    assert ids(sliding.kept) == [0, 1]


def test_a_sliding_window_decides_when_a_group_comes_and_forgets_what_is_beyond_it() -> None:
    config = FilterConfig(rule="min_p", rho=0.9, window="sliding", window_size=2)
    window = SlidingWindow(config)
    for step, count in enumerate((4, 1, 1)):
        window.admit(wins(count, step=step))
    state = window.state()
    verdicts = [window.close(step, final=True).decisions[0].decision for step in range(3)]
    assert verdicts == ["kept", "dropped", "kept"]
    assert [state["steps"][str(step)]["entries"][0]["verdict"] for step in range(3)] == verdicts


# Restarts


@given(REWARD_ROWS, st.integers(0, 10), st.sampled_from(["whole", "sliding"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_restored_window_decides_as_the_uninterrupted_one(rows: list, cut: int, kind: str, fills: bool) -> None:
    config = FilterConfig(rho=0.6, window=kind, window_size=4, refill=fills, no_signal_limit=99)
    plain, broken = make_window(config), make_window(config)
    for step in (0, 1):
        for number, row in enumerate(rows):
            if number == cut:
                state = json.loads(json.dumps(broken.state()))
                broken = make_window(config)
                broken.restore(state)
            plain.admit(group(row, number, step))
            broken.admit(group(row, number, step))
        one, other = plain.close(step), broken.close(step)
        assert one.decisions == other.decisions
        assert (one.kept_mass, one.wanted, one.action) == (other.kept_mass, other.wanted, other.action)
        state = json.loads(json.dumps(broken.state()))
        broken = make_window(config)
        broken.restore(state)
    assert plain.state() == broken.state()


def test_a_state_of_another_statistic_is_refused_by_name() -> None:
    state = FilterWindow(FilterConfig()).state()
    with pytest.raises(ValueError, match=r"filter\.statistic"):
        FilterWindow(FilterConfig(statistic="length")).restore(state)


# Loss scale and metrics


def test_the_learners_setting_has_the_loss_scales_that_there_are() -> None:
    assert get_args(ObjectiveConfig.model_fields["loss_scale"].annotation) == get_args(LossScale)


def test_loss_scale_by_kind() -> None:
    window = FilterWindow(FilterConfig(rule="top_k", rho=0.5))
    for number, count in enumerate((4, 4, 1, 0)):
        window.admit(wins(count, number))
    found = window.close(0)
    mass = 2 * 16 / (2 * 16 + 7)
    expected = {"none": 1, "rho": 0.5, "kept_mass": mass, "kept_fraction": 0.5, "sqrt_kept_fraction": math.sqrt(0.5)}
    for kind, value in expected.items():
        assert loss_scale(kind, found, 0.5) == pytest.approx(value), kind


def test_nothing_is_scaled_without_a_rule_nor_by_rho_under_band() -> None:
    rows = [[1, 0], [0, 0], [1, 1]]
    none = run(FilterWindow(FilterConfig(rule="none")), rows)
    assert len(none.kept) == 3 and none.filtered is False
    assert loss_scale("kept_fraction", none, 0.9) == 1.0
    band = run(FilterWindow(FilterConfig(rule="band", band=(0.0, 1.0))), rows)
    assert loss_scale("rho", band, 0.9) == 1.0
    assert loss_scale("kept_fraction", band, 0.9) == pytest.approx(1 / 3)


def test_kept_mass_does_not_scale_a_window_without_variance() -> None:
    config = FilterConfig(rule="top_k", rho=0.5, statistic="reward_mean")
    found = run(FilterWindow(config), [[1, 1], [2, 2]])
    assert found.kept_mass is None
    assert loss_scale("kept_mass", found, 0.5) == 1.0


def test_metrics_use_the_registrys_keys_and_tell_the_step() -> None:
    found = run(FilterWindow(FilterConfig(rule="top_k", rho=0.34)), [[1, 0], [0, 0], [math.nan, 1]])
    assert all(REGISTRY.series_of(key) for key in found.metrics)
    assert found.metrics["kept_groups"] == found.metrics["dropped_groups"] == found.metrics["refused_groups"] == 1
    assert (found.metrics["reward_mean_kept"], found.metrics["reward_mean_dropped"]) == (0.5, 0.0)
    assert found.metrics["reward_variance_mean"] == pytest.approx(0.25)
    assert (found.metrics["kept_mass"], found.metrics["zero_variance_groups"]) == (1.0, 1)


@pytest.mark.parametrize("kind", ["whole", "sliding"])
def test_a_state_holds_the_open_steps_that_were_asked_for(kind: str) -> None:
    window = make_window(FilterConfig(window=kind))
    for step in (1, 2):
        window.admit(wins(3, step=step))
    assert list(window.state([2])["steps"]) == ["2"] and window.state([])["steps"] == {}
    assert window.state([1, 2]) == window.state()


# The tolerance's unit


def test_a_rejected_step_says_why_and_a_sliding_window_names_its_best_group() -> None:
    weak = [[0.1, 0.0, 0.0, 0.0]]
    whole = run(make_window(FilterConfig(epsilon_unit="absolute")), weak)
    assert whole.why_nothing == whole.rejection and "filter.epsilon_unit=relative" in whole.rejection
    sliding = run(make_window(FilterConfig(epsilon_unit="absolute", window="sliding")), weak)
    assert sliding.rejection == "" and "filter.epsilon_unit=relative" in sliding.why_nothing
    refused = run(make_window(FilterConfig()), [[1.0, math.nan, math.nan, math.nan]])
    assert refused.why_nothing == "1 of 1 groups were refused: the best: 1 survivor of 4, needs 2"
    assert make_window(FilterConfig()).close(0).why_nothing


def test_a_checkpoint_without_a_unit_is_resumed_once_the_unit_is_said() -> None:
    state = FilterWindow(FilterConfig(epsilon_unit="absolute")).state()
    assert state.pop("epsilon_unit") == "absolute"
    with pytest.raises(ValueError, match="=absolute to go on"):
        FilterWindow(FilterConfig()).restore(state)
    told, unused = FilterConfig(epsilon_unit="absolute"), [FilterConfig(rule="top_k"), FilterConfig(rho=1.0)]
    for config in (told, *unused, FilterConfig(epsilon=0.0)):
        FilterWindow(config).restore(state)


def of(label: str, rewards: list[float], number: int, step: int = 0) -> GroupStatistics:
    return replace(group(rewards, number, step), label=label)


LARGE, SMALL = [0.0, 50.0, 100.0, 0.0], [0.0, 0.5, 1.0, 0.0]


@pytest.mark.parametrize("kind", ["whole", "sliding"])
def test_the_scope_environment_decides_as_a_window_of_each_environment_would(kind: str) -> None:
    config = FilterConfig(rule="top_p", rho=0.5, window=kind, scope="environment")
    rows = [("a", LARGE), ("b", SMALL), ("a", [1.0, 0.0, 0.0, 0.0]), ("b", [0.1, 0.0, 0.0, 0.0]), ("b", SMALL)]
    window, alone = make_window(config), {label: make_window(config) for label in "ab"}
    for number, (label, row) in enumerate(rows):
        window.admit(of(label, row, number))
        alone[label].admit(of(label, row, number))
        restored = make_window(config)
        restored.restore(json.loads(json.dumps(window.state())))
        window = restored
    found, parts = window.close(0, True), [one.close(0, True) for one in alone.values()]
    assert {d.group_id: d.decision for d in found.decisions} == {
        d.group_id: d.decision for part in parts for d in part.decisions
    }
    assert found.metrics["environment/groups/b"] == 3 and found.threshold is None


def test_a_floor_holds_within_each_environment_and_kinds_of_two_are_two() -> None:
    config = FilterConfig(rule="top_k", rho=0.3, scope="environment", min_groups=2)
    window = FilterWindow(config)
    for number in range(8):
        rewards = [float(i < 1 + number % 3) for i in range(4)]
        window.admit(replace(of("ab"[number % 2], rewards, number), kind="easy"))
    found = window.close(0, True)
    labels = [int(decision.group_id[-3:]) % 2 for decision in found.kept]
    assert labels.count(0) >= 2 and labels.count(1) >= 2
    assert found.metrics["kinds/played"] == 2


def test_a_window_of_one_environment_has_the_same_state_and_text_as_without_a_scope() -> None:
    window = FilterWindow(FilterConfig())
    window.admit(group([0.0, 1.0, 0.0, 0.0]))
    assert "label" not in json.dumps(window.state()) and "scope" not in json.dumps(window.state())
    assert (
        "scope" not in FilterConfig().describe() and "scope=environment" in FilterConfig(scope="environment").describe()
    )
