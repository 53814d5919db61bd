"""One driver to a run folder."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from squelch.cluster.runs.driver import FILE, Driver, is_driven
from squelch.kit.base.errors import UserError


def quiet(_: str) -> None:
    """Says nothing."""


def test_a_second_driver_is_refused_by_name_until_the_first_ends(tmp_path: Path) -> None:
    """Found by a reviewer: two processes truncated one archive and wrote to it."""
    first, second = Driver(tmp_path / "run"), Driver(tmp_path / "run")
    first.hold(quiet)
    first.hold(quiet)
    with pytest.raises(UserError, match=rf"run: process {os.getpid()} on .* drives this run. Follow it with"):
        second.hold(quiet)
    first.close()
    second.hold(quiet)
    second.close()


def test_the_lock_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from squelch.cluster.runs.driver import Driver\n"
    code += f"Driver(Path({str(tmp_path)!r})).hold(print); print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {other.pid} on"):
            Driver(tmp_path).hold(quiet)
        assert is_driven(tmp_path) is True
        other.kill()
        other.wait()
        assert is_driven(tmp_path) is False
        own = Driver(tmp_path)
        own.hold(quiet)
        own.close()


def test_a_file_system_without_locks_is_said_and_does_not_end_the_run(tmp_path: Path, monkeypatch) -> None:
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    said: list[str] = []
    Driver(tmp_path).hold(said.append)
    assert len(said) == 1 and "cannot be locked" in said[0] and "no other process drives this run" in said[0]


def test_a_link_in_place_of_the_lock_is_refused_and_what_it_leads_to_is_untouched(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / FILE).symlink_to(kept)
    with pytest.raises(UserError, match=r"\.driver: cannot be written"):
        Driver(tmp_path).hold(quiet)
    assert kept.read_text() == "mine"


def test_a_reader_learns_whether_a_process_drives_the_run_and_leaves_the_lock_free(tmp_path: Path) -> None:
    assert is_driven(tmp_path) is None, "a run that is copied from elsewhere may have no lock file"
    own = Driver(tmp_path)
    own.hold(quiet)
    assert is_driven(tmp_path) is True
    own.close()
    assert is_driven(tmp_path) is False
    own.hold(quiet)
    own.close()


def test_a_lock_that_cannot_be_judged_says_nothing_of_the_driver(tmp_path: Path, monkeypatch) -> None:
    for text in ("", f"process 7 on not-{socket.gethostname()}\n"):
        (tmp_path / FILE).write_text(text)
        assert is_driven(tmp_path) is None, "a driver on another host may hold a lock that is not seen here"
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert is_driven(tmp_path) is None
    (tmp_path / FILE).unlink()
    Driver(tmp_path).hold(quiet)

    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    assert is_driven(tmp_path) is None


def test_a_driver_starts_although_a_reader_tests_the_lock_at_that_moment(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with open(tmp_path / FILE, "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        freed = list[bool]()
        free = threading.Timer(0.05, lambda: (freed.append(True), fcntl.flock(reader, fcntl.LOCK_UN)))
        free.start()
        own = Driver(tmp_path)
        own.hold(quiet)
        assert freed
        own.close()
        free.join()
