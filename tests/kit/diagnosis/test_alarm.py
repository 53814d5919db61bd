"""The change-point alarm on MI: silent on noise, quick on a fall, and clear about the reward."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from squelch.cluster.metrics import REGISTRY
from squelch.kit.diagnosis.alarm import BASELINE, DependenceAlarm, alarm_text, score_of, trend


def run(
    values: list[float], error: float = 0.1, significant: bool = True, every: int = 5
) -> tuple[DependenceAlarm, list[int]]:
    """Feeds one scorer step every `every` steps; the steps at which the alarm was raised."""
    alarm, raised = DependenceAlarm(), []
    for index, value in enumerate(values):
        if alarm.update(index * every, value, error, significant):
            raised.append(index * every)
    return alarm, raised


def replay(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """(step, text) of each alarm that the lines of a run's `metrics.jsonl` raise."""
    alarm, raised = DependenceAlarm(), []
    for line in lines:
        if line.get("reward_mean") is not None:
            alarm.reward(line["step"], line["reward_mean"])
        if (seen := score_of(line)) is not None and alarm.update(*seen):
            raised.append((seen[0], alarm.text()))
    return raised


def test_a_fall_to_half_is_raised_at_the_second_low_score_with_the_step_before_it() -> None:
    alarm, raised = run([1.5] * 6 + [0.75] * 4)
    assert raised == [35] and alarm.since == 25


