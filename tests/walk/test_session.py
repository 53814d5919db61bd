"""One shell for a page: what a command sets stays, a server ends, nothing is left behind."""

import os
import shutil
import sys
import uuid
from pathlib import Path

import pytest

from tests.walk.session import TOKEN, Late, Session, end_all, end_cluster, remains


@pytest.fixture
def token() -> str:
    return uuid.uuid4().hex


def session(folder: Path, token: str, python: Path | None = None) -> Session:
    return Session(folder, folder / "notes", {"PATH": os.environ["PATH"], TOKEN: token}, python)


def test_a_shell_keeps_variables_and_folders_and_gives_code_and_output(tmp_path: Path, token: str) -> None:
    shell = session(tmp_path, token)
    assert shell.run("export WORD=said; mkdir -p deep; cd deep", 60) == (0, "")
    assert shell.run('echo "$WORD" here; pwd >&2; false', 60) == (1, f"said here\n{tmp_path / 'deep'}\n")
    assert shell.run("cat", 60) == (0, ""), "commands have no input"
    shell.close()
    assert end_all(token, 10) == []


def test_a_server_ends_by_sigint_after_its_first_right_answer(tmp_path: Path, token: str) -> None:
    shell = session(tmp_path, token)
    served = "python3 -u -c 'import time; print(\"ready\"); time.sleep(600)'"
    code, said = shell.run(f"{served} 2>/dev/null", 120, lambda said: "ready" in said)
    assert (code, said) == (0, "ready\n")
    assert shell.run("sh -c 'kill -INT $$'", 120)[0] == 130
    assert shell.run("echo there", 120) == (0, "there\n")
    shell.close()


def test_what_a_page_leaves_behind_is_named_and_ended_also_in_another_session(tmp_path: Path, token: str) -> None:
    shell = session(tmp_path, token)
    shell.run("setsid sh -c 'touch up; exec sleep 600' & until [ -e up ]; do sleep 0.1; done", 60)
    shell.close()
    assert any("sleep 600" in name for name in end_all(token, 0)) and remains(token) == []


def test_of_a_cluster_that_a_page_has_started_only_rays_own_processes_are_ended(tmp_path: Path, token: str) -> None:
    raylet = tmp_path / "ray" / "raylet"
    raylet.parent.mkdir()
    shutil.copy(shutil.which("sleep"), raylet)
    shell = session(tmp_path, token)
    for program in (raylet, "sleep"):
        shell.run(f"{program} 600 & until grep -q {Path(program).name} /proc/$!/comm; do sleep 0.1; done", 60)
    shell.close()
    end_cluster(token)
    assert [name.split()[0] for name in end_all(token, 0)] == ["sleep"]


def test_a_command_that_does_not_end_is_late(tmp_path: Path, token: str) -> None:
    shell = session(tmp_path, token)
    with pytest.raises(Late, match="it said:\nso far"):
        shell.run("echo so far; sleep 600", 1)
    shell.close()
    end_all(token, 0)


def test_a_python_keeps_its_names_and_shows_a_traceback(tmp_path: Path, token: str) -> None:
    python = session(tmp_path, token, Path(sys.executable))
    assert python.run("import os\nfound = 6 * 7\nprint(found)", 60) == (0, "42\n")
    code, said = python.run("print(found)\nos.system('echo below')\nraise ValueError('x')", 60)
    assert code == 1 and said.startswith("42\nbelow\nTraceback") and "ValueError: x" in said
    assert python.run("print(1)", 60) == (0, "1\n")
    python.close()
