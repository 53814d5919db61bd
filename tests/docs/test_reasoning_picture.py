"""The docs' picture of a dashboard comes from a real Prometheus that holds a run's metrics."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.writers import reasoning_picture
from squelch.cluster.grafana.boards import shipped
from tests.cluster.report.synthetic import Made, write_run
from tests.prometheus import need_prometheus

COMMITTED = Path(__file__).parents[2] / "docs/reasoning-view.svg"


@pytest.mark.slow
def test_the_tool_draws_the_first_rows_over_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_prometheus("promtool")
    run, out = write_run(tmp_path, Made("a", steps=8)), tmp_path / "out.svg"
    monkeypatch.setattr(sys, "argv", ["reasoning_picture", str(run), str(out)])
    reasoning_picture.main()
    drawn, rows = out.read_text(), shipped()["reasoning"].rows
    assert "Retrieval accuracy" in drawn and "first_turn" in drawn
    assert [row.title in drawn for row in rows] == [place < reasoning_picture.NUM_ROWS for place in range(len(rows))]


def test_a_folder_that_is_no_run_is_refused_in_a_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["reasoning_picture", str(tmp_path / "none"), str(tmp_path / "out.svg")])
    with pytest.raises(SystemExit):
        reasoning_picture.main()
    assert "none does not exist; give a run's folder" in capsys.readouterr().err


def test_the_committed_picture_is_of_a_real_run_and_loads_nothing() -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    ElementTree.fromstring(text.encode())
    assert shipped()["reasoning"].rows[0].title in text
    assert not re.search(r"(?:href|src)=\"http|url\(http|@import|<script", text)
