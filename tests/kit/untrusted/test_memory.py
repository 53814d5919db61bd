"""Reading that takes too much memory ends in an error that names the file, and the limit ends with the block."""

import resource

import pytest

from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.memory import memory_of_at_most


def test_too_much_memory_is_an_error_that_names_the_file() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(Unreadable, match="it: reading takes more than 64 MiB"), memory_of_at_most("it", 2**26):
        bytearray(2**28)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(2**28)) == 2**28


def test_little_memory_is_no_error() -> None:
    with memory_of_at_most("it", 2**26):
        assert len(bytearray(2**24)) == 2**24
