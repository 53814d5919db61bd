"""The time without a processor, of real processes that share one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from squelch.kit.process.processor_wait import ProcessorWait

SECONDS = 1.0
SPIN = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"
"""Busy on one processor."""
SLEEP = "import time\nprint(flush=True)\ntime.sleep(600)"
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"
BUSY_PARENT = """import subprocess, sys
subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE).stdout.readline()
"""


@pytest.fixture
def rivals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three processes that are busy on the same processor."""
    started = [begun(SPIN % min(os.sched_getaffinity(0))) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait(180)


def begun(program: str, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def waited(pid: int, itself: bool = True) -> float:
    wait = ProcessorWait(pid, itself)
    started = time.monotonic()
    time.sleep(SECONDS)
    share = wait.seconds() / (time.monotonic() - started)
    assert 0.0 <= share <= 1.0
    return share


def await_state(pid: int, state: str) -> None:
    """A process that is told to stop, or is about to sleep, first waits for a processor once more."""
    give_up = time.monotonic() + 180
    while psutil.Process(pid).status() != state:
        assert time.monotonic() < give_up, f"{psutil.Process(pid).status()} instead of {state}"
        time.sleep(0.01)


def test_a_process_that_shares_a_processor_waits_and_one_that_is_stopped_or_sleeps_does_not(rivals) -> None:
    assert waited(rivals[0].pid) > 0.3
    os.kill(rivals[0].pid, signal.SIGSTOP)
    await_state(rivals[0].pid, psutil.STATUS_STOPPED)
    assert waited(rivals[0].pid) == 0.0
    sleeper = begun(SLEEP)
    await_state(sleeper.pid, psutil.STATUS_SLEEPING)
    assert waited(sleeper.pid) == 0.0
    sleeper.kill()
    sleeper.wait(180)


def test_a_busy_process_whose_child_is_stopped_does_not_wait_if_only_the_child_works(rivals) -> None:
    """A worker that polls on a loaded machine must not excuse its frozen engine."""
    parent = begun(BUSY_PARENT + SPIN % min(os.sched_getaffinity(0)), SLEEP)
    try:
        [child] = psutil.Process(parent.pid).children()
        await_state(child.pid, psutil.STATUS_SLEEPING)
        assert waited(parent.pid) > 0.3 and waited(parent.pid, itself=False) == 0.0
    finally:
        for process in [*psutil.Process(parent.pid).children(), parent]:
            process.kill()
        parent.wait(180)


def test_a_process_waits_with_its_child(rivals) -> None:
    parent = begun(PARENT, SPIN % min(os.sched_getaffinity(0)))
    try:
        assert waited(parent.pid) > 0.3
    finally:
        subprocess.run(["pkill", "-KILL", "-P", str(parent.pid)], check=False)
        parent.kill()
        parent.wait(180)


def test_a_process_that_has_ended_waits_no_longer() -> None:
    process = begun("print()")
    process.wait(180)
    assert ProcessorWait(process.pid).seconds() == 0.0
