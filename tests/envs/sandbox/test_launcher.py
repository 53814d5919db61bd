"""The launcher's calls of C."""

import os

import pytest

from squelch.envs.sandbox.launcher import call


def test_a_call_that_fails_is_an_error_with_its_name_and_another_returns_its_result() -> None:
    with pytest.raises(OSError, match="close: Bad file descriptor"):
        call("close", -1)
    assert call("getppid") == os.getppid()
