"""The bank of live runs: its plan follows the catalogue of checks, and the pages say what its table says."""

import pytest

from research.check_bank.plan import CELLS
from research.check_bank.study import KINDS, RESULTS, expected_in, main, outcome, summary
from research.judging import PAGES
from research.tables import read_csv
from squelch.kit.checks.catalogue import checks


def test_every_cell_expects_faults_that_some_form_can_show() -> None:
    for cell in CELLS.values():
        assert {*cell.expects, *cell.also} <= set(checks()) and (not cell.expects or cell.fault), cell.name
        forms = ("trl", "columns", "verl", "nemo_rl", "slime", "verifiers", "squelch")
        assert not cell.expects or any(expected_in(cell, form) for form in forms), cell.name


def test_a_fault_that_needs_weights_is_expected_where_the_checkpoints_are_given() -> None:
    assert expected_in(CELLS["stale-5"], "columns") == ["stale_weights"]
    assert expected_in(CELLS["stale-1"], "verifiers") == ["stale_weights", "recorded_versions"]
    assert expected_in(CELLS["stale-5"], "slime") == expected_in(CELLS["stale-5"], "trl") == []


@pytest.mark.parametrize(
    ("expected", "verdict", "faults", "kind"),
    [
        ("a", "fault", "a", "found"),
        ("a", "fault", "a c", "found"),
        ("", "", "", "silent"),
        ("", "", "c", "silent"),
        ("a", "unknown", "", "unknown"),
        ("a", "sound", "", "missed"),
        ("a", "sound", "c", "missed"),
        ("a b", "fault sound", "a", "found"),
        ("a", "fault", "a b", "wrong"),
        ("", "", "b", "wrong"),
    ],
)
def test_an_outcome_is_told_from_what_was_expected(expected, verdict, faults, kind) -> None:
    row = {"expected": expected, "also": "c", "verdict": verdict, "faults": faults}
    assert outcome(row) == kind and kind in KINDS


def test_no_file_of_the_table_has_a_fault_that_was_not_planted_and_every_run_is_planned() -> None:
    rows = read_csv(RESULTS)
    assert rows and {row["cell"] for row in rows} <= set(CELLS)
    assert [(row["cell"], row["form"], row["faults"]) for row in rows if outcome(row) == "wrong"] == []


def test_the_page_of_results_says_what_the_table_says(capsys) -> None:
    said = summary(read_csv(RESULTS))
    assert said in (PAGES / "results.md").read_text(), "run: python -m research.check_bank, and put this there"
    assert main([]) == 0 and said in capsys.readouterr().out
    assert main(["--json"]) == 0 and '"checked"' in capsys.readouterr().out
