"""Programs run in warm interpreters: what comes back, and what is bounded."""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from squelch.envs.sandbox import Limits, Pool, Question, Test, judge
from squelch.envs.sandbox.backends import Backend, namespaces
from squelch.envs.sandbox.interpreter import Interpreter, Lost
from squelch.envs.sandbox.starters import Command, Direct, DirectProcess, Launcher, Process, ServedProcess
from tests.envs.sandbox.corpus import is_running

PATIENT = Limits(wall_s=10, total_s=30)


def test_output_error_and_exit_code_come_back(pool: Pool) -> None:
    program = "import sys\nprint(int(input()) * 2)\nsys.stderr.write('note')\nsys.exit(3 if input() == 'bad' else 0)"
    good, bad = pool.run(program, [Question("4\ngood"), Question("5\nbad")], PATIENT)
    assert (good.outcome, good.output, good.error) == ("finished", b"8\n", "note")
    assert (bad.outcome, bad.output) == ("failed", b"10\n")


def test_a_call_returns_plain_data(pool: Pool) -> None:
    program = "def f(a, b=None): return [a, (b, {'k': 1.5}), True, None, float('inf')]"
    run = pool.run(program, [Question(arguments=('é\n"', [1, {"x": 2}]))], PATIENT, "f")[0]
    assert run.value == b'["\\u00e9\\n\\"",[[1,{"x":2}],{"k":1.5}],true,null,Infinity]'


def test_a_method_of_solution_is_called_as_well(pool: Pool) -> None:
    run = pool.run("class Solution:\n  def f(self, x): return List", [Question(arguments=(1,))], PATIENT, "f")[0]
    assert run.outcome == "failed" and "List" in run.error
    typed = "class Solution:\n  def f(self, x: List[int]) -> int: return len(x)"
    prelude = "from typing import *"
    assert pool.run(typed, [Question(arguments=([1, 2],))], PATIENT, "f", prelude)[0].value == b"2"


def test_what_is_not_plain_data_is_refused(pool: Pool) -> None:
    for value in ("{1}", "object()", "type('T', (int,), {})(1)", "b'x'", "{(1, 2): 3}", "10 ** 5000"):
        run = pool.run(f"def f(): return {value}", [Question()], PATIENT, "f")[0]
        assert run.outcome == "failed", value


def test_programs_written_for_contests_run(pool: Pool) -> None:
    program = """
import sys, threading
from collections import Counter
sys.setrecursionlimit(10**6)
threading.stack_size(2**26)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def main():
    numbers = list(map(int, sys.stdin.buffer.read().split()))
    print(Counter(numbers).most_common(1)[0][0], depth(20_000))
    sys.stdout.write(f"{max(numbers)}\\n")
if __name__ == "__main__":
    threading.Thread(target=main).start()
"""
    run = pool.run(program, [Question("3 1 3")], PATIENT)[0]
    assert run.output == b"3 20000\n3\n", run


@pytest.mark.parametrize(
    "end", ["exit()", "quit()", "import sys; sys.exit()", "raise SystemExit", "import os; os._exit(0)"]
)
def test_a_program_may_end_itself(pool: Pool, end: str) -> None:
    run = pool.run(
        f"print(open(0).read(), end='', flush=True)\n{end}\nprint('not here')", [Question("all\nof it")], PATIENT
    )[0]
    assert (run.outcome, run.output) == ("finished", b"all\nof it")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import shutil\nopen('a', 'w').close()\nshutil.copyfile('a', 'b')\nshutil.move('b', 'c')", ""),
        ("import shutil\nopen('a', 'w').close()\nshutil.copy('a', 'b')", "PermissionError"),
        ("import sqlite3\nsqlite3.connect(':memory:').execute('create table t(a)')", ""),
        ("import sqlite3\nsqlite3.connect('x').execute('create table t(a)')", "database is locked"),
        ("import fcntl\nfcntl.flock(open('a', 'w'), fcntl.LOCK_EX)", "No locks available"),
        (
            "import tempfile, zipfile, logging\nwith tempfile.TemporaryDirectory() as d: logging.FileHandler(d + '/x')",
            "",
        ),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'print(1)'], check=True)", ""),
    ],
)
def test_programs_lose_what_the_docs_say_and_no_more(pool: Pool, program: str, error: str) -> None:
    run = pool.run(program, [Question()], PATIENT)[0]
    assert run.outcome == ("failed" if error else "finished") and error in run.error, run


def test_tests_of_one_program_do_not_see_each_other(pool: Pool) -> None:
    program = "import os, builtins\nprint(os.path.exists('x'), hasattr(builtins, 'x'))\nbuiltins.x = 1"
    assert [run.output for run in pool.run(program, [Question()] * 2, PATIENT)] == [b"False False\n"] * 2


