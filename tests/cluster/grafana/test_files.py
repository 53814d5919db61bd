"""Exported files are those that ship, Grafana's provisioning points to them, and somebody's own file is kept."""

import json
import re
from pathlib import Path

import pytest
import yaml

from squelch.cluster.cli import main
from squelch.cluster.grafana import boards, kubernetes
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


def runbooks(rules: dict) -> list[str]:
    return [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]


def test_with_the_address_of_the_docs_alerts_and_panels_lead_there(tmp_path: Path) -> None:
    assert export(tmp_path, "--docs", "https://example.com/docs/") == 0
    rules, shipped = (yaml.safe_load(text) for text in ((tmp_path / "alerts.yml").read_text(), boards.rules()))
    assert (
        runbooks(rules) == [f"https://example.com/{path}" for path in runbooks(shipped)] and len(runbooks(rules)) > 20
    )
    for name in boards.NAMES:
        (old,) = (one for one in boards.trees()[name]["templating"]["list"] if one["name"] == "docs")
        board = (tmp_path / "dashboards" / f"{name}.json").read_text()
        assert json.loads(board.replace('"https://example.com/docs"', json.dumps(old["query"]))) == boards.trees()[name]
        assert board.count('"https://example.com/docs"') == 1


def test_links_into_the_built_site_end_as_its_pages_do(tmp_path: Path) -> None:
    assert export(tmp_path, "--docs", "https://example.com/docs/*.html") == 0
    rules = yaml.safe_load((tmp_path / "alerts.yml").read_text())
    assert all(re.match(r"https://example.com/docs/guide/\w+\.html#", one) for one in runbooks(rules))
    for name in boards.NAMES:
        board = (tmp_path / "dashboards" / f"{name}.json").read_text()
        assert "${docs}/guide/" in board and not re.search(r"\$\{docs\}\S*\.md", board)
        assert '"https://example.com/docs"' in board


def test_an_export_holds_the_rules_and_dashboards_as_objects_of_kubernetes_too(tmp_path: Path) -> None:
    assert export(tmp_path, "--docs", "https://example.com/docs", "--label", "release=monitoring") == 0
    text = (tmp_path / "kubernetes.yaml").read_text()
    objects = list(yaml.safe_load_all(text))
    assert objects == kubernetes.objects("https://example.com/docs", {"release": "monitoring"})
    assert [one["kind"] for one in objects] == ["PodMonitor", "PrometheusRule", *["ConfigMap"] * 4]
    assert objects[1]["spec"] == yaml.safe_load((tmp_path / "alerts.yml").read_text())
    for name, board in zip(boards.NAMES, objects[2:], strict=True):
        (content,) = board["data"].values()
        assert content == (tmp_path / "dashboards" / f"{name}.json").read_text() and content.splitlines()[1] in text
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(board)) < 2**18, "`kubectl apply` keeps an object in an annotation, which has a bound"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--docs", "docs/guide"), "--docs 'docs/guide' is not an address"),
        (("--docs", "https://example.com/*/docs"), "and only at the end, as in https://example.com/docs/*.html"),
        (("--docs", "https://example.com/*.html/docs"), "and only at the end"),
        (("--docs", "https://example.com/docs/*"), "and only at the end"),
        (("--label", "release"), "is not KEY=VALUE"),
    ],
)
def test_a_wrong_address_or_label_is_refused_by_name(tmp_path: Path, capsys, words: tuple[str, ...], says: str) -> None:
    assert export(tmp_path / "out", *words) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


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
