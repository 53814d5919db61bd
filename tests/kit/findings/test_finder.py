"""A finding begins, worsens and ends, and noise makes none."""

from __future__ import annotations

import json
import random

import pytest

from squelch.kit.findings.catalogue import catalogue
from squelch.kit.findings.finder import LEVELS, Findings
from squelch.kit.findings.settings import FindingsConfig
from squelch.kit.findings.view import StepView
from tests.kit.findings.steps import FALLEN, FAULTY_FROM, PLANTED, constant, follow

SLOWER = {"learner.optimizer.learning_rate": "x0.5"}


def test_every_finding_has_a_level_and_a_planted_fault() -> None:
    assert list(catalogue()) and set(catalogue()) == set(LEVELS) == set(PLANTED)


def test_a_run_that_learns_has_no_finding() -> None:
    assert follow(Findings(), range(1, 200)) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_in_time_and_ends_when_it_is_gone(name: str) -> None:
    fault, severity, steps = PLANTED[name]
    findings = Findings()
    until = FAULTY_FROM + steps
    assert follow(findings, range(1, FAULTY_FROM)) == []
    own = [change for change in follow(findings, range(FAULTY_FROM, until), fault) if change.finding.name == name]
    assert own[0].kind == "began" and own[-1].finding.severity == severity, own
    assert {change.kind for change in own[1:]} <= {"worsened"}
    assert FAULTY_FROM - 5 <= own[0].finding.since <= own[0].finding.step < until, "a spike may be in the window before"
    assert " nan" not in own[-1].finding.says
    ended = [change for change in follow(findings, range(until, until + 70)) if change.finding.name == name]
    assert [change.kind for change in ended] == ["ended"], ended


def test_a_success_of_zero_on_few_validation_tasks_is_no_collapse() -> None:
    findings = Findings()
    few = {"validation/success": 0.25, "validation/success_low": 0.01, "validation/success_high": 0.8, "collapsed": 0.0}
    none = {"validation/success": 0.0, "validation/success_low": 0.0, "validation/success_high": 0.6, "collapsed": 1.0}
    for step, found in enumerate((few, none), 1):
        findings.step(StepView(step, found))
    assert findings.open == []


def test_a_level_that_swings_around_its_threshold_is_told_once() -> None:
    findings, noise = Findings(), random.Random(0)
    changes = follow(
        findings, range(1, 200), lambda _: {"turns_cut/reasoning": 0.25 + noise.gauss(0, 0.02)}
    )  # 0.26 with the answers' share
    assert [change.finding.name for change in changes].count("turns_cut") <= 3
    assert [change.kind for change in changes if change.kind == "ended"] == []


def test_why_nothing_can_be_scored_is_the_commonest_reason_unless_failures_explain_it() -> None:
    unscored = {"first_turn/mi_seq_est": None, "first_turn/reasoned": None, "first_turn/num_excluded": 64.0}
    why = {"unclosed": "64 have no end, such as </think>", "no_turn": "64 are of trajectories without a turn"}
    for reason, says in why.items():
        findings = Findings()
        findings.step(StepView(1, {**unscored, f"first_turn/excluded/{reason}": 64.0}))
        assert [one.says for one in findings.open] == [f"100% of the reasonings cannot be scored: {says}"]
    failing = {**unscored, "first_turn/excluded/failed": 64.0, "trajectories": 0.0, "trajectories_failed": 64.0}
    findings = Findings()
    for step in (1, 2):
        findings.step(StepView(step, failing))
    assert [one.name for one in findings.open] == ["trajectories_fail"]


def test_a_finding_keeps_its_severity_until_it_ends() -> None:
    findings = Findings()
    follow(findings, range(1, 20), constant(learner__kl=20.0))
    follow(findings, range(20, 40), constant(learner__kl=0.8))
    assert [(one.name, one.severity) for one in findings.open] == [("kl_high", "critical")]


def test_a_cause_hides_its_consequence() -> None:
    fault = constant(turns_cut__reasoning=0.97, tasks_all_fail=1.0, tasks_all_succeed=0.0, zero_variance_groups=16.0)
    findings = Findings()
    follow(findings, range(1, 40), fault)
    assert [one.name for one in findings.open] == ["turns_cut"]
    follow(findings, range(40, 60), lambda step: {**fault(step), "turns_cut/reasoning": 0.0})
    assert [one.name for one in findings.open] == ["none_solved"]


