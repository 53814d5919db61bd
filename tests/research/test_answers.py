"""What the agent does and how far its answers follow: metrics of older runs, and the tables of the findings."""

import pytest

from research.answers import actions_and_success, early_actions, late_actions, measured, tables
from research.judging import PAGES
from research.kept import ACTIONS, SHARE, Kept, of_content


def content(recipe: str = "sokoban", **others: object) -> dict:
    """A run of which half of the attempts succeed after 5 actions on average, and then all after 4."""
    steps = {"step": [1, 20], "success": [0.5, 1.0], "reward_mean": [5.5 - 0.5, 11 - 0.4]}
    probe = {"step": [0, 20], "probe/link/dependence": [1.0, 1.2], "probe/link/surprise": [2.0, 1.5]}
    labels = {"name": "one", "part": "p", "recipe": recipe, "arm": "a", "seed": 0, "steps": 20, "groups": {}}
    return {**labels, "tables": {"steps": steps, "probe": probe}, **others}


def test_actions_and_the_share_of_d_of_an_older_run_follow_from_what_it_recorded() -> None:
    run = of_content(content())
    assert (early_actions(run), late_actions(run)) == (pytest.approx(5), pytest.approx(4))
    assert run.series(SHARE) == {0: 0.5, 20: pytest.approx(0.8)}
    assert measured([run])["change of D / surprise"]["mean"] == pytest.approx(0.3)


def test_recorded_values_count_as_they_are() -> None:
    made = content()
    made["tables"]["steps"][ACTIONS] = [9.0, 8.0]
    made["tables"]["probe"][SHARE] = [0.1, None]
    run = of_content(made)
    assert run.series(ACTIONS) == {1: 9.0, 20: 8.0} and run.series(SHARE) == {0: 0.1}


@pytest.mark.parametrize(
    "other",
    [
        {"recipe": "frozenlake"},
        {"changed": ["environment.options.action_reward=0.0"]},
        {"set": ["environment.options={boxes: 2}"]},
    ],
)
def test_returns_under_other_rewards_tell_no_number_of_actions(other: dict) -> None:
    run: Kept = of_content(content(**other))
    assert run.series(ACTIONS) == {} and run.series(SHARE)


def test_the_tables_of_the_findings_are_those_of_the_runs() -> None:
    page = (PAGES / "findings.md").read_text()
    assert [table for table in tables() if table not in page] == [], "run: python -m research.answers"
    number, correlation = actions_and_success()
    assert f"{number} Sokoban runs" in page and f"{correlation:.2f}" in page
