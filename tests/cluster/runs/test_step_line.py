"""The line of a step says what is known, each thing once, and fits the terminal."""

import math

import pytest

from squelch.cluster.runs.step_line import step_line

FLAT = {
    "success": 0.422,
    "reward_mean": 0.422,
    "kept_groups": 7.0,
    "num_groups": 8.0,
    "kept_mass": 0.96,
    "format_validity": 0.98,
    "reasoning_length": 14.2,
    "learner/entropy": 1.02,
    "learner/kl": math.nan,
    "learner/grad_norm": 0.31,
    "tokens/per_second": 812.0,
    "seconds/step": 5.66,
}


def test_a_reward_that_is_the_success_is_said_once_and_what_is_off_not_at_all() -> None:
    begin = "step    1/60  success 0.422  kept 7/8, mass 0.96  format 0.98  reasoning 14.2 tokens  entropy 1.02"
    assert step_line(1, 60, FLAT) == f"{begin}  5.66 s"
    found = step_line(1, 60, FLAT | {"reward_mean": 0.31, "learner/kl": 0.0123, "kept_mass": None})
    assert "success 0.422  reward +0.310  kept 7/8  format" in found and "KL 0.0123" in found


def test_retrieval_and_the_alarm_are_in_the_lines_of_scored_steps() -> None:
    scored = {"first_turn/retrieval_accuracy": 0.58, "first_turn/retrieval_chance": 0.125}
    alarm = {"alarm/raised": 1.0, "alarm/since": 12.0}
    found = step_line(1, 60, FLAT | scored | alarm)
    assert found.endswith("retrieval 0.58 (chance 0.12)  input dependence falling since step 12  5.66 s")


@pytest.mark.parametrize("width", [1, 60, 80, 100, 120, 200])
def test_a_wide_terminal_shows_more_and_a_narrow_one_never_less_than_success_kept_and_seconds(width: int) -> None:
    found, logged = step_line(1, 60, FLAT, width), step_line(1, 60, FLAT)
    assert "success 0.422  kept 7/8, mass 0.96" in found and found.endswith("5.66 s")
    assert len(found) <= max(width, len("step    1/60  success 0.422  kept 7/8, mass 0.96  5.66 s"))
    assert ("812 tokens/s" in found) == (width >= 200) and "tokens/s" not in logged
    assert ("entropy" in found) == (width > 60)


def test_what_is_not_known_is_not_shown_as_a_number() -> None:
    nothing = {"success": math.nan, "reward_mean": math.nan, "kept_mass": math.nan, "format_validity": math.nan}
    found = step_line(1, 60, FLAT | nothing)
    assert "nan" not in found and "success n/a  kept 7/8, mass n/a  reasoning" in found
