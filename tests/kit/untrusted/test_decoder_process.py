"""What another interpreter decodes arrives as it is there, within a bound, and whatever ends it is an error."""

import datetime
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from squelch.kit.untrusted.decoder_process import apart, bounded_reading
from squelch.kit.untrusted.files import Unreadable

VALUES = [1, -0.5, math.inf, "ä\n\ud800", None, True, {"a": [b"\0\xff", {"b": b""}]}, {"\0bytes": [1]}]


def items() -> Iterator[Any]:
    """What a table may hold."""
    yield VALUES
    yield datetime.date(2026, 11, 29)


def facts(count: int) -> Iterator[tuple[int, str]]:
    """The process, and its allocator, so often."""
    import pyarrow as pa

    for _ in range(count):
        print("this is no part of the answer")
        yield os.getpid(), pa.default_memory_pool().backend_name


def faulty(way: str) -> Iterator[int]:
    """Ends badly after an item."""
    yield 1
    if way == "refuses":
        raise Unreadable("FILE, row 1: is bad")
    if way == "takes memory":
        bytearray(2**31)
    if way == "is a mistake":
        raise KeyError("missing")
    os.kill(os.getpid(), signal.SIGABRT)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_values_arrive_as_they_are_and_others_as_text() -> None:
    assert list(apart("FILE", items)) == [VALUES, "2026-11-29"]


@pytest.mark.parametrize("allocator", ["mimalloc", "jemalloc"])
def test_the_interpreter_has_the_c_librarys_allocator_and_this_process_keeps_its_environment(
    allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", allocator)
    before = dict(os.environ)
    with bounded_reading("FILE"):
        [(_, backend)] = apart("FILE", facts, 1)
    assert backend == "system" and dict(os.environ) == before


def test_a_block_has_one_interpreter_which_ends_with_it() -> None:
    with bounded_reading("FILE"):
        [(first, _)] = apart("FILE", facts, 1)
        beside = apart("FILE", facts, 2)
        assert next(beside)[0] == first
        [(second, _)] = apart("FILE", facts, 1)
        assert second != first, "one request is under way in the first"
        assert alive(first) and alive(second)
    beside.close()
    assert not alive(first) and not alive(second)


def test_an_answer_that_is_not_read_to_its_end_ends_the_interpreter() -> None:
    answer = apart("FILE", facts, 10**9)
    process, _ = next(answer)
    answer.close()
    assert not alive(process)


@pytest.mark.parametrize(
    ("way", "kind", "said"),
    [
        ("refuses", Unreadable, "FILE, row 1: is bad"),
        ("takes memory", Unreadable, "FILE: reading takes more than 1024 MiB of memory; give less data"),
        ("is a mistake", RuntimeError, "KeyError: 'missing'"),
        ("aborts", Unreadable, "FILE: the process that reads it was ended by SIGABRT"),
    ],
)
def test_an_interpreter_that_fails_is_an_error(way: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        list(apart("FILE", faulty, way))
    assert said in str(caught.value)


def test_an_allocation_that_fails_in_native_code_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen

    def aborting(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        said = "terminate called after throwing an instance of 'std::bad_alloc'"
        return started(["/bin/sh", "-c", f'read line; echo "{said}" >&2; kill -ABRT $$'], **options)

    monkeypatch.setattr(subprocess, "Popen", aborting)
    with pytest.raises(Unreadable, match="FILE: reading takes more than 1024 MiB of memory; give less data"):
        list(apart("FILE", facts, 1))
