"""The findings of real runs: those that were made to collapse, and healthy ones.

The runs' tables hold single steps of rewards, scorer steps and evaluations of the fixed probe, and means over 10 steps
of what else is known; such a mean counts as each of its steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from research.kept import BLOCK
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


@pytest.mark.slow
def test_of_153_runs_that_nobody_made_to_collapse_one_has_a_warning_and_none_a_critical_finding() -> None:
    counts = Counter[str]()
    runs = read(FOLDER / "claims.parquet")
    for run in runs:
        counts.update(f"{name} {severity}" for name, severity in found_in(run).items() if severity != "notice")
    assert len(runs) == 153 and dict(counts) == {"dependence_falls warning": 1}


def test_the_catalogue_says_in_how_many_of_these_runs_each_was_found() -> None:
    for name, expected in EXPECTED.items():
        said = catalogue()[name].shown
        assert all(f"{number} of 3" in said for number in expected.values()), name
