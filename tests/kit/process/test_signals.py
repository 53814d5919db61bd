"""Signals end a command whatever its main thread does: with the first as it says, with a second at once."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from queue import Queue

import pytest

from squelch.kit.process import signals as module
from squelch.kit.process.signals import Interrupted, Signals, listening

pytestmark = pytest.mark.usefixtures("hangups_count")
START = """
import ctypes, logging, os, queue, signal, sys, threading, time, types
from squelch.kit.process import signals as module
from squelch.kit.process.process_exit import before_leaving
from squelch.kit.process.signals import listening
from squelch.kit.process.terminal import say

def stuck():
    "A call that neither returns nor lets Python's handlers run, as Ray's without its head."
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex), lock(mutex)

class Decisions(queue.SimpleQueue):
    num = 0
    def put(self, raises):
        super().put(raises)
        Decisions.num += 1

module.SimpleQueue = Decisions

def send(*numbers, pause=1.2, sleep=time.sleep):
    "Signals to this process, each `pause` seconds after the decision on the one before: a busy machine decides late."
    def work():
        for place, number in enumerate(numbers):
            while Decisions.num < place:
                time.sleep(0.01)
            sleep(pause)
            os.kill(os.getpid(), number)
    threading.Thread(target=work, daemon=True).start()
