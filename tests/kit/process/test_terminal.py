"""The terminal shows what it is sent and obeys none of it; output that cannot be written is no traceback."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.cli import _show_bug, main
from squelch.kit.process import terminal
from squelch.kit.process.terminal import MAX_PARAGRAPH, aligned, complain, one_line, say, say_json, visible

ROOT = Path(__file__).parents[3]


@given(st.text(st.characters(), max_size=50))
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    shown = visible(text)
    assert all(c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160) for c in shown)
    assert not any(0xD800 <= ord(c) < 0xE000 or c in "\u202e\u2066\u200b\u2028" for c in shown)
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def test_plain_text_is_shown_as_it_is_and_escapes_are_made_visible(capsys: pytest.CaptureFixture[str]) -> None:
    assert visible("é 漢 😀 a\tb\nc … H(Z|X) ≥ 1") == "é 漢 😀 a\tb\nc … H(Z|X) ≥ 1"
    say("a\x1b[2J\x9b1m\r\u202eb")
    assert capsys.readouterr().out == "a\\x1b[2J\\x9b1m\\r\\u202eb\n"
    assert aligned([["a\nb", "c"], ["d", "e"]]) == ["a\\nb  c", "d     e"]


def test_an_error_is_one_paragraph_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    complain("squelch: a\n  b\n" + "x" * 10**6)
    shown = capsys.readouterr().err
    assert shown.startswith("squelch: a b xxx") and shown.count("\n") == 1 and len(shown) <= MAX_PARAGRAPH + 1


@pytest.mark.parametrize("words", [["status", "\x1b[31m"], ["config", "frozenlake", "name=\x1b[31m"], ["\x1b[31m"]])
def test_what_a_command_quotes_is_shown_visibly(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(words) == 2
    except SystemExit as ended:
        assert ended.code == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\\x1b[31m" in shown


def test_a_printed_configuration_masks_the_password_of_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://user:hunter22@127.0.0.1:9/r?api_key=k3y3k3y3"
    assert main(["config", "searchqa", f"environment.options={{retriever_url: '{url}'}}"]) == 0
    shown = capsys.readouterr().out
    assert "http://***@127.0.0.1:9/r?api_key=***" in shown and "hunter22" not in shown and "k3y3" not in shown


def test_json_stays_json_where_a_secret_is_masked(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", 'hunter22"\n')
    texts = ['<a href="https://x/?api_key=k3y3k3y3">', 'https://u:hunter22@x/ "', 'it is hunter22"\n']
    say_json({"texts": texts, "https://x/?token=k3y3k3y3": {"rows": (1, 2.5, None)}})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {
        "texts": ['<a href="https://x/?api_key=***">', 'https://***@x/ "', "it is ***\n"],
        "https://x/?token=***": {"rows": [1, 2.5, None]},
    }


def test_a_bug_that_quotes_a_file_is_shown_visibly(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("\x1b[31m at http://u:hunter22@h/")
    _show_bug(RuntimeError, error, None)
    assert capsys.readouterr().err == "RuntimeError: \\x1b[31m at http://***@h/\n\n"


@pytest.mark.slow
@pytest.mark.parametrize(("stdout", "code"), [(subprocess.PIPE, 0), ("/dev/full", 2)])
def test_help_is_printed_to_any_stdout_or_an_error_says_why_not(stdout: object, code: int) -> None:
    """The help of `filter` has characters that ASCII lacks."""
    target = open(stdout, "w") if isinstance(stdout, str) else stdout  # noqa: SIM115  (closed with the test's process)
    words = [sys.executable, "-m", "squelch.cluster.cli", "filter", "--help"]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        stdout=target,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code and "Traceback" not in done.stderr


def command(tmp_path: Path, **streams: object) -> subprocess.CompletedProcess[str]:
    np.savez(tmp_path / "r.npz", rewards=np.array([[0.0, 1.0], [1.0, 1.0]]))
    words = [sys.executable, "-m", "squelch.cluster.cli", "filter", str(tmp_path / "r.npz")]
    return subprocess.run(words, cwd=ROOT, text=True, timeout=180, check=False, stderr=subprocess.PIPE, **streams)


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_said(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = command(tmp_path, stdout=full)
    assert done.returncode == 2
    assert done.stderr.strip() == "squelch: standard output cannot be written: No space left on device"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = command(tmp_path, stdout=writing)
    os.close(writing)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def squelch(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it."""
    command = f"{sys.executable} -m squelch.cluster.cli {words}"
    known = {**os.environ, **environment}
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=known, timeout=180, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_that_the_caller_has_closed_is_no_traceback(closed: str) -> None:
    done = squelch(f"config frozenlake filter.rho=0.3 {closed}")
    assert done.returncode == 0 and done.stderr == ""
    assert ("rho: 0.3" in done.stdout) is (">&-" not in closed.split())


def test_a_legacy_locale_does_not_refuse_words_beyond_ascii(tmp_path: Path) -> None:
    (tmp_path / "ö.yaml").write_text("extends: frozenlake\n", encoding="utf-8")
    legacy = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = squelch(f"config {tmp_path}/ö.yaml runs_dir=ü", **legacy)
    assert done.returncode == 0 and r'runs_dir: "\xFC"' in done.stdout


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_long_is_said_on_a_terminal_until_somebody_else_says_it(monkeypatch, is_terminal: bool) -> None:
    said = Queue[str]()
    monkeypatch.setattr(terminal, "EVERY_S", 0.02)
    monkeypatch.setattr(terminal, "remark", said.put)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: is_terminal))
    with terminal.not_silent("reading the settings") as shown:
        if is_terminal:
            assert said.get(timeout=180.0) == "reading the settings (0 s so far)"
        else:
            time.sleep(0.1)
        shown()
        time.sleep(0.1)
        while not said.empty():
            assert is_terminal and said.get() == "reading the settings (0 s so far)"
        time.sleep(0.1)
        assert said.empty()
