"""What must hold of the coverage of kinds and of the floors that keep further groups."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from squelch.cluster.metrics import REGISTRY
from squelch.kit.filter.coverage import MAX_KINDS, SHOWN_KINDS, Coverage, Seen, effective_number, kind_name
from squelch.kit.filter.floors import Ranked, added_by_floors
from squelch.kit.filter.measure import GroupStatistics
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import make_window
from tests.kit.filter.test_windows import group, wins

GROUPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 8)), min_size=1, max_size=12
)  # kind, number of successes among 8 trajectories


def of_kind(kind: str | None, count: int, number: int, step: int) -> GroupStatistics:
    plain = wins(count, number, step)
    return GroupStatistics(
        plain.group_id, step, 8, plain.indices, plain.returns, kind=kind, success=float(plain.returns.mean())
    )


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_the_effective_number_is_between_one_and_the_number_of_kinds(weights: list[float]) -> None:
    assert 1 - 1e-9 <= effective_number(weights) <= len(weights) + 1e-9
    assert effective_number([*weights, 0.0]) == pytest.approx(effective_number(weights))
    assert effective_number([weights[0]] * len(weights)) == pytest.approx(len(weights))


def test_no_kept_group_has_no_effective_number() -> None:
    assert math.isnan(effective_number([])) and math.isnan(effective_number([0.0, 0.0]))


def test_ages_count_the_steps_since_a_kind_was_kept_or_first_played() -> None:
    coverage = Coverage(4)
    coverage.add(5, [Seen("easy", True, 0.5), Seen("hard", False, 0.0)])
    coverage.add(6, [Seen("easy", False, 1.0), Seen("hard", False, 0.25)])
    assert (coverage.age("easy", 6), coverage.age("hard", 6)) == (1, 2)
    found = coverage.metrics(6)
    assert found["kinds/starved"] == 1 and found["kinds/starved_success"] == pytest.approx(0.125)
    assert found["kinds/oldest_steps"] == 2 and found["kinds/effective"] == 1 and found["kinds/effective_played"] == 2
    coverage.add(7, [Seen("easy", False, 1.0)])  # the kept group leaves the window of 4, its age stays known
    assert coverage.metrics(7)["kinds/kept/easy"] == 0 and coverage.age("easy", 7) == 2


def test_without_kinds_there_are_no_metrics() -> None:
    window = make_window(FilterConfig())
    window.admit(of_kind(None, 4, 0, 1))
    assert not any(key.startswith("kinds/") for key in window.close(1).metrics)


@given(st.text(max_size=60))
@settings(max_examples=25, deadline=None)
def test_any_kind_that_an_environment_sends_is_a_label_of_the_metrics(kind: str) -> None:
    coverage = Coverage(4)
    coverage.add(1, [Seen(str(kind_name(kind)), True, 1.0)])
    for key in coverage.metrics(1):
        assert REGISTRY.series_of(key)


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=50, deadline=None)
def test_no_two_kinds_are_counted_as_one(one: str, other: str) -> None:
    for a, b in ((one, other), (one, f"{one}x"), ("数学", "物理"), ("a/b", "a:b"), ("k" * 41, "k" * 42)):
        assert (kind_name(a) == kind_name(b)) == (a == b)


def test_memory_does_not_grow_with_the_number_of_kinds() -> None:
    coverage = Coverage(8)
    for step in range(2 * MAX_KINDS):
        coverage.add(step, [Seen(f"kind {step}", False, 0.0)])
    found = coverage.metrics(2 * MAX_KINDS)
    assert len(coverage.state()["fed"]) == MAX_KINDS and found["kinds/played"] == 8
    assert sum(key.startswith("kinds/age/") for key in found) == SHOWN_KINDS
    assert math.isnan(found["kinds/age/kind 0"]), "an age that is forgotten is not that of a kind which was just kept"


def test_every_kind_in_the_window_has_its_age_however_large_the_window_is() -> None:
    coverage = Coverage(MAX_KINDS + 8)
    for step in range(MAX_KINDS + 8):
        coverage.add(step, [Seen(f"kind {step}", False, 0.0)])
    found = coverage.metrics(MAX_KINDS + 7)
    assert found["kinds/starved"] == found["kinds/oldest_steps"] == found["kinds/age/kind 0"] == MAX_KINDS + 8


@given(st.lists(GROUPS, min_size=1, max_size=6), st.integers(1, 20), st.sampled_from([0.0, 0.25, 0.5]))
@settings(max_examples=25, deadline=None)
def test_a_restored_window_keeps_and_reports_as_the_uninterrupted_one(
    steps: list[list[tuple[str, int]]], size: int, floor: float
) -> None:
    config = FilterConfig(rho=0.5, kind_window=size, kind_floor=floor, no_signal_limit=99)
    whole, parts = make_window(config), make_window(config)
    for step, rows in enumerate(steps):
        restored = make_window(config)
        restored.restore(json.loads(json.dumps(parts.state())))
        parts = restored
        for number, (kind, count) in enumerate(rows):
            whole.admit(of_kind(kind, count, number, step))
            parts.admit(of_kind(kind, count, number, step))
        one, other = whole.close(step), parts.close(step)
        assert one.decisions == other.decisions
        assert json.dumps(one.metrics) == json.dumps(other.metrics)


@given(
    st.lists(GROUPS, min_size=1, max_size=6), st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from(["whole", "sliding"])
)
@settings(max_examples=25, deadline=None)
def test_a_floor_only_adds_groups_with_signal_and_each_kind_keeps_its_share_of_those_it_has(
    steps: list[list[tuple[str, int]]], floor: float, kind: str
) -> None:
    plain, raised = (
        make_window(FilterConfig(rho=0.3, window=kind, kind_floor=share, no_signal_limit=99)) for share in (0.0, floor)
    )
    for step, rows in enumerate(steps):
        for number, (name, count) in enumerate(rows):
            plain.admit(of_kind(name, count, number, step))
            raised.admit(of_kind(name, count, number, step))
        without, found = plain.close(step), raised.close(step)
        assert {d.group_id for d in without.kept} <= {d.group_id for d in found.kept}
        added = [d for d in found.kept if d.code == "floor"]
        assert all(d.reward_variance and "filter.kind_floor" in d.reason for d in added)
        assert found.metrics["floor_groups"] == len(added)
        assert bool(without.kept) or not added or kind == "sliding"


def ranked(kinds: str, kept: set[int]) -> list[Ranked]:
    return [Ranked(str(i), kind, i, i in kept, i not in kept) for i, kind in enumerate(kinds)]


def test_the_kind_floor_counts_the_window_and_adds_the_best_of_the_kind() -> None:
    config = FilterConfig(kind_floor=0.25)
    groups = ranked("aabbb", {0, 1})
    assert added_by_floors(groups, {}, {}, config) == {}  # a quarter of three groups is none
    added = added_by_floors(groups, {"b": 5}, {}, config)
    assert list(added) == ["2", "3"] and "0 of 8 groups of kind 'b'" in added["2"]
    assert added_by_floors(groups, {"b": 5}, {"b": 2}, config) == {}


def test_the_floor_of_a_step_adds_the_best_of_all_and_counts_those_of_the_kinds() -> None:
    groups = ranked("abcdb", {0})
    added = added_by_floors(groups, {"b": 2}, {}, FilterConfig(kind_floor=0.25, min_groups=4))
    assert list(added) == ["1", "2", "3"] and "kind_floor" in added["1"] and "min_groups" in added["2"]
    assert len(added_by_floors(groups, {}, {}, FilterConfig(min_groups=99))) == 4


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=4, max_size=4), min_size=2, max_size=8),
    st.sampled_from([("reward_variance", "top_p"), ("reward_mean", "top_k"), ("length", "top_k")]),
    st.sampled_from(["largest", "smallest"]),
    st.sampled_from([{"min_groups": 5}, {"kind_floor": 1.0}, {"kind_floor": 1.0, "window": "sliding"}]),
    st.sampled_from(["paper", "ragen"]),
)
@settings(max_examples=60, deadline=None)
def test_no_floor_adds_a_group_without_reward_variance_or_whose_score_is_zero(
    rows, ranked_by, keep, floor, compat
) -> None:
    statistic, rule = ranked_by
    config = FilterConfig(
        statistic=statistic, rule=rule, rho=0.4, epsilon=0.0, keep=keep, include_zero=True, compat=compat, **floor
    )
    window = make_window(config)
    groups = [replace(group(row, n), kind="a", lengths=np.arange(n, n + 4.0)) for n, row in enumerate(rows)]
    for one in groups:
        window.admit(one)
    found = window.close(0)
    able = {d.group_id for d in found.decisions if d.score and abs(d.score) > 1e-10 and d.reward_variance}
    assert {d.group_id for d in found.kept if d.code == "floor"} <= able
    if found.kept and "min_groups" in floor:
        assert able <= {d.group_id for d in found.kept} or len(found.kept) >= 5


def test_zeros_that_the_rule_may_keep_are_not_added_by_the_floor_of_a_step() -> None:
    window = make_window(FilterConfig(include_zero=True, min_groups=3))
    for number, row in enumerate(([0.0, 1.0, 0.0, 1.0], [1.0] * 4, [0.0] * 4)):
        window.admit(group(row, number))
    assert [d.code for d in window.close(0).decisions] == ["selected", "below_threshold", "below_threshold"]


def test_a_step_keeps_its_fewest_groups_unless_the_rule_keeps_none() -> None:
    def kept(counts: list[int], **changes: object) -> list[str]:
        window = make_window(FilterConfig(rho=0.1, **changes))
        for number, count in enumerate(counts):
            window.admit(wins(count, number))
        return [d.code for d in window.close(0).kept]

    assert kept([4, 3, 2, 1, 0]) == ["selected"]
    assert kept([4, 3, 2, 1, 0], min_groups=3) == ["selected", "floor", "floor"]
    assert kept([4, 3, 2, 1, 0], min_groups=9) == ["selected", "floor", "floor", "floor"]
    assert kept([4, 3, 2, 1, 0], min_groups=3, epsilon=9.0, epsilon_unit="absolute") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "none", "kind_floor": 0.1}, "do nothing with rule=none"),
        ({"rule": "none", "min_groups": 1}, "do nothing with rule=none"),
        ({"window": "sliding", "min_groups": 2}, "set filter.window=whole"),
        ({"kind_floor": 1.5}, "less than or equal to 1"),
    ],
)
def test_floors_that_contradict_the_filter_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FilterConfig(**changes)
