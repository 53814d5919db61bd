"""Readers of files stand the first inputs of the fuzzer, and the fuzzer finds what it looks for."""

import time

import pytest

from benchmarks.fuzz import summary
from squelch.kit.untrusted.files import Unreadable
from tests.fuzz.in_process_worker import content, run
from tests.fuzz.readers import TARGETS
from tests.fuzz.target import NAME, Target

INPUTS = 15


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_inputs_are_read_or_refused(target: Target) -> None:
    found = run(target, 0, range(INPUTS))
    assert found.inputs == INPUTS and found.faults == []


def test_an_input_is_a_function_of_its_seed_and_number() -> None:
    for target in TARGETS:
        assert content(target, 1, 2) == content(target, 1, 2)
    assert len({content(TARGETS[0], 0, number) for number in range(20)}) > 10


def raising(error: Exception) -> Target:
    def read(_: object) -> None:
        raise error

    return Target("bad", NAME, lambda _: b"", read)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyError("x"), "KeyError at test_fuzz.py"),
        (ValueError("no name"), "ValueError at"),
        (MemoryError(), "MemoryError at"),
        (Unreadable("another file is damaged"), "does not name the file"),
        (Unreadable(NAME + "x" * 10_000), "a message of 10006 characters"),
    ],
)
def test_an_error_that_no_command_explains_is_a_fault(error: Exception, says: str) -> None:
    ((number, fault),) = run(raising(error), 0, range(7, 8)).faults
    assert number == 7 and says in fault


def test_a_refusal_that_names_the_file_is_none() -> None:
    found = run(raising(Unreadable(f"{NAME} is damaged")), 0, range(3))
    assert (found.inputs, found.refused, found.faults) == (3, 3, [])


def test_a_hang_is_a_fault_and_the_next_input_is_read() -> None:
    target = Target("slow", NAME, lambda _: b"", lambda _: time.sleep(5))
    found = run(target, 0, range(2), hang_s=0.05)
    assert [fault for _, fault in found.faults] == ["a hang: more than 0.05 s"] * 2
    assert summary([found], 3)["hangs"] == 2 and summary([found], 3)["every_fault"][0]["number"] == 0
