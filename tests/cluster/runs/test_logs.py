import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from squelch.actors.process.log import VARIABLE, log_variable
from squelch.cluster.runs.logs import one_paragraph, quiet, write_trace
from squelch.kit.base.errors import UserError

REMOTE = """\
start: rollout-0 failed: \x1b[36mray::RolloutWorker.ready()\x1b[39m (pid=7, ip=127.0.0.1, actor_id=ab)
  File "squelch/actors/rollout/worker.py", line 7, in ready
    return self.engine.ready()
           ^^^^^^^^^^^^^^^^^^^
RuntimeError: the engine
did not start"""


def print_everywhere(word: str) -> None:
    """As Python, a logger, a child process and a C library do it."""
    print(f"python {word}", file=sys.stderr)
    print(f"ray {word}")
    logging.getLogger("somebody").info("logger %s", word)
    subprocess.run([sys.executable, "-S", "-c", f"import os; os.write(2, b'child {word}\\n')"], check=True)
    ctypes.CDLL(None).dprintf(2, f"library {word}\n".encode())


def test_standard_error_goes_to_the_runs_folder_from_the_beginning(tmp_path: Path, capfd) -> None:
    with quiet() as taken:
        print_everywhere("early")
        taken.keep(tmp_path / "run")
        print_everywhere("late")
        taken.aloud(print)("for the user")
    print("afterwards", file=sys.stderr)
    shown = capfd.readouterr()
    assert shown.out == "for the user\n" and shown.err == "afterwards\n"
    lines = (tmp_path / "run" / "log" / "driver.log").read_text().splitlines()
    assert [line.split()[-2:] for line in lines] == [
        [who, when] for when in ("early", "late") for who in ("python", "ray", "logger", "child", "library")
    ]


def test_only_our_own_warnings_are_shown_as_they_happen(tmp_path: Path, capfd) -> None:
    with quiet() as taken:
        taken.keep(tmp_path)
        logging.getLogger("squelch.cluster.fleet.fleet").warning("env-0 died and\nis replaced")
        logging.getLogger("squelch.cluster.fleet.fleet").info("env-0 is back")
        logging.getLogger("elsewhere").warning("you should probably")
        assert capfd.readouterr().err == "env-0 died and is replaced\n"
    text = (tmp_path / "log" / "driver.log").read_text()
    assert all(part in text for part in ("env-0 died", "env-0 is back", "you should probably"))


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with quiet() as taken:
            taken.keep(tmp_path)
            print(word, file=sys.stderr)
    assert (tmp_path / "log" / "driver.log").read_text() == "first\nsecond\n"


def test_bad_input_or_a_stop_shows_nothing_and_an_unexpected_error_shows_what_was_held_back(capfd) -> None:
    for ending in (UserError("wrong key"), SystemExit(143)):
        with pytest.raises(type(ending)), quiet():
            print("a library's remark", file=sys.stderr)
            raise ending
        assert capfd.readouterr().err == ""
    with pytest.raises(KeyError), quiet():
        print("a library's remark", file=sys.stderr)
        raise KeyError
    assert capfd.readouterr().err == "a library's remark\n"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("os._exit(7)", "squelch: cut off: raylet: not ready"),
        ("os.kill(os.getpid(), 9)", "squelch: cut off: raylet: not ready"),
        ("raise SystemExit(7)", ""),
        ("pass", ""),
    ],
)
def test_a_process_that_a_library_ends_leaves_a_sentence_on_the_terminal(ending: str, said: str) -> None:
    program = f"""
import os
from squelch.cluster.runs.logs import quiet
with quiet("cut off"):
    os.write(2, b"first\\nraylet: \\x1bnot ready\\n")
    {ending}
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert found.stderr.strip() == said and found.stdout == ""


def test_an_actor_writes_to_its_own_file_and_so_do_its_children(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, actors.process.log as log; log.take_output(); print('said', flush=True); "
        "subprocess.run(['sh', '-c', 'echo child >&2']); os.abort()"
    )
    environment = {**os.environ, **log_variable(tmp_path, "rollout-0")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=180, check=False)
    assert done.stdout == done.stderr == b"" and done.returncode < 0
    text = (tmp_path / "rollout-0.log").read_text()
    assert "is rollout-0\n" in text and text.endswith("said\nchild\n")


def test_a_secret_that_an_actor_prints_or_raises_is_masked_in_its_file(tmp_path: Path) -> None:
    code = (
        "import os, sys, squelch.actors.process.log as log; log.take_output(); print('a', os.environ['HF_TOKEN']); "
        "sys.stderr.write(os.environ['HF_TOKEN']); raise ValueError(os.environ['HF_TOKEN'])"
    )
    environment = {**os.environ, **log_variable(tmp_path, "env-0"), "HF_TOKEN": "hf_s3cretvalue"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=180, check=False)
    text = (tmp_path / "env-0.log").read_text()
    assert "hf_s3cretvalue" not in text and text.count("***") == 3 and "ValueError: ***" in text


@pytest.mark.parametrize("value", ["", "/no/such/folder/env-0.log"])
def test_an_actor_that_has_no_file_writes_where_it_did(value: str) -> None:
    code = "import squelch.actors.process.log as log; log.take_output(); print('said')"
    environment = {**os.environ, VARIABLE: value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=180, check=True)
    assert done.stdout == b"said\n"


def test_a_remote_traceback_becomes_one_paragraph() -> None:
    assert one_paragraph(REMOTE) == "start: rollout-0 failed: RuntimeError: the engine did not start"
    assert one_paragraph("a\n  b") == "a b"


def test_the_trace_of_a_failure_is_kept_and_named(tmp_path: Path) -> None:
    assert write_trace(tmp_path, KeyError()).startswith("KeyError (trace: ")
    reported = write_trace(tmp_path, RuntimeError(REMOTE))
    assert reported.endswith(f"did not start (trace: {tmp_path / 'log' / 'failure.log'})") and "\n" not in reported
    assert 'File "squelch/actors/rollout/worker.py", line 7' in (tmp_path / "log" / "failure.log").read_text()
    (tmp_path / "log" / "failure.log").unlink()
    (tmp_path / "log" / "failure.log").mkdir()
    assert "its trace cannot be written: " in write_trace(tmp_path, ValueError("bad"))
