"""What must hold of the steps until which the reasoning was in no bad state."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.diagnosis.bad_states import UNTRUE, Soundness
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.diagnosis.regime import BLIND, MUTE, PRIVATE_CODE, TEMPLATE, UNKNOWN, UNUSED, USED, one_hot


def scored(regime: str = UNKNOWN, untrue: float = math.nan) -> dict[str, float]:
    return {f"first_turn/{key}": value for key, value in one_hot(regime).items()} | {"judge/untrue": untrue}


def after(*scored_steps: dict[str, float]) -> Soundness:
    """The soundness after scorer steps at steps 10, 20, ..."""
    found = Soundness()
    for number, metrics in enumerate(scored_steps, start=1):
        found.update(10 * number, metrics)
    return found


def test_a_state_that_begins_leaves_the_last_step_without_it() -> None:
    assert after(scored(USED), scored(USED), scored(TEMPLATE), scored(TEMPLATE)).until == 20
    assert after(scored(USED), scored(UNUSED)).until == 10
    assert after(scored(USED, 0.0), scored(USED, 1.0)).until == 10
    assert after(scored(USED), scored(MUTE), scored(USED)).until is None, "it has passed"


def test_of_two_states_the_first_one_counts() -> None:
    assert after(scored(USED, 0.0), scored(USED, 1.0), scored(MUTE, 1.0), scored(MUTE, 1.0)).until == 10


def test_a_run_that_begins_in_a_state_has_no_step_before_it() -> None:
    assert after(scored(TEMPLATE), scored(TEMPLATE)).until is None


def test_a_question_that_was_not_asked_changes_nothing() -> None:
    found = after(scored(USED), scored(UNUSED), scored(TEMPLATE), scored(UNKNOWN))
    assert found.bad == [UNUSED, TEMPLATE] and found.until == 10
    assert after(scored(USED), scored(UNUSED), scored(PRIVATE_CODE)).bad == [], "its own state is untrue"
    assert after(scored(USED, 0.0), scored(USED, 1.0), scored(USED, math.nan)).bad == [UNTRUE]
    assert after({}).until is None


def test_where_text_shows_the_task_too_blind_reasoning_is_no_bad_state() -> None:
    found = after(scored(USED), scored(BLIND))
    assert found.bad == [] and found.metrics() == {}
    assert after(scored(UNUSED), scored(BLIND)).bad == [UNUSED], "what follows was not asked"


def test_where_pictures_alone_show_the_task_blind_reasoning_of_either_scope_is_one() -> None:
    blind = {"trajectory/regime/blind": 1.0, "trajectory/modality/text_alone": 1.0}
    sees, unread = {"trajectory/modality/text_alone": 0.0}, {"trajectory/modality/text_alone": math.nan}
    found = Soundness(pictures_alone=True)
    began = [found.update(step, {**scored(USED), **own}) for step, own in enumerate((sees, blind, unread))]
    assert began == [[], [BLIND], []] and found.until == 0 and math.isnan(found.metrics()["alarm/blind"])
    found.update(3, scored(BLIND) | sees)
    assert found.bad == [BLIND] and found.metrics() == {"alarm/blind": 1.0}, "the first turns are"
    found.update(4, scored(USED) | unread | {"trajectory/regime/template": 1.0})
    assert found.bad == [BLIND] and found.metrics() == {"alarm/blind": 0.0}, "another regime holds"
    found.update(5, scored(USED) | sees)
    assert found.until is None and found.metrics() == {"alarm/blind": 0.0}


@given(st.lists(st.tuples(st.sampled_from(REGIMES), st.sampled_from([0.0, 1.0, math.nan])), max_size=12), st.data())
def test_a_state_is_reported_when_it_begins_and_a_resume_changes_nothing(course, data) -> None:
    cut = data.draw(st.integers(0, len(course)))
    whole, resumed, bad = Soundness(), Soundness(), set()
    for step, (regime, untrue) in enumerate(course):
        if step == cut:
            other = Soundness()
            other.restore(json.loads(json.dumps(resumed.state())))
            resumed = other
        began = whole.update(step, scored(regime, untrue))
        assert began == resumed.update(step, scored(regime, untrue)) and not bad & set(began)
        assert whole == resumed and set(began) <= set(whole.bad)
        assert whole.until is None or whole.until < step
        bad = set(whole.bad)


def test_the_state_of_an_earlier_run_goes_on_under_the_names_of_today() -> None:
    found = Soundness()
    found.restore({"bad": ["decorative"], "good": {"decorative": 10, "mute": 20}, "blind": None})
    assert found.bad == [UNUSED] and found.until == 10 and found.good[MUTE] == 20
    found.update(30, scored(USED))
    assert found.bad == []
