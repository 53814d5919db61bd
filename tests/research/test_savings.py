"""What the filter saves, from pairs of condensed runs."""

from research.judging import PAGES
from research.kept import Kept
from research.savings import learned_from, tables


def test_groups_are_counted_by_block_up_to_the_last_step() -> None:
    blocks = {"step": [10, 20, 30], "kept_fraction": [1.0, 0.5, 0.25]}
    run = Kept("a", "lead", "sokoban", "top_p", 0, 25, {"blocks": blocks}, {})
    assert learned_from(run) == 8 * (10 + 5 + 0.25 * 5)


def test_the_tables_of_the_findings_are_those_of_the_runs() -> None:
    page = (PAGES / "findings.md").read_text()
    assert [table for table in tables() if table not in page] == [], "run: python -m research.savings"
