"""docs/research/paper.md names a place for every part of the paper, and each place exists."""

import re
from pathlib import Path

import pytest

from research.judging import interval
from research.tables import FOLDER, read
from squelch.cluster.sweep.table import text

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/research/paper.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| part |")
]
PARTS = " ".join(row[0] for row in ROWS)
SECTIONS = ("1,", "2.1", "2.2", "2.3", "3.1", "3.2", "3.3", "4.1", "4.2", "4.3", "5.1", "5.2", "6 ", "7 ")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_part_has_places_that_exist_or_says_that_it_has_none(row: list[str]) -> None:
    _, places, differs, _ = row
    named = re.findall(r"`([^`]+)`", places)
    assert named or (places == "-" and differs.startswith("Not here"))
    assert [place for place in named if not (ROOT / place).is_file()] == []


def test_every_section_figure_table_and_appendix_has_a_row() -> None:
    figures = {int(number) for number in re.findall(r"Figure (\d+)", PARTS)}
    tables = {int(number) for number in re.findall(r"Table (\d+)", PARTS)}
    appendices = {row[0][0] for row in ROWS if re.match(r"[B-N][. :]|[B-N]\.?\d", row[0])} | {"A"}
    assert figures == set(range(1, 14)) and tables == set(range(1, 6)) and "Eq. 1" in PARTS
    assert appendices == set("ABCDEFGHIJKLMN") and "appendix A" in PARTS
    assert [section for section in SECTIONS if not re.search(rf"(?:^|[ ,]){re.escape(section)}", PARTS)] == []


def test_the_validity_of_figure_12_at_low_mi_is_that_of_the_committed_runs() -> None:
    runs = [run for run in read(FOLDER / "real_model.parquet") if run["arm"] == "none_ent0.03"]
    valid = [run["tables"]["rows"]["format_validity"][-10:] for run in runs]
    assert f"validity {text(interval([sum(last) / len(last) for last in valid]))}" in TEXT
    mi = sorted(run["probe"]["mi"] for run in runs)
    assert f"an MI of {mi[0]:.2f} to {mi[-1]:.2f} nats" in TEXT and len(runs) == 5