def test_a_slow_fall_is_raised_before_half_is_lost() -> None:
    values = [1.5] * 4 + [1.5 - 0.1 * i for i in range(1, 12)]
    _, raised = run(values)
    assert raised and values[raised[0] // 5] > 0.75


def test_one_bad_score_raises_nothing() -> None:
    for low in (0.7, 0.0, -5.0):
        assert run([1.5] * 5 + [low] + [1.5] * 10)[1] == []


def test_a_tenth_lost_to_specialisation_raises_nothing() -> None:
    assert run([1.5] * 5 + [1.35] * 40)[1] == []


def test_a_fall_from_a_level_reached_in_training_is_seen() -> None:
    _, raised = run([0.5, 0.7, 0.9, 1.2, 1.5, 1.5, 1.5, 0.8, 0.8, 0.8])
    assert raised == [40], "the reference is the run's best level, not its first"


def test_without_dependence_at_the_start_it_is_not_armed() -> None:
    alarm, raised = run([0.05] * 3 + [-0.1] * 10, significant=False)
    assert raised == [] and alarm.metrics()["alarm/armed"] == 0.0 and alarm.cusum == 0.0


def test_a_level_at_or_below_zero_is_no_reference_even_when_significant() -> None:
    for level in (0.0, -0.4):
        alarm, raised = run([level] * 5 + [level - 1.0] * 5, error=0.0)
        assert raised == [] and alarm.reference is None


def test_noise_of_the_stated_error_is_rarely_an_alarm() -> None:
    rng = np.random.default_rng(0)
    for error, most in ((0.1, 0.02), (0.3, 0.12)):
        alarms = sum(bool(run(rng.normal(1.5, error, 20).tolist(), error)[1]) for _ in range(500))
        assert alarms <= most * 500


def test_it_is_lowered_once_dependence_is_back_and_may_be_raised_again() -> None:
    alarm, raised = run([1.5] * 5 + [0.5] * 3 + [1.5] * 12 + [0.5] * 3)
    assert len(raised) == 2 and alarm.raised


@pytest.mark.parametrize("low", [3, 10, 40])
def test_after_a_fall_of_any_length_it_clears_within_some_steps_and_reports_the_next_fall(low: int) -> None:
    alarm, raised = run([1.5] * 5 + [0.5] * low + [1.5] * 6 + [0.5] * 2)
    assert len(raised) == 2 and alarm.since == 5 * (5 + low + 5)


def test_a_step_of_fewer_prompts_is_compared_with_its_own_ceiling() -> None:
    """Found by a reviewer: with refill the number of prompts changes, and dependence at its ceiling was a fall."""
    alarm, raised = DependenceAlarm(), []
    for step, prompts in enumerate([14] * 4 + [8] * 6):
        raised.append(alarm.update(step, math.log(prompts) - 0.05, 0.03, True, math.log(prompts)))
    assert not any(raised) and alarm.reference == pytest.approx(math.log(14) - 0.05) and alarm.cusum == 0.0
    low = [alarm.update(step, 1.5, 0.03, True, math.log(8)) for step in (11, 12)]
    assert low == [False, True], "a fall below that ceiling is one all the same"


def test_unknown_scores_change_nothing() -> None:
    alarm, _ = run([1.5] * 5)
    before = alarm.state()
    assert not alarm.update(30, math.nan, 0.1, True) and not alarm.update(35, 1.0, math.nan, True)
    assert alarm.state() == before


def test_a_restart_goes_on_exactly() -> None:
    values = [1.5] * 5 + [0.9, 0.8, 0.7]
    whole, raised = run(values)
    first = run(values[:6])[0]
    second = DependenceAlarm()
    second.restore(json.loads(json.dumps(first.state())))
    again = [s for s, v in ((30, 0.8), (35, 0.7)) if second.update(s, v, 0.1, True)]
    assert second.state() == whole.state() and again == raised


@pytest.mark.parametrize(("slope", "says"), [(0.01, "still rising"), (0.0, "flat"), (-0.01, "falling")])
def test_it_says_since_when_and_what_the_reward_does(slope: float, says: str) -> None:
    alarm, rng = DependenceAlarm(), np.random.default_rng(1)
    for step in range(1, 51):
        alarm.reward(step, 0.3 + slope * step + 0.02 * rng.normal() * bool(slope))
        if step % 5 == 0:
            alarm.update(step, 1.5 if step <= 25 else 0.5, 0.1, True)
    assert alarm.raised and alarm.text() == (
        f"input dependence falling since step 25, reward {says} (MI-Seq-Est 1.50 -> 0.50 nats per sequence)"
    )
    metrics = alarm.metrics()
    assert metrics["alarm/since"] == 25 and all(REGISTRY.series_of(key) for key in metrics)
    assert alarm_text(25, metrics["alarm/reward_trend"]) in alarm.text()


def test_a_trend_needs_points_and_a_slope_above_its_noise() -> None:
    assert trend([(0, 0.0), (1, 1.0), (2, 2.0)]) == 0
    assert trend([(s, float(s)) for s in range(5)]) == 1 and trend([(s, -float(s)) for s in range(5)]) == -1
    assert trend([(0, 0.0), (1, 1.0), (2, 0.0), (3, 1.0), (4, 0.0)]) == 0


def line(step: int, mi: float | None) -> dict[str, float | None]:
    scored = {"retrieval_accuracy": 0.8, "retrieval_chance": 0.125, "mi_seq_est": mi, "conditional_entropy": 1.0}
    scored |= {"mi_seq_est_p_value": 0.001, "mi_seq_est_standard_error": 0.1}
    return {"step": step, "reward_mean": 0.01 * step} | {f"first_turn/{key}": value for key, value in scored.items()}


def test_a_runs_lines_replay_to_the_alarms_it_raised() -> None:
    lines = [line(s, 1.5) for s in range(1, 7)] + [{"step": 7, "reward_mean": 0.1}, line(8, None)]
    lines += [line(s, 0.5) for s in range(9, 16)]
    assert replay(lines)[0][0] == 10 and "falling since step 6" in replay(lines)[0][1]
    few = [other | {"first_turn/upper_bound": 0.5} for other in lines if other["step"] > 8]
    assert replay([*lines[:8], *few]) == [], "a line says the most that its scorer step could tell"
    assert replay(lines[: BASELINE + 1]) == []
    bare = {"step": 3, "first_turn/mi_seq_est": 1.0}
    with pytest.raises(ValueError, match="step 3: first_turn/mi_seq_est has no"):
        score_of(bare)


def test_under_a_budget_of_pairs_the_alarm_arms_and_is_raised_all_the_same() -> None:
    """Scorer steps of a part of the pairs have an interval and no p-value."""
    lines = [
        {
            "step": step,
            "scorer/step": step,
            "first_turn/mi_seq_est": value,
            "first_turn/mi_seq_est_standard_error": 0.1,
            "first_turn/mi_seq_est_low": value - 0.2,
            "first_turn/mi_seq_est_p_value": None,
            "first_turn/retrieval_accuracy": 0.7,
            "first_turn/retrieval_chance": 0.125,
            "first_turn/conditional_entropy": 0.8,
        }
        for step, value in enumerate([2.0] * 6 + [0.5] * 4)
    ]
    assert [step for step, _ in replay(lines)] == [7]
