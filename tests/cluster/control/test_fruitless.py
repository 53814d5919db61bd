"""A run that learns nothing is told so once, with the cause that fits."""

import math

import pytest

from squelch.cluster.config import load
from squelch.cluster.control.fruitless import STEPS, Fruitless

GOOD = {"format_validity": 1.0, "success": 0.4, "kept_mass": 0.9, "turns_cut/reasoning": 0.0, "turns_cut/answer": 0.0}
NOTHING = {**GOOD, "format_validity": 0.0, "success": 0.0, "kept_mass": math.nan}
PRETRAINED = ("model.path=somewhere", "environment.prompt=natural")


def told(overrides: tuple[str, ...], *steps: dict[str, float]) -> str:
    """The one warning of `STEPS` steps of these kinds in turn."""
    follower = Fruitless(load("frozenlake", list(overrides)))
    found = [text for number in range(STEPS) if (text := follower.step(steps[number % len(steps)]))]
    assert len(found) <= 1 and follower.verdict() == "".join(found)
    return "".join(found)


@pytest.mark.parametrize(
    ("overrides", "change", "says"),
    [
        (PRETRAINED, {"turns_cut/reasoning": 0.9}, "90% of the turns reach sampling.max_tokens_per_turn=48, most of "
         "them inside their reasoning; raise it"),
        (PRETRAINED, {"turns_cut/answer": 0.6}, "60% of the turns reach sampling.max_tokens_per_turn=48; raise it"),
        (("model.path=somewhere",), {}, "set environment.prompt=natural"),
        (PRETRAINED, {}, "</answer>`; warm it up first (`squelch warmup`)"),
        ((), {}, "</answer>`; use a pretrained model (model.path)"),
        (PRETRAINED, {"format_validity": 1.0}, "too hard for the policy; take easier ones (environment.options), or"),
        ((), {"format_validity": 1.0, "success": 1.0}, "solved by all of its trajectories; take harder ones"),
        ((), {"format_validity": 1.0, "success": 0.5}, "raise sampling.group_size or sampling.temperature"),
    ],
)  # fmt: skip
def test_ten_steps_that_teach_nothing_name_their_cause(
    overrides: tuple[str, ...], change: dict[str, float], says: str
) -> None:
    found = told(overrides, {**NOTHING, **change})
    assert found.startswith("for 10 steps ") and "no group had reward variance" in found and says in found


@pytest.mark.parametrize("symptom", ["format_validity", "success", "kept_mass"])
def test_each_symptom_alone_is_told_and_one_good_step_ends_it(symptom: str) -> None:
    assert "for 10 steps" in told((), {**GOOD, symptom: NOTHING[symptom]})
    assert told((), *[NOTHING] * 9, GOOD) == "" == told((), GOOD)
    assert told((), {**NOTHING, "success": math.nan, "format_validity": math.nan}) == "", "failures say more"


def test_a_symptom_is_told_again_after_it_was_gone_and_a_short_run_in_its_summary_alone() -> None:
    follower = Fruitless(load("frozenlake"))
    assert not any(follower.step(NOTHING) for _ in range(5))
    assert "for 5 steps hardly a turn was well formed and no trajectory succeeded and" in follower.verdict()
    lines = [follower.step(metrics) for metrics in (*[NOTHING] * 20, GOOD, *[NOTHING] * 12)]
    assert [place for place, text in enumerate(lines) if text] == [4, 30]