def test_validation_that_falls_is_blamed_on_the_reward_that_rises_and_else_on_the_updates() -> None:
    for reward, name, settings in (({}, "reward_hacked", ()), ({"reward_mean": 0.3}, "validation_falls", (SLOWER,))):
        findings = Findings()
        follow(findings, range(1, 61), lambda step, reward=reward: reward | (FALLEN if step in (40, 60) else {}))
        found = [one for one in findings.open if one.name in ("reward_hacked", "validation_falls")]
        assert [one.name for one in found] == [name] and found[0].entry.settings == settings
        assert "0.200, and was 0.340 at step 20" in found[0].says, "before step 40"


def test_validation_that_falls_is_blamed_on_a_reward_that_does_not_follow_success() -> None:
    """The reward of a healthy step pays for success, and rises by little."""
    for pays, name in ((lambda success: success / 100, "validation_falls"), (lambda success: 0.0, "reward_hacked")):
        findings = Findings()
        for step in range(1, 42):
            success = 0.3 + step * 7 % 10 / 100
            own = {"success": success, "reward_mean": 0.3 + pays(success) + step * 3 % 10 / 1e5}
            follow(findings, [step], lambda at, own=own: own | (FALLEN if at == 40 else {}))
        found = [one for one in findings.open if one.name in ("reward_hacked", "validation_falls")]
        assert [one.name for one in found] == [name]
        assert ("does not follow success (correlation over the steps" in found[0].says) is (name == "reward_hacked")


def test_what_is_not_known_changes_nothing() -> None:
    findings = Findings()
    follow(findings, range(1, 20), constant(learner__kl=20.0))
    for step in range(20, 60):
        metrics, changes = findings.step(StepView(step, {"learner/kl": None}))
        assert changes == [] and metrics["finding/kl_high/critical"] == 1
    assert Findings().step(StepView(1, {}))[1] == []


def test_a_finding_that_ended_or_worsened_is_exported_as_0() -> None:
    findings = Findings()
    follow(findings, range(1, 20), lambda step: {"learner/kl": 3.0 if step < 10 else 20.0})
    assert {key: value for key, value in findings.metrics().items() if "kl_high" in key} == {
        "finding/kl_high/critical": 1.0,
        "finding/kl_high/warning": 0.0,
    }
    follow(findings, range(20, 40))
    assert set(findings.metrics().values()) == {0.0} and findings.open == []


def test_the_state_goes_through_json_and_what_follows_is_the_same() -> None:
    def fault(step: int) -> dict[str, float]:
        return {"learner/kl": 5.0, "learner/entropy": max(0.01, 0.9 - step / 60)} if step > 30 else {}

    whole, before, after = Findings(), Findings(), Findings()
    expected = follow(whole, range(1, 90), fault)
    found = follow(before, range(1, 47), fault)
    after.restore(json.loads(json.dumps(before.state(), allow_nan=False)))
    assert found + follow(after, range(47, 90), fault) == expected and len(expected) > 2
    assert after.open == whole.open and after.metrics() == whole.metrics()


def test_an_ignored_finding_is_not_looked_for_and_an_unknown_name_is_refused() -> None:
    findings = Findings(ignore=["kl_high"])
    assert follow(findings, range(1, 40), constant(learner__kl=20.0)) == []
    with pytest.raises(ValueError, match="did you mean `kl_high`"):
        FindingsConfig(ignore=("kl_hi",))


def test_a_reward_that_falls_as_success_rises_is_one_that_does_not_follow_it() -> None:
    """Their correlation is -1 to the last bit."""
    findings = Findings()
    for step in range(1, 42):
        own = {"success": step / 64, "reward_mean": 1 - step / 64}
        follow(findings, [step], lambda at, own=own: own | (FALLEN if at == 40 else {}))
    assert [one.name for one in findings.open if one.name in ("reward_hacked", "validation_falls")] == ["reward_hacked"]
