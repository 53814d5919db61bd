"""The estimator of interventions: agents whose dependence on their reasoning is known, and what must not move it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.diagnosis.interventions import (
    ANSWERS,
    ARMS,
    Intervention,
    LeftOut,
    SampledTurn,
    answer_of,
    effects,
    read_interventions,
)
from squelch.kit.records.failures import Failure, FailureCause

ACTIONS = ("Left", "Down", "Right", "Up")


def agent(rng: np.random.Generator, tasks: int, follows: float) -> list[Intervention]:
    """An agent whose reasoning always names the best of four actions, and which does what its reasoning names in the
    share `follows` of its turns, else any action. Its change is follows^2."""

    def acts(named: int) -> SampledTurn:
        return SampledTurn((ACTIONS[named if rng.random() < follows else rng.integers(4)],), True)

    found = []
    for _ in range(tasks):
        own, others = int(rng.integers(4)), 1 + int(rng.integers(3))
        best = (own + others) % 4
        again = {"second": acts(own), "donor": acts(best), "blank": SampledTurn((), False)}
        found.append(Intervention("", acts(own), acts(best), again))
    return found


@pytest.mark.parametrize("follows", [0.0, 0.5, 0.9, 1.0])
def test_the_interval_of_the_change_holds_for_agents_whose_change_is_known(follows: float) -> None:
    rng = np.random.default_rng(7)
    both = [read_interventions(agent(rng, 96, follows)) for _ in range(300)]
    assert np.mean([one.follow.value for one in both]) == pytest.approx(follows**2, abs=0.015)
    found = [one.change for one in both]
    covered = np.mean([one.low <= follows**2 <= one.high for one in found])
    assert covered >= 0.91 and np.mean([one.value for one in found]) == pytest.approx(follows**2, abs=0.015)
    signs = np.mean([one.low > 0 for one in found])
    assert signs <= 0.05 if follows == 0 else signs > 0.7


def test_an_agent_that_acts_on_its_reasoning_takes_the_donors_answer_and_one_that_does_not_keeps_its_own() -> None:
    rng = np.random.default_rng(3)
    found = read_interventions(agent(rng, 200, 1.0))
    assert found.answers["donor"]["donors"].value == 1 and found.answers["second"]["own"].value == 1
    assert found.change.value == 1 and found.change.low > 0.9 and found.tasks == 200
    assert found.follow.value == 1
    first = SampledTurn(("Left", "Up"), True)
    longer = Intervention("", SampledTurn(("Up",), True), SampledTurn(("Left",), True), dict.fromkeys(ARMS, first))
    longer = replace(longer, again={**longer.again, "second": SampledTurn((), False)})
    assert read_interventions([longer]).follow.value == 1, "the first action alone, and no action is not the donor's"
    deaf = [replace(one, again={arm: one.own for arm in ARMS}) for one in agent(rng, 200, 0.0)]
    assert read_interventions(deaf).change.value == 0 and read_interventions(deaf).answers["donor"]["own"].value == 1


said = st.builds(SampledTurn, st.sampled_from([(), ("Up",), ("Up", "Down"), ("Left",)]), st.booleans())
interventions = st.lists(
    st.builds(Intervention, st.just(""), said, said, st.fixed_dictionaries({arm: said for arm in ARMS}), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(interventions)
def test_every_action_is_one_of_four_and_a_broken_format_never_raises_the_change(found: list[Intervention]) -> None:
    effect = read_interventions(found)
    assert effect.tasks + sum(effect.left_out.values()) == len(found)
    broken = [replace(one, again={**one.again, "donor": SampledTurn((), False)}) for one in found]
    if effect.tasks:
        for arm in ARMS:
            shares = effect.answers[arm]
            assert sum(shares[answer].value for answer in ANSWERS) == pytest.approx(1)
            assert shares["differs"].value == pytest.approx(shares["donors"].value + shares["another"].value)
            assert all(one.low <= one.value <= one.high for one in shares.values())
        assert read_interventions(broken).change.value <= min(effect.change.value, 0) + 1e-12
        assert effect.change.low - 1e-12 <= effect.change.value <= effect.change.high + 1e-12
    else:
        assert effect.data()["change"] == {"value": None, "low": None, "high": None}


@given(interventions)
def test_what_a_blank_reasoning_leads_to_changes_nothing_that_is_judged(found: list[Intervention]) -> None:
    other = [replace(one, again={**one.again, "blank": SampledTurn(("Right",), True)}) for one in found]
    first, second = read_interventions(found).data(), read_interventions(other).data()
    assert first.pop("answers") | {"blank": 0} == second.pop("answers") | {"blank": 0} and first == second


def test_tasks_are_left_out_by_reason_and_environments_are_read_apart() -> None:
    up, left = SampledTurn(("Up",), True), SampledTurn(("Left",), True)
    one = Intervention("lake", up, up, dict.fromkeys(ARMS, left), twin=True)
    assert answer_of(one, "donor") == "another"
    assert answer_of(replace(one, again=dict.fromkeys(ARMS, up)), "donor") == "own", "the donor answers alike"
    failure = Failure(FailureCause.STEP_TIMEOUT)
    silent = replace(one, own=SampledTurn((), False))
    found = effects([one, silent, LeftOut("lake", "failed", failure), LeftOut("box", "unclosed")])
    assert found["lake"].left_out == {"failed": 1, "no_action": 1} and found["lake"].twins == found["lake"].tasks == 1
    assert found["box"].tasks == 0 and found["box"].left_out == {"unclosed": 1}
