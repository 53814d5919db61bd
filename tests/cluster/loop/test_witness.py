"""A driver that Ray's client ends without a word has its cause and its summary all the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from squelch.cluster.config import dump, load
from squelch.cluster.loop.witness import ENDED, PROCESS
from squelch.kit.archive.writer import Archive

DRIVER = "process 4242 on here"
BROKEN = (
    "[2026-11-27 15:30:11,246 W 4242 4242] connection.cc:216: The connection to the plasma store is failed. Terminate "
    "the process. Status: IOError: Broken pipe"
)


def witnessed(tmp_path: Path, log: str, sent: bytes) -> str:
    """What the process prints once the driver is gone."""
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    Archive(config.run_dir).metrics(3, {})
    (config.run_dir / "config.yaml").write_text(dump(config))
    (tmp_path / "python-core-driver-0100ff_4242.log").write_text(f"[state-dump] ...\n{log}\n")
    command = [sys.executable, "-m", PROCESS, str(config.run_dir), str(tmp_path), DRIVER]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=180, check=True)
    return done.stdout.decode()


def test_the_cause_is_taken_from_the_log_of_rays_client(tmp_path: Path) -> None:
    said = witnessed(tmp_path, BROKEN, b"")
    assert said.startswith("failed: Ray's node, on which this run is driven, is gone") and said.count("\n") == 1
    assert "The connection to the plasma store is failed" in said
    summary = json.loads((tmp_path / "it" / "summary.json").read_text())
    assert (summary["end_cause"], summary["steps"], summary["driver"]) == ("failed", 3, DRIVER)
    assert (tmp_path / "it" / "log" / "failure.log").exists()


@pytest.mark.parametrize(("log", "sent"), [(BROKEN, ENDED), ("a killed driver has no last words", b"")])
def test_of_any_other_end_nothing_is_said(tmp_path: Path, log: str, sent: bytes) -> None:
    assert witnessed(tmp_path, log, sent) == ""
    assert not (tmp_path / "it" / "summary.json").exists()