def test_a_late_test_ends_and_the_others_are_run(pool: Pool) -> None:
    program = "import time\ntime.sleep(60 if input() == 'slow' else 0)\nprint('done')"
    limits = PATIENT.model_copy(update={"wall_s": 2.0})
    runs = pool.run(program, [Question("quick"), Question("slow"), Question("quick")], limits)
    assert [run.outcome for run in runs] == ["finished", "late", "finished"]


def test_the_time_for_all_tests_is_bounded(pool: Pool) -> None:
    limits = Limits(wall_s=0.4, total_s=0.6)
    runs = pool.run("while True: pass", [Question()] * 50, limits)
    assert len(runs) == 50 and {run.outcome for run in runs} == {"late", "unbegun"}
    assert {run.seconds for run in runs if run.outcome == "unbegun"} == {0.0}


def test_cpu_time_is_bounded_apart_from_the_wall(pool: Pool) -> None:
    run = pool.run("while True: pass", [Question()], Limits(wall_s=30, total_s=30, cpu_s=1))[0]
    assert run.outcome == "killed"


@pytest.mark.parametrize(
    ("program", "outcome"),
    [("print('x' * 2000)", "flood"), ("block = bytearray(2**28)", "failed"), ("import os\nos.abort()", "killed")],
)
def test_limits_have_their_own_outcomes(pool: Pool, program: str, outcome: str) -> None:
    limits = PATIENT.model_copy(update={"output_kb": 1, "memory_mb": 128})
    assert pool.run(program, [Question()], limits)[0].outcome == outcome


def test_no_interpreter_is_used_twice(pool: Pool) -> None:
    taken = {id(pool.take()): None for _ in range(2)}
    assert len(taken) == 2
    numbers = set()
    for _ in range(3):
        interpreter = pool.take()
        assert interpreter.pid not in numbers
        numbers.add(interpreter.pid)
        interpreter.kill()
        assert interpreter.pid is not None and not is_running(interpreter.pid)


def test_killing_takes_every_process_of_the_sandbox_along(pool: Pool) -> None:
    interpreter = pool.take()
    children = Path(f"/proc/{interpreter.pid}/task/{interpreter.pid}/children")
    limits = {"memory_bytes": 2**28, "file_bytes": 2**20, "output_bytes": 9, "error_bytes": 9, "cpu_s": 9}
    program = "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)"
    interpreter.begin(program, "", None, {**limits, "num_tasks": 20})
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(interpreter.run, b"", [], 1.0)
        while not children.read_text():
            time.sleep(0.01)
        inside = [int(pid) for pid in children.read_text().split()]
        assert asked.exception() is not None
    interpreter.kill()
    assert inside and not any(is_running(pid) for pid in inside)


def test_one_killed_while_it_starts_leaves_nothing(backend: Backend) -> None:
    starter = backend.starter()
    try:
        for wait_s in (0.0, 0.001, 0.003, 0.01):
            starting = Interpreter(starter)
            time.sleep(wait_s)
            outer = outermost(starting.process)
            began = [outer, *descendants(outer)]
            starting.kill()
            assert not any(is_running(pid) for pid in began)
            assert starting.pid is None or not is_running(starting.pid)
    finally:
        starter.close()


def outermost(process: Process) -> int:
    """The process that was started first."""
    assert isinstance(process, (DirectProcess, ServedProcess))
    return process._outer.pid if isinstance(process, DirectProcess) else process.pid


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    try:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*found, *(below for child in found for below in descendants(child))]


def test_words_before_the_question_are_refused(pool: Pool) -> None:
    interpreter = pool.take()
    try:
        interpreter._ours.close()
        interpreter._ours, theirs = socket.socketpair()
        theirs.send(b"early")
        with pytest.raises(Lost, match="before it was asked"):
            interpreter.run(b"", [], 1)
        theirs.close()
    finally:
        interpreter.kill()