"""


def command(text: str) -> tuple[int, list[str]]:
    """(exit code, lines) of a program that begins with START and ends within 300 s."""
    root, words = Path(__file__).parents[3], [sys.executable, "-c", START + textwrap.dedent(text)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=root, check=False)
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_the_main_thread_if_nothing_else_was_said(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with listening() as signals, pytest.raises(Interrupted, match=f"^{number.name}$") as interrupted:
        os.kill(os.getpid(), number)
        time.sleep(60.0)
    assert interrupted.value.signal == number and signals.arrived == [number]
    assert signal.getsignal(number) == before and signal.set_wakeup_fd(-1) == -1


def test_signals_with_another_handler_do_not_delay_an_interruption() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with listening(), pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60.0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_expected_of_a_signal_is_done_once_and_a_wait_inside_ends_first() -> None:
    heard: Queue[tuple[str, int]] = Queue()
    with listening() as signals:
        signals.first_does(lambda number: heard.put(("run", number)))
        with listening() as same, same.answering(lambda number: heard.put(("wait", number))):
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.get(timeout=180.0) == ("wait", signal.SIGTERM)
        assert same is signals and signals.next is None, "what comes next ends the process"
        signals.first_does(lambda number: heard.put(("late", number)))
        assert signals.next is None


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_closes_ends_no_process_that_is_ending_in_good_order(first: signal.Signals) -> None:
    heard: Queue[int] = Queue()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with listening() as signals:
        signals.first_does(heard.put)
        os.kill(os.getpid(), first)
        assert heard.get(timeout=180.0) == first
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.2)
        assert signals.arrived == [first]


@pytest.mark.parametrize(
    ("numbers", "pause", "counted"),
    [
        ("15, 15", 0.1, [15]),  # `timeout` sends it to its child and to its group
        ("1, 15", 0.1, [1]),
        ("15, 1, 15", 0.1, [15]),
        ("2, 2", 0.05, [2]),
        ("2, 2", 0.6, [2, 2]),  # a person who presses Ctrl-C twice
        ("15, 2", 0.1, [15, 2]),
        ("15, 15", 1.5, [15, 15]),
    ],
)
def test_a_signal_that_repeats_the_one_before_it_is_no_second_one(
    numbers: str, pause: float, counted: list[int]
) -> None:
    code, lines = command(f"""
        now = [0.0]
        module.time = types.SimpleNamespace(monotonic=lambda: now[0])
        with listening() as signals:
            signals.first_does(lambda number: None)
            signals.last_words = lambda number: say(str(signals.arrived))
            send({numbers}, pause={pause}, sleep=lambda s: now.__setitem__(0, now[0] + s))
            while {len(counted)} > 1 or Decisions.num < len([{numbers}]):
                time.sleep(0.01)
            say(str(signals.arrived))
    """)
    assert lines[-1] == str([signal.Signals(number) for number in counted])
    assert code == (128 + counted[-1] if len(counted) > 1 else 0)


def test_an_error_that_an_interruption_became_on_its_way_is_the_interruption() -> None:
    with listening() as signals, pytest.raises(Interrupted, match=r"^SIGTERM$"), signals.meant():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60.0)
        except BaseException as error:
            raise RuntimeError("Error calling function `serialize`") from error
    with listening() as signals, pytest.raises(RuntimeError, match="a bug"), signals.meant():
        raise RuntimeError("a bug")


@pytest.mark.parametrize(("at", "found"), [(-1.0, None), (-0.1, signal.SIGTERM), (0.2, signal.SIGTERM), (9.0, None)])
def test_a_signal_shortly_before_or_after_a_moment_is_found(at: float, found: signal.Signals | None) -> None:
    """`at`: when the signal comes, seconds after the moment."""
    with listening() as signals:
        signals.first_does(lambda _: None)
        if at < 0:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.beside(time.monotonic(), 180.0, 180.0) == signal.SIGTERM
            assert signals.beside(signals._last_at - at, 0.5, 0.5) == found
        else:
            timer = module.threading.Timer(at, os.kill, [os.getpid(), signal.SIGTERM])
            timer.start()
            assert signals.beside(time.monotonic(), 0.5, 180.0 if found else 0.1) == found
            timer.cancel()


def test_what_fails_while_a_second_signal_ends_the_process_changes_neither_its_words_nor_its_code() -> None:
    ended, lines = command("""
        def last(number):
            say("last words")
            time.sleep(1.0)

        with listening() as signals:
            signals.first_does(lambda number: say("first"))
            signals.last_words = last
            send(2, 2)
            while len(signals.arrived) < 2:
                time.sleep(0.01)
            time.sleep(0.3)  # Ray's processes are being killed, which the event loop takes for a failure
            logging.warning("the filter died and is replaced")
    """)
    assert (ended, lines) == (130, ["first", "last words"])


def test_a_wait_that_no_signal_ended_changes_nothing() -> None:
    signals, answer = Signals(), lambda number: None
    with signals.answering(answer):
        with signals.answering(lambda number: None, lambda number: None):
            pass
        assert signals.next is answer
    assert signals.next is None


@pytest.mark.parametrize(("numbers", "code"), [("2, 2", 130), ("15, 15", 143), ("2, 15", 143), ("15, 2", 130)])
def test_a_second_signal_ends_a_process_whose_main_thread_is_stuck_with_its_own_code(numbers: str, code: int) -> None:
    ended, lines = command(f"""
        with listening() as signals:
            before_leaving(lambda: say("killed"))
            signals.first_does(lambda number: say(f"first {{number.name}}"))
            signals.last_words = lambda number: say(f"last {{number.name}}")
            send({numbers})
            stuck()
    """)
    first, second = (signal.Signals(int(number)).name for number in numbers.split(", "))
    assert (ended, lines) == (code, [f"first {first}", f"last {second}", "killed"])


@pytest.mark.parametrize("numbers", ["15, 15", "15, 15, 15"])
def test_last_words_that_hang_are_not_waited_for(numbers: str) -> None:
    bound = 0.5 if numbers == "15, 15" else 600.0
    ended, _ = command(f"""
        module.LAST_S = {bound}
        with listening() as signals:
            signals.first_does(lambda number: time.sleep(600))
            signals.last_words = lambda number: time.sleep(600)
            send({numbers})
            stuck()
    """)
    assert ended == 143


def test_a_child_that_was_forked_has_signals_of_its_own() -> None:
    ended, lines = command("""
        with listening() as signals:
            signals.first_does(lambda number: say("the parent was told"))
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
            time.sleep(0.5)
            os.kill(pid, signal.SIGTERM)
            say(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    """)
    assert (ended, lines) == (0, [str(-signal.SIGTERM)])


def test_elsewhere_than_on_the_main_thread_nobody_listens() -> None:
    heard: Queue[Signals] = Queue()

    def elsewhere() -> None:
        with listening() as signals:
            heard.put(signals)

    thread = module.threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard.get(timeout=180.0).arrived == [] and module._current == []
