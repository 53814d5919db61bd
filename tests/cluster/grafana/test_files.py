"""Exported files are those that ship, Grafana's provisioning points to them, and somebody's own file is kept."""

import json
from pathlib import Path

import pytest
import yaml

from squelch.cluster.cli import main
from squelch.deploy.dashboards import ROOT


def export(folder: Path, *words: str) -> int:
    return main(["dashboards", "export", str(folder), *words])


def test_an_export_holds_the_dashboards_the_provisioning_and_the_rules(tmp_path: Path) -> None:
    assert export(tmp_path, "--prometheus", "http://prometheus:9090", "--mount", "/boards") == 0
    shipped = {path.name: path.read_text() for path in (ROOT / "squelch/deploy/grafana").glob("*.json")}
    assert {path.name: path.read_text() for path in (tmp_path / "dashboards").iterdir()} == shipped
    provider = yaml.safe_load((tmp_path / "provisioning/dashboards/squelch.yml").read_text())["providers"][0]
    source = yaml.safe_load((tmp_path / "provisioning/datasources/squelch.yml").read_text())["datasources"][0]
    assert provider["options"] == {"path": "/boards"} and source["url"] == "http://prometheus:9090"
    assert (tmp_path / "alerts.yml").read_text() == (ROOT / "squelch/deploy/alerts.yml").read_text()


def test_the_provisioning_has_the_form_of_the_one_that_the_compose_file_mounts(tmp_path: Path) -> None:
    export(tmp_path, "--prometheus", "http://head:9090")
    for kind, name in (("dashboards", "squelch.yml"), ("datasources", "prometheus.yml")):
        mounted = yaml.safe_load((ROOT / "deploy/compose/provisioning" / kind / name).read_text())
        written = yaml.safe_load((tmp_path / "provisioning" / kind / "squelch.yml").read_text())
        (key,) = mounted.keys() - {"apiVersion"}
        assert mounted.keys() == written.keys()
        assert written[key][0].keys() <= mounted[key][0].keys()


def test_a_file_of_somebody_elses_is_kept_unless_it_is_to_be_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tmp_path)
    assert export(tmp_path) == 0 and "up to date" in capsys.readouterr().out
    board = tmp_path / "dashboards" / "signal.json"
    board.write_text(json.dumps({"title": "mine"}))
    (tmp_path / "alerts.yml").unlink()
    assert export(tmp_path) == 2 and str(board) in capsys.readouterr().err
    assert "mine" in board.read_text() and not (tmp_path / "alerts.yml").exists()
    assert export(tmp_path, "--overwrite") == 0 and "mine" not in board.read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert export(tmp_path / "file") == 2 and str(tmp_path / "file") in capsys.readouterr().err