def test_expected_outputs_never_leave_this_process(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = Interpreter._send
    monkeypatch.setattr(
        Interpreter, "_send", lambda self, message: (sent.append(repr(message)), send(self, message))[1]
    )
    calls = [Test(Question(arguments=(1,)), ("secret 71",))]
    assert not judge(pool, "def f(x): return x", calls, PATIENT, "f")[0].passed
    assert not judge(pool, "print(1)", [Test(Question("1"), ("secret 71",))], PATIENT)[0].passed
    assert len(sent) == 4 and not any("secret" in message for message in sent)


def test_interpreters_that_cannot_start_are_an_error_that_says_so(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, start_s, complaint in (
        (("/no/such/program",), 60.0, "cannot be started: .*No such file"),
        (("/bin/false",), 60.0, "an interpreter of .*: .*ended at its start"),
        (("/bin/sleep", "60"), 0.5, "was not ready within 0.5 s"),
    ):
        monkeypatch.setattr("squelch.envs.sandbox.pool.START_S", start_s)
        broken = Pool(dataclasses.replace(pool.backend, command=Command(words), starts_with=Direct), warm=1)
        with pytest.raises(RuntimeError, match=complaint):
            broken.run("print(1)", [Question()], PATIENT)
        broken.close()


def test_a_launcher_that_cannot_start_an_interpreter_says_why(pool: Pool) -> None:
    served = namespaces(pool.backend.image, pool.backend.command.identity)
    for old, new, complaint in (
        (str(served.image.root), "/no/such/root", "ended at its start: .*mount: No such file"),
        (str(served.image.launcher), "/no/such/launcher", "cannot be started: the launcher has ended"),
    ):
        words = tuple(new if word == old else word for word in served.command.arguments)
        broken = Pool(dataclasses.replace(served, command=dataclasses.replace(served.command, arguments=words)), warm=1)
        with pytest.raises(RuntimeError, match=complaint):
            broken.run("print(1)", [Question()], PATIENT)
        broken.close()


def test_a_program_whose_launcher_is_killed_runs_again(pool: Pool) -> None:
    if pool.backend.starts_with is not Launcher:
        pytest.skip("needs the back end with a launcher")
    mine = Pool(pool.backend, warm=2)
    try:
        mine.run("print(1)", [Question()], PATIENT)
        with ThreadPoolExecutor(1) as other:
            slow = other.submit(mine.run, "import time\ntime.sleep(0.4)\nprint(1)", [Question()], PATIENT)
            time.sleep(0.2)
            assert isinstance(mine._starter, Launcher) and mine._starter._server is not None
            mine._starter._server.kill()
            assert slow.result(20)[0].output == b"1\n"
    finally:
        mine.close()


@pytest.fixture
def usual_priority() -> Iterator[None]:
    """That of Ray's tests, to which the others yield (tests/conftest.py): a program that never gets a core beside them
    is late, whatever its neighbours of this test are."""
    before = os.sched_getscheduler(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    yield
    os.sched_setscheduler(0, before, os.sched_param(0))


@pytest.mark.slow
def test_a_right_program_passes_beside_programs_that_take_every_core(pool: Pool, usual_priority: None) -> None:
    mine = Pool(pool.backend, warm=1)  # its processes have the priority of this one
    program = "import time\nend = time.process_time() + 0.12\nwhile time.process_time() < end: pass\nprint('right')"
    burners = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
        for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        run = mine.run(program, [Question()], Limits(wall_s=0.4, total_s=1))[0]
    finally:
        mine.close()
        for burner in burners:
            burner.kill()
            burner.wait(180)
    assert run.output == b"right\n", run


def test_interpreters_that_died_waiting_are_passed_over(pool: Pool) -> None:
    mine = Pool(pool.backend, warm=2)
    first = mine.take()
    first.kill()
    with mine._changed:
        assert mine._changed.wait_for(lambda: len(mine._waiting) == 2, 10)
        dead = mine._waiting[0]
    assert happens(dead, select.POLLIN)
    dead.process.kill()
    assert happens(dead, select.POLLHUP)
    assert mine.run("print(1)", [Question()], PATIENT)[0].output == b"1\n"
    mine.close()


def happens(interpreter: Interpreter, event: int) -> bool:
    """Whether that happens to its channel within ten seconds."""
    poll = select.poll()
    poll.register(interpreter._ours, event)
    return bool(poll.poll(10_000))


def test_programs_of_several_threads_are_kept_apart(pool: Pool) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda n: pool.run(f"print({n})", [Question()], PATIENT)[0].output, range(12)))
    assert found == [b"%d\n" % n for n in range(12)]


def test_the_pool_dies_with_its_process(pool: Pool) -> None:
    """Even when that one is killed while a program runs."""
    script = (
        "import threading, time\nfrom squelch.envs.sandbox import *\nfrom squelch.envs.sandbox import pool as p\n"
        "made = shared_pool(SandboxConfig(warm=1))\ntaken = made.take()\nprint(taken.pid, flush=True)\n"
        "taken.begin('while True: pass', '', None, p.kernel_limits(Limits(cpu_s=60), True))\n"
        "taken.run(b'', [], 60)\n"
    )
    command = [sys.executable, "-c", script]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True)
    assert parent.stdout is not None
    inside = int(parent.stdout.readline())
    assert is_running(inside)
    parent.kill()
    parent.wait(180)
    deadline = time.monotonic() + 180
    while is_running(inside) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(inside)
    parent.stdout.close()
