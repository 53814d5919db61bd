"""The figures that pages state of finished studies are those of the studies' committed tables."""

from __future__ import annotations

import csv
import re
from itertools import pairwise

import pytest

from research.judging import PAGES
from research.tables import FOLDER, read

INTERVAL = re.compile(r"[-+]?\d+\.\d+ \[[^\]]+\]")


def rows_of(table: str) -> list[list[str]]:
    """The rows of a committed table, its head first."""
    with (FOLDER / table).open(newline="") as lines:
        return [*csv.reader(lines)]


def section(page: str, title: str) -> str:
    """The text below a heading of a page, up to the next of its kind, on one line."""
    text = (PAGES / f"{page}.md").read_text()
    return " ".join(text.partition(f"## {title}\n")[2].partition("\n## ")[0].split())


def stated(page: str) -> list[list[str]]:
    """The cells of every row of a page's tables."""
    lines = (PAGES / f"{page}.md").read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


def test_the_runs_of_the_real_model_are_those_of_its_table() -> None:
    table = rows_of("real_model_runs.csv")[1:]
    runs = [row[2:] for row in stated("real-model-study") if len(row) > 9 and row[2].isdigit()]
    assert len(runs) == len(table) == 16
    for steps, before, after, gain, first, last, states, *true in runs:
        (own,) = (row for row in table if (row[4], *row[5:8], row[14]) == (steps, before, after, gain, first))
        assert (own[15], own[11]) == (last, states) and own[14 - len(true) : 14] == true, own


def test_the_table_of_the_real_model_is_that_of_the_condensed_runs() -> None:
    table = {row[0]: row for row in rows_of("real_model_runs.csv")[1:]}
    runs = read(FOLDER / "real_model.parquet")
    assert len(runs) == len(table)
    for run in runs:
        (own,) = (row for name, row in table.items() if name == run["name"])
        probed = [mi for mi in run["tables"]["rows"]["probe_mi"] if mi is not None]
        assert (own[1], own[4]) == (str(run["seed"]), str(run["steps"])), own
        assert own[14] == f"{probed[0]:.2f}" and own[15] == f"{run['probe']['mi']:.2f}", own
        assert run["tables"]["reasonings"]["step"], "the reasonings of the first and of the last step"


def test_the_figures_of_the_collapse_study_are_those_of_its_arms() -> None:
    cells = {cell for row in rows_of("collapse_arms.csv") for cell in row}
    found = set(INTERVAL.findall(section("findings", "The collapse study")))
    of_claims = {"-0.012 [-0.070, 0.045]"}
    assert len(found) > 5 and found - cells == of_claims


def test_no_bucket_of_the_demo_has_a_signal() -> None:
    head, *rows = rows_of("gradients_on_the_demo.csv")
    signals = [row[head.index("signal^2 +- error")].split(" +- ") for row in rows]
    assert len(rows) == 6 and all(float(value) < 2 * float(error) for value, error in signals)
    assert all(float(one[1]) < float(two[1]) for one, two in pairwise(rows))
    assert "no bucket's signal is two standard errors above 0" in section(
        "findings", "Weak gradients of prompts with little variance"
    )


@pytest.mark.parametrize("policy", ["before training", "healthy", "every `Left` pays"])
def test_the_interventions_on_the_page_are_those_of_the_table(policy: str) -> None:
    own = [row for row in rows_of("interventions.csv")[1:] if row[0].startswith(policy)]
    (page,) = [row for row in stated("alarms") if row[0].startswith(policy) and len(row) == 5]
    for column, place in ((2, 1), (3, 2), (4, 3), (6, 4)):
        values = [float(row[column].split(" [")[0]) for row in own]
        said = [float(number) for number in re.findall(r"-?\d+\.?\d*", re.sub(r"\[.*?\]", "", page[place]))]
        assert {min(values), max(values)} == {min(said), max(said)}, (policy, column)
