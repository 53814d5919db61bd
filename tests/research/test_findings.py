"""The findings of real runs: those that were made to collapse, and healthy ones.

The runs' tables hold single steps of rewards, scorer steps and evaluations of the fixed probe, and means over 10 steps
of what else is known; such a mean counts as each of its steps. The actions of a turn are those of an episode, which
those of Sokoban tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from research.kept import ACTIONS, BLOCK, of_content
from research.tables import FOLDER, read
from squelch.kit.findings.catalogue import catalogue
from squelch.kit.findings.finder import Findings
from squelch.kit.findings.view import StepView

ENTROPY, HIDDEN, FORM = ("entropy0.2", "entropy0.4", "entropy1"), ("blind",), ("format",)
EXPECTED = {
    "entropy_explodes": {ENTROPY: 3},
    "format_invalid": {ENTROPY: 3},
    "reward_constant": {ENTROPY: 3},
    "answer_ignores_reasoning": {ENTROPY: 3, HIDDEN: 1},
    "dependence_falls": {ENTROPY: 3, HIDDEN: 2, FORM: 3},
}
"""By warning: in how many of the three runs of a cause it was found. An entropy bonus that outweighs the reward, an
observation without the hazards, a reward for the form alone."""


def lines(run: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """The metrics of each step that the tables hold."""
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for name in ("scored", "validated", "probe", "steps"):
        for key, values in run["tables"].get(name, {}).items():
            for step, value in zip(run["tables"][name]["step"], values, strict=True):
                if key != "step" and value is not None:
                    steps[int(step)][key] = value
    blocks = run["tables"]["blocks"]
    for place, last in enumerate(blocks["step"]):
        means = {key: values[place] for key, values in blocks.items() if values[place] is not None}
        means |= {"groups/none_solved": means["tasks_all_fail"], "groups/all_solved": means["tasks_all_succeed"]}
        for step in range(int(last) - BLOCK + 1, int(last) + 1):
            steps[step] = means | steps[step]
    for step, actions in of_content(run).series(ACTIONS).items():
        steps[step]["actions_per_turn"] = actions
    for found in steps.values():
        if found.get("probe/link/surprise"):
            found["probe/link/dependence_share"] = found["probe/link/dependence"] / found["probe/link/surprise"]
    return sorted(steps.items())


def found_in(run: Mapping[str, Any]) -> dict[str, str]:
    """The worst severity of each finding of a run."""
    findings, worst = Findings(), dict[str, str]()
    for step, metrics in lines(run):
        for change in findings.step(StepView(step, {key: value for key, value in metrics.items() if key != "step"}))[1]:
            if change.kind != "ended":
                worst[change.finding.name] = change.finding.severity
    return worst


@pytest.fixture(scope="module")
def collapsed() -> dict[str, list[dict[str, str]]]:
    """The findings of the runs that were made to collapse, and of healthy ones beside them, by arm."""
    found = defaultdict(list)
    for run in read(FOLDER / "made_to_collapse.parquet"):
        found[run["arm"]].append(found_in(run))
    return found


def test_what_was_done_to_a_run_is_found(collapsed: dict[str, list[dict[str, str]]]) -> None:
    for name, expected in EXPECTED.items():
        for arms, number in expected.items():
            runs = [run for arm in arms for run in collapsed[arm]]
            assert len(runs) == 3 and sum(run.get(name) in ("warning", "critical") for run in runs) == number, (
                name,
                arms,
            )
    assert all(run["reward_constant"] == "critical" for arm in ENTROPY for run in collapsed[arm])


def test_the_healthy_runs_beside_them_have_nothing_but_a_plateau(collapsed: dict[str, list[dict[str, str]]]) -> None:
    for arm in ("none", "top_p"):
        for run in collapsed[arm]:
            assert set(run) <= {"reward_plateau"} and set(run.values()) <= {"notice"}


DIVIDED = {
    *("none", "none_ent0.03", "none_ent0.1", "none_kl0.1", "dapo_none", "grpo_kl0.001"),
    *("entropy", "length", "smallest"),
}
"""The arms of Sokoban that divide by the group's deviation and keep groups that hardly differ: in most of their groups
of failures only the penalty for an action differs (docs/research/findings.md)."""


@pytest.fixture(scope="module")
def claimed() -> list[tuple[str, str, dict[str, str]]]:
    """(recipe, arm, findings) of the runs of the claims, which nobody made to collapse."""
    return [(run["recipe"], run["arm"], found_in(run)) for run in read(FOLDER / "claims.parquet")]


@pytest.mark.slow
def test_of_153_runs_that_nobody_made_to_collapse_one_warns_of_it_and_none_has_a_critical_finding(
    claimed: list[tuple[str, str, dict[str, str]]],
) -> None:
    counts = Counter[str]()
    for *_, found in claimed:
        counts.update(f"{name} {severity}" for name, severity in found.items() if severity != "notice")
    assert len(claimed) == 153 and dict(counts) == {"dependence_falls warning": 1, "actions_fall warning": 31}


@pytest.mark.slow
def test_a_penalty_that_the_division_makes_large_is_found_in_31_of_32_runs_and_in_none_of_47_others(
    claimed: list[tuple[str, str, dict[str, str]]],
) -> None:
    found = Counter((arm in DIVIDED, "actions_fall" in one) for recipe, arm, one in claimed if recipe == "sokoban")
    assert found == {(True, True): 31, (True, False): 1, (False, False): 47}
    assert catalogue()["actions_fall"].shown.startswith("31 of 32 ")
    assert catalogue()["actions_fall"].quiet.startswith("47 of 47 ")


def test_the_catalogue_says_in_how_many_of_these_runs_each_was_found() -> None:
    for name, expected in EXPECTED.items():
        said = catalogue()[name].shown
        assert all(f"{number} of 3" in said for number in expected.values()), name
