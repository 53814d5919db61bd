"""`squelch train` with a store: what the end of a run writes is in the store too."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.commands.existing_runs import report
from squelch.cluster.config import RunConfig
from squelch.cluster.loop import run
from squelch.cluster.loop.persistence.uploading import Uploads
from squelch.cluster.runs.in_store.manifest import newest
from squelch.kit.archive.store import LocalStore
from squelch.kit.process.signals import Interrupted


def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report_of: Callable[[Path], None], *words: str) -> int:
    """The exit code of a run that records one step and whose report `report_of` writes; `words`: further overrides."""

    def trained(config: RunConfig, resume: bool, driver: object, uploads: Uploads | None, *_: object) -> int:
        config.run_dir.mkdir(parents=True)
        (config.run_dir / "metrics.jsonl").write_text('{"step": 1}\n')
        assert uploads is not None
        uploads.begin()
        return 0

    (tmp_path / "store").mkdir()
    monkeypatch.setattr(run, "_run", trained)
    monkeypatch.setattr(report, "after_the_run", lambda run_dir, _: report_of(run_dir))
    places = [f"runs_dir={tmp_path / 'scratch'}", f"store={tmp_path / 'store'}", "name=it"]
    return main(["train", "frozenlake", *places, *words])


def test_the_store_has_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(run_dir: Path) -> None:
        (run_dir / "report-data").mkdir()
        (run_dir / "report-data" / "dynamics.csv").write_text("step\n")
        (run_dir / "report.html").write_text("page")

    assert train(monkeypatch, tmp_path, write) == 0
    stored = newest(LocalStore(tmp_path / "store" / "it")).files
    assert {"metrics.jsonl", "report.html", "report-data/dynamics.csv"} <= stored.keys()


def test_the_start_names_the_preset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, tmp_path, lambda _: None, "preset=paper") == 0
    assert "`squelch config frozenlake preset=paper` lists them" in capsys.readouterr().out


def test_a_report_that_is_interrupted_loses_no_upload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(run_dir: Path) -> None:
        (run_dir / "summary.json").write_text("{}")
        raise Interrupted(signal.SIGINT)

    assert train(monkeypatch, tmp_path, interrupted) == 130
    assert "summary.json" in newest(LocalStore(tmp_path / "store" / "it")).files
