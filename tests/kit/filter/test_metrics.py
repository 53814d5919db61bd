"""A step's metrics of groups have one definition: what the run exports is what the filter says of itself."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.play.metrics import SHOWN_TURNS, trajectory_metrics, turn_metrics
from squelch.kit.commands.monitored import mean_reward
from squelch.kit.filter.decisions import StepDecision
from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.metrics import VARIANCE_BANDS, count_zero, kept_mass, mean
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.selection import select
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.ticket_order import ticket_order
from squelch.kit.filter.windows import make_window
from squelch.kit.records.records import Group, GroupSummary, Task, Ticket, Trajectory, Turn, summarise
from tests.kit.filter.summaries import summary

REWARD = st.sampled_from([0.0, 0.0, 1.0, 0.5, math.nan, math.inf, 1e200])
GROUPS = st.lists(st.lists(REWARD, min_size=1, max_size=5), max_size=8)
"""Groups of one to five; some with failed trajectories, some refused for them or for rewards that are not finite."""
CONFIGS = st.builds(
    FilterConfig,
    rule=st.sampled_from(sorted(RULES)),
    rho=st.sampled_from([0.3, 0.9, 1.0]),
    window=st.sampled_from(["whole", "sliding"]),
    on_no_signal=st.sampled_from(["warn", "passthrough"]),
)


def decide(rows: list[list[float]], config: FilterConfig) -> tuple[list[GroupSummary], StepDecision]:
    summaries = [summary(row, f"3-{i}") for i, row in enumerate(rows)]
    window = make_window(config)
    for found in summaries:
        window.admit(found)
    return summaries, window.close(3, final=True)


def average(values: list[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values)) if values else math.nan


def test_a_value_of_at_most_the_authors_bound_is_zero_and_an_unknown_one_is_not() -> None:
    assert count_zero([0.0, 1e-10, -1e-10, 1.01e-10, math.nan]) == 3


@given(GROUPS, CONFIGS)
@settings(max_examples=100, deadline=None)
def test_the_metrics_of_a_step_are_those_of_its_decisions(rows: list[list[float]], config: FilterConfig) -> None:
    summaries, decision = decide(rows, config)
    valid, metrics = [*decision.kept, *decision.dropped], decision.metrics
    wanted = {
        "num_groups": len(summaries),
        "kept_groups": len(decision.kept),
        "dropped_groups": len(decision.dropped),
        "refused_groups": len(decision.refused),
        "zero_variance_groups": sum(d.reward_variance <= 1e-10 for d in valid),
        "reward_variance_mean": average([d.reward_variance for d in valid]),
        "reward_mean": average([d.mean_return for d in valid]),
        "reward_mean_kept": average([d.mean_return for d in decision.kept]),
        "reward_mean_dropped": average([d.mean_return for d in decision.dropped]),
        "kept_mass": math.nan if decision.kept_mass is None else decision.kept_mass,
        "kept_fraction": decision.kept_fraction,
    }
    assert {key: metrics[key] for key in wanted} == pytest.approx(wanted, nan_ok=True)
    assert all(d.reward_variance is d.mean_return is None for d in decision.refused)


@given(GROUPS, CONFIGS)
@settings(max_examples=50, deadline=None)
def test_the_bands_of_reward_variance_hold_every_valid_group_once(
    rows: list[list[float]], config: FilterConfig
) -> None:
    _, decision = decide(rows, config)
    up_to = [decision.metrics[f"reward_variance_up_to/{end}"] for end in VARIANCE_BANDS]
    assert up_to == sorted(up_to) and up_to[-1] == len(decision.kept) + len(decision.dropped)
    assert up_to[0] == decision.metrics["zero_variance_groups"]


@given(GROUPS, st.sampled_from(sorted(RULES)))
@settings(max_examples=50, deadline=None)
def test_a_window_ranked_from_a_file_has_the_metrics_of_the_run(rows: list[list[float]], rule: str) -> None:
    config = FilterConfig(rule=rule, rho=0.6)
    summaries, decision = decide(rows, config)
    groups = [GroupStatistics.of(found) for found in summaries]
    measured = measure(groups, config.statistic, config.compat, rule)
    order = ticket_order([group.group_id for group in groups])
    found = select(measured.scores, order, config, variances=measured.variances, refusals=measured.refusals)
    assert (found.kept_mass, found.kept_fraction) == (decision.kept_mass, decision.kept_fraction)
    assert found.num_zero == decision.num_zero


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.randoms())
def test_the_kept_mass_does_not_depend_on_the_order_of_the_groups(variances: list[float], random) -> None:
    kept = [random.random() < 0.5 for _ in variances]
    order = list(range(len(variances)))
    random.shuffle(order)
    shuffled = kept_mass([variances[i] for i in order], [kept[i] for i in order])
    assert shuffled == kept_mass(variances, kept)
    assert shuffled is None or 0 <= shuffled <= 1


def test_values_whose_sum_no_float_holds_have_a_share_and_a_mean() -> None:
    assert kept_mass([1.5e308, 1.5e308, math.nan, 1e308], [True, False, True, False]) == pytest.approx(3 / 8)
    assert mean([1e308, 1.5e308]) == pytest.approx(1.25e308)
    rewards = [{"rewards": row} for row in ({"a": 1e308, "b": 1e308}, {"a": 1e308}, {"a": 1e308}, {"a": 10**400})]
    assert mean_reward(rewards) == pytest.approx(1e308), "a row's sum that no float holds does not count"


def test_a_turn_cut_inside_its_reasoning_counts_with_all_its_tokens() -> None:
    def trajectory(index: int, sampled: int, reasoning: tuple[int, int], cut: bool) -> Trajectory:
        turn = Turn(2, 2 + sampled, *(2 + place for place in reasoning), 0.0, 0.0, not cut, cut, 1, 0, 0)
        values = np.zeros(2 + sampled)
        return Trajectory(index, values.astype(np.int32), values > 0, values.astype(np.float32), [turn], False, False)

    cut = [trajectory(i, 80, (80, 80), True) for i in range(8)]
    whole = [trajectory(8 + i, 50, (0, 40), False) for i in range(4)]
    in_answer = [trajectory(12 + i, 80, (0, 40), True) for i in range(4)]
    ticket = Ticket("3-0", 3, Task("E", 0), 16, 0)
    found = trajectory_metrics([summarise(Group(ticket, "k", [*cut, *whole, *in_answer]))])
    assert found["reasoning_length"] == 60
    assert (found["turns_cut/reasoning"], found["turns_cut/answer"]) == (0.5, 0.25)
    assert found["actions_per_trajectory"] == found["actions_per_turn"] == 1
    assert all(len(one.reasoning_ids(0)) == 0 for one in cut), "Z stays empty"


def test_trajectories_count_whether_or_not_their_group_is_refused() -> None:
    summaries = [summary([1, 0, np.nan], "3-0"), summary([1, np.nan], "3-1"), summary([np.nan], "3-2")]
    found = trajectory_metrics(summaries)
    assert (found["trajectories"], found["trajectories_failed"]) == (3, 3)
    assert found["success"] == pytest.approx(2 / 3)
    assert (found["tasks_mixed"], found["tasks_all_succeed"], found["tasks_all_fail"]) == (0.5, 0.5, 0)
    assert (found["tokens/sampled"], found["rollout_entropy"]) == (21, 0.5)
    assert found["failures/generation_timeout"] == 3
    assert math.isnan(trajectory_metrics([])["success"])


def test_a_collapse_of_late_turns_shows_in_the_turns_that_have_it_and_in_no_mean() -> None:
    def ended(index: int, turns: int, success: bool) -> Trajectory:
        one = Turn(0, 1, 0, 0, 0.0, 0.0, True, False, 1, 0, 0)
        return Trajectory(
            index, np.zeros(1, np.int32), np.ones(1, bool), np.zeros(1, np.float32), [one] * turns, success, False
        )

    early = [ended(i, 1, True) for i in range(6)]
    late = [ended(0, 3, False), ended(1, 2, False), ended(2, SHOWN_TURNS + 3, False)]
    groups = [("3-0", early), ("3-1", late)]
    summaries = [summarise(Group(Ticket(name, 3, Task("E", 0), 6, 0), name, some)) for name, some in groups]
    found = turn_metrics(summaries, {"3-0"})
    assert [found[f"turns/success/{turn}"] for turn in (1, 2, 3)] == [pytest.approx(6 / 9), 0, 0]
    assert [found[f"turns/reached/{turn}"] for turn in (1, 2, 3, 4)] == pytest.approx([1, 3 / 9, 2 / 9, 1 / 9])
    assert [found[f"turns/kept/{turn}"] for turn in (1, 2)] == [pytest.approx(6 / 9), 0]
    none = turn_metrics([], set())
    assert none.keys() == found.keys() and len(none) == 3 * SHOWN_TURNS and all(map(math.isnan, none.values()))
