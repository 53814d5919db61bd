"""The pictures of the dashboards come from a real Prometheus that holds a run's metrics."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from squelch.cluster.grafana.boards import shipped
from squelch.deploy import board_pictures
from tests.cluster.report.synthetic import Made, write_run
from tests.prometheus import need_prometheus

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_command_draws_every_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_prometheus("promtool")
    run = write_run(tmp_path, Made("a", steps=8))
    monkeypatch.setattr(sys, "argv", ["board_pictures", str(run), str(tmp_path)])
    board_pictures.main()
    reasoning = (tmp_path / "dashboard-reasoning.svg").read_text()
    drawn = {f"dashboard-{name}.svg" for name in shipped()} | {"reasoning-view.svg"}
    assert {path.name for path in tmp_path.glob("*.svg")} == drawn
    assert "Retrieval accuracy" in reasoning and "first_turn" in reasoning


def test_a_folder_that_is_no_run_is_refused_in_a_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["board_pictures", str(tmp_path / "none"), str(tmp_path)])
    with pytest.raises(SystemExit):
        board_pictures.main()
    assert "none does not exist; give a run's folder" in capsys.readouterr().err


def test_the_committed_pictures_are_of_a_real_run_and_load_nothing() -> None:
    for name, board in shipped().items():
        text = (DOCS / f"dashboard-{name}.svg").read_text(encoding="utf-8")
        ElementTree.fromstring(text.encode())
        assert board.rows[0].title in text
        assert not re.search(r"(?:href|src)=\"http|url\(http|@import|<script", text)
