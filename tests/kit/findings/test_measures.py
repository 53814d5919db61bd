"""What groups and texts show, against numbers made by hand."""

from __future__ import annotations

import pytest

from squelch.kit.findings.finder import Findings
from squelch.kit.findings.measures import SEEN, Tasks, derived, measured
from squelch.kit.findings.view import GroupView, StepView, TextView
from squelch.kit.records.repetition import FEWEST, repetition

RIGHT, WRONG = GroupView("right", [1.0, 1.0], lengths=[10, 10]), GroupView("wrong", [0.0, 0.0], lengths=[40, 20])
MIXED = GroupView("mixed", [0.0, 1.0], lengths=[10, 10])


def shown(*groups: GroupView, texts: list[TextView] | None = None) -> dict[str, float]:
    return measured(StepView(1, {}, groups, texts), Tasks()).metrics


def test_equal_groups_are_told_apart_by_their_outcome_and_their_tokens_counted() -> None:
    found = shown(RIGHT, WRONG, MIXED, MIXED)
    assert (found["groups/none_solved"], found["groups/all_solved"], found["groups/equal"]) == (0.25, 0.25, 0.0)
    assert found["groups/tokens_without_signal"] == 80 / 120
    assert shown(WRONG, WRONG)["groups/equal"] == 1.0, "equal rewards in every group tell no outcome"
    solved = [GroupView("a", [0.5, 0.5], solved=[True, True])]
    assert shown(*solved)["groups/all_solved"] == 1.0


def test_the_rows_of_equal_groups_are_its_examples() -> None:
    examples = measured(StepView(1, {}, [MIXED, *[WRONG] * 5]), Tasks()).examples["groups/none_solved"]
    assert [one.row for one in examples] == ["wrong"] * 3 and "each with reward 0" in examples[0].text


def test_a_reward_that_pays_for_length_has_correlation_1_and_one_that_does_not_about_0() -> None:
    paid = [GroupView(str(n), [1.0, 2.0, 3.0, 4.0], lengths=[10, 20, 30, 40]) for n in range(1, 5)]
    assert shown(*paid)["groups/length_correlation"] == pytest.approx(1.0)
    fair = [GroupView(str(n), [1.0, 0.0, 0.0, 1.0], lengths=[10, 20, 10, 20]) for n in range(4)]
    found = shown(*fair)
    assert found["groups/length_correlation"] == pytest.approx(0.0)
    assert found["groups/length_correlation_low"] < 0 < found["groups/length_correlation_high"]


def test_terms_and_penalties_share_the_variance_and_a_constant_one_has_none() -> None:
    group = GroupView("a", [1.0, 0.0], penalties=[0.0, 0.0], terms={"right": [1.0, 0.0], "format": [0.0, 0.0]})
    assert shown(group) | {"groups/term/right": 1.0, "groups/term/format": 0.0} == shown(group)
    form = GroupView("a", [0.0, 0.0, 0.0], penalties=[0.0, -0.1, -0.1])
    assert shown(form)["groups/format_variance"] == pytest.approx(1.0)


def test_cut_completions_carry_the_variance_that_they_explain() -> None:
    cut = GroupView("a", [0.0, 0.0, 1.0, 1.0], cut=[True, True, False, False])
    found = shown(cut)
    assert found["groups/cut"] == 0.5 and found["groups/cut_variance"] == pytest.approx(1.0)
    other = GroupView("a", [0.0, 1.0, 0.0, 1.0], cut=[True, True, False, False])
    assert shown(other)["groups/cut_variance"] == pytest.approx(0.0)


def test_a_loop_repeats_itself_and_a_sentence_does_not() -> None:
    assert repetition(range(FEWEST)) == 0.0 and repetition(range(FEWEST - 1)) is None
    assert repetition(["the"] * 20) == 1 - 1 / 17
    assert repetition(["a", "b", "c", "d"] * 5) == 1 - 4 / 17


def test_one_text_under_many_prompts_is_counted_by_prompts_and_shown() -> None:
    texts = [
        TextView.of(f"row {n}", n % 10, ["go", "left"] if n % 10 < 7 else ["no", str(n)], "go left") for n in range(40)
    ]
    view = measured(StepView(1, {}, None, texts), Tasks())
    assert view.metrics["texts/one_text"] == 0.7 and view.examples["texts/one_text"][0].text == "go left"
    assert "texts/one_text" not in shown(texts=texts[:5]), "too few prompts"


def test_tasks_that_come_back_are_counted_over_the_run() -> None:
    tasks = Tasks()
    for _ in range(SEEN):
        for number in range(10):
            tasks.see(str(number), [number >= 4, number >= 8])
    assert tasks.metrics() == {"tasks/again": 10.0, "tasks/never_solved": 0.4, "tasks/always_solved": 0.2}


def test_a_runs_own_metrics_give_the_same_shares() -> None:
    metrics = {"num_groups": 8.0, "refused_groups": 0.0, "zero_variance_groups": 6.0, "tasks_all_fail": 0.5}
    metrics |= {"tasks_all_succeed": 0.25, "turns_cut/reasoning": 0.1, "turns_cut/answer": 0.2}
    found = derived(metrics)
    assert found == pytest.approx(
        {"groups/none_solved": 0.5, "groups/all_solved": 0.25, "groups/equal": 0.0, "groups/cut": 0.3}
    )


def test_first_prompts_that_differ_are_a_finding_that_is_said_once_with_what_differs() -> None:
    same, other = (GroupView("a", [0.0, 1.0], prompts_differ=""), GroupView("b", [0.0, 1.0], prompts_differ="the date"))
    own = GroupView("c", [0.0, 1.0])
    assert "groups/differing_prompts" not in shown(own)
    assert shown(own, same)["groups/differing_prompts"] == 0.0
    findings, told = Findings(), []
    for step in range(1, 5):
        metrics, changes = findings.step(StepView(step, {}, [own, same, other]))
        told += [one.finding for one in changes if one.finding.name == "prompts_differ"]
        assert metrics["groups/differing_prompts"] == 0.5
    (found,) = told
    assert (found.severity, found.says) == ("notice", "The members of 50% of the groups began with different prompts")
    assert [(one.row, one.text) for one in found.examples] == [("b", "the date")]


def test_each_cause_of_failures_is_an_example_once() -> None:
    causes = ["agent_error: no connection to port 5432", "agent_error: no such tool"]
    failed = [GroupView("g", [], failures=causes[:1] * 8), GroupView("h", [], failures=causes)]
    findings = Findings()
    for step in (1, 2):
        _, changes = findings.step(StepView(step, {"trajectories": 0.0, "trajectories_failed": 8.0}, failed))
    assert changes[0].finding.severity == "critical"
    examples = [(one.row, one.text) for one in changes[0].finding.examples]
    assert examples == list(zip("gh", causes, strict=True))
