"""A lock file has one holder, who is named when the wait for the lock ends."""

import fcntl
import os

import pytest

from squelch.kit.base.file_lock import held


def test_waiting_for_a_holder_is_bounded_and_names_it(tmp_path):
    path = tmp_path / "held.lock"
    path.write_text("4321")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(ValueError, match=r"process 4321 has been building this index for 0\.3 s"),
            held(path, "building this index", 0.3),
        ):
            pass
    with held(path, "building this index", 0.3):  # free again, and its holder's name is the new one's
        assert path.read_text() == str(os.getpid())
