"""The collapse study: its page and its pictures are made from its table."""

from xml.etree import ElementTree

import pytest

from research import collapse
from research.collapse import PAGE, arm_of, cells, figure, markdown, picture_of, read_rows


def test_the_page_and_the_pictures_are_fresh() -> None:
    found = read_rows()
    assert PAGE.read_text() == markdown(found), "python -m research.collapse --write"
    for environment in ("FrozenLake", "Sokoban"):
        file = PAGE.parent / picture_of(environment)
        assert file.read_text() == figure(environment, found), "python -m research.collapse --write"


def test_the_last_success_of_every_arm_is_the_end_of_its_series() -> None:
    found = read_rows()
    last, shown = {}, {}
    for row in found:
        if row["figure"] == "success":
            last[arm_of(row)] = row["mean"]
        if row["figure"] == "last_success":
            shown[arm_of(row)] = row["mean"]
    assert len(shown) == 18 and shown == pytest.approx(last, abs=0.0015)


def test_what_was_not_recorded_is_said() -> None:
    found = [row for row in read_rows() if row["figure"] in ("mi", "gain") and row["environment"] == "Sokoban"]
    drawn = figure("Sokoban", found)
    assert ElementTree.fromstring(drawn.partition("?>")[2] or drawn) is not None
    assert drawn.count("not recorded") == 4 * len({(row["kl"], row["entropy"]) for row in found})
    assert cells(found)[0][4] == "-" and cells(found)[0][5] == "-0.091 [-0.191, +0.008]"


def test_quick_prints_the_table(capsys) -> None:
    assert collapse.main(["--quick"]) == 0
    assert "top_k 0.25, entropy 0.001, KL 0.001" in capsys.readouterr().out
