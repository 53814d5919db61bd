"""`squelch inspect` from the command line: serves until Ctrl-C, and says what is wrong before it serves."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import uvicorn

from squelch.cluster.cli import main
from squelch.cluster.inspector.server import listen
from tests.cluster.inspector.small_run import small_run


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says when it refuses to start."""
    assert main(["inspect", *words]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_served_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "holds no run" in refused(capsys, str(tmp_path))
    folder = small_run(tmp_path / "small", 1)
    with listen("127.0.0.1", 0) as other:
        port = str(other.getsockname()[1])
        assert "choose a free port with --port" in refused(capsys, str(folder), "--port", port)
    assert "from 0 to 65535" in refused(capsys, str(folder), "--port", "70000")
    assert "holds no run" in refused(capsys, str(folder), "--compare", str(tmp_path))
    assert "tells them apart by name" in refused(capsys, str(folder), "--port", "0", "--compare", str(folder))
    monkeypatch.setenv("SQUELCH_INSPECT_TOKEN", "short")
    assert "at least 16" in refused(capsys, str(folder), "--port", "0")
    monkeypatch.delenv("SQUELCH_INSPECT_TOKEN")
    index = folder / "groups" / "index-000000.parquet"
    pq.write_table(pq.read_table(index).replace_schema_metadata({"squelch.schema": "9"}), index)
    assert "schema 9" in refused(capsys, str(folder), "--port", "0")
    index.write_bytes(b"PAR1")
    said = refused(capsys, str(folder), "--port", "0")
    assert "index-000000.parquet" in said and len(said.splitlines()) == 1


def test_the_address_is_printed_with_the_token_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_run(tmp_path / "small", 1)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    words = ["inspect", str(folder), "--host", "0.0.0.0", "--port", "0"]
    assert main(words) == 0
    assert re.search(r"/\?token=[\w-]{32}  ", capsys.readouterr().out)
    monkeypatch.setenv("SQUELCH_INSPECT_TOKEN", "of-the-users-own-choice")
    assert main(words) == 0
    assert "/?token=$SQUELCH_INSPECT_TOKEN  " in capsys.readouterr().out, "a log of the output must not hold it"


def test_a_run_folder_whose_metrics_are_damaged_is_refused_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_run(tmp_path / "small", 1)
    (folder / "metrics.jsonl").write_text('{"step": "one"}\n')
    assert "metrics.jsonl" in refused(capsys, str(folder), "--port", "0")


@pytest.mark.slow
def test_the_command_serves_a_half_written_run_until_it_is_interrupted(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "small", 2)
    (folder / "groups" / ".step-000003.parquet.partial").write_bytes(b"half")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "suc')
    command = [sys.executable, "-m", "squelch.cluster.cli", "inspect", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with urllib.request.urlopen(f"{address.split('?')[0].rstrip('/')}/groups", timeout=180) as answer:
            found = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=180)
        server.send_signal(signal.SIGINT)
        assert server.wait(180) in (0, 130)
    assert "000002-003" in found
