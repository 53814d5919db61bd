"""The time that counts against a limit: without the time that a program waits for a core, unless it is the cause."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squelch.envs.sandbox import own_time
from squelch.envs.sandbox.own_time import STRETCH, OwnTime, sandbox_tasks

HARNESS = 100
NUMBERS = itertools.count()


class Machine:
    """A clock, and a /proc in which the harness has one child for each task passed to `show`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self._folder, self._patch = folder, monkeypatch
        monkeypatch.setattr(own_time.time, "monotonic", lambda: self.now_s)
        self.show([])

    def show(self, tasks: Sequence[tuple[float, float]]) -> None:
        """Shows tasks as (seconds on a core, seconds waiting for one)."""
        proc = self._folder / str(next(NUMBERS))
        self._patch.setattr(own_time, "PROC", proc)
        children = [HARNESS + number for number in range(1, len(tasks) + 1)]
        self._task(proc, HARNESS, (0.0, 0.0), children)
        for pid, times in zip(children, tasks, strict=True):
            self._task(proc, pid, times, [])

    def _task(self, proc: Path, pid: int, times: tuple[float, float], children: list[int]) -> None:
        place = proc / f"{pid}/task/{pid}"
        place.mkdir(parents=True)
        (place / "schedstat").write_text("{} {} 7\n".format(*(int(seconds * 1e9) for seconds in times)))
        (place / "children").write_text("".join(f"{child} " for child in children))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def passes(machine: Machine, seconds: float, tasks: Sequence[tuple[float, float]], limit_s: float = 2.0) -> OwnTime:
    """The time of a test, and what its tasks did meanwhile."""
    own = OwnTime(HARNESS, limit_s)
    machine.now_s += seconds
    machine.show(tasks)
    return own


def test_waiting_for_a_core_does_not_count(machine: Machine) -> None:
    own = passes(machine, 4.0, [(1.0, 3.0)])
    assert not own.is_over() and own.used_s == pytest.approx(1.0)
    machine.now_s += 1.1
    machine.show([(2.1, 3.0)])
    assert own.is_over()


def test_sleeping_counts(machine: Machine) -> None:
    assert passes(machine, 2.0, [(0.1, 0.2)]).used_s == pytest.approx(2.0)
    assert passes(machine, 2.3, [(0.1, 0.2)]).is_over()


def test_a_thread_that_waits_is_enough(machine: Machine) -> None:
    assert not passes(machine, 4.0, [(0.0, 0.0), (1.0, 3.0)]).is_over()


def test_processes_that_compete_with_each_other_gain_nothing(machine: Machine) -> None:
    own = passes(machine, 2.0, [(0.5, 1.5)] * 8)  # eight loops on two cores
    assert own.is_over() and own.used_s == pytest.approx(2.0)


def test_the_time_of_a_child_that_has_ended_is_charged_in_full(machine: Machine) -> None:
    own = OwnTime(HARNESS, 2.0)
    for look in range(42):  # a task that waits for its own short-lived children, whose times on a core are forgotten
        machine.now_s += 0.05
        waits = (0.0, machine.now_s - 1000.0)
        machine.show([waits, (0.05, 0.0)] if look % 2 else [waits])
        own.is_over()
    assert own.is_over() and own.used_s == pytest.approx(2.05)


def test_after_a_child_has_ended_waiting_is_taken_off_again(machine: Machine) -> None:
    own = OwnTime(HARNESS, 2.0)
    for tasks in ([(0.1, 0.0), (0.1, 0.0)], [(0.2, 0.0)], [(0.3, 0.9)]):
        machine.now_s += 1.0
        machine.show(tasks)
        own.is_over()
    assert own.used_s == pytest.approx(3.0 - 0.9)


def test_a_test_ends_after_four_limits(machine: Machine) -> None:
    assert not passes(machine, 7.9, [(0.1, 7.8)]).is_over()
    assert passes(machine, 8.0, [(0.0, 8.0)]).is_over()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 50), st.lists(st.tuples(st.floats(0, 60), st.floats(0, 60)), max_size=4), st.floats(0.1, 5))
def test_the_own_time_lies_between_a_quarter_and_all_of_the_time(
    machine: Machine, seconds: float, tasks: list[tuple[float, float]], limit_s: float
) -> None:
    own = passes(machine, seconds, tasks, limit_s)
    over = own.is_over()
    assert seconds - (STRETCH - 1) * limit_s - 1e-6 <= own.used_s <= seconds + 1e-6
    assert over or seconds < STRETCH * limit_s
    assert not over or seconds > limit_s - 2 * own_time.CLOSE_S


def test_what_the_kernel_does_not_tell_changes_nothing(machine: Machine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(own_time, "PROC", tmp_path / "nothing")
    own = OwnTime(HARNESS, 2.0)
    machine.now_s += 2.0
    assert sandbox_tasks(HARNESS) == {} and own.is_over() and not own_time.is_counted()
    assert not OwnTime(None, 2.0).is_over()
