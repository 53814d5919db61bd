"""What other users may do with the files of a process, and what its children import."""

import getpass
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from squelch.actors.process.preparation import START_FOLDER, prepare, protect, settle


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's umask, folder and environment are as before after each test."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.chdir(".")
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize(("users", "left"), [(0o000, 0o644), (0o002, 0o644), (0o027, 0o640), (0o077, 0o600)])
@pytest.mark.parametrize("begin", [prepare, protect])
def test_others_may_not_write_and_the_users_umask_holds_otherwise(begin, users, left, tmp_path: Path) -> None:
    os.umask(users)
    begin()
    (tmp_path / "file").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == left


@pytest.mark.parametrize("begin", [prepare, protect])
def test_a_child_imports_nothing_from_the_current_folder(begin, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('code of a stranger')")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "json.tool", "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    begin()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_an_actor_works_in_the_folder_in_which_the_run_was_started(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv(START_FOLDER, str(tmp_path))
    prepare()
    assert Path.cwd() == tmp_path


def test_a_user_without_an_entry_and_a_home_gets_both(monkeypatch, tmp_path: Path) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    settle()
    home = Path.home()
    assert home.parent == tmp_path and stat.S_IMODE(home.stat().st_mode) == 0o700
    assert getpass.getuser() == f"user-{os.geteuid()}"
    monkeypatch.delenv("HOME")
    home.chmod(0o755)
    with pytest.raises(PermissionError, match=f"or set HOME: '{home}'"):
        settle()


def test_a_home_that_is_known_is_kept(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settle()
    assert Path.home() == tmp_path
