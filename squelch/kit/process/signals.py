"""The signals that ask a command to end, from its start to its end.

    signal     what it does
    expected   what `next` says, once
    the first  if nothing is expected, `Interrupted` is raised on the main thread
    the same   nothing, if it follows within SAME_S: `timeout` sends SIGTERM to its child and to its group, and a shell
               and the kernel both say that a terminal closed
    a further  `last_words`, and the process ends, within LAST_S; another one does not wait for them

    thread     waits for                   unblocked by             on time-out
    signals    a signal                    the kernel, `listening`  -
               the last words              thread of the words      the process ends without the rest of them
    main       the decision on a signal    thread of the signals    the signal does nothing there

Python calls handlers on the main thread, which may be in a call that does not return, such as Ray's without its head.
So a thread learns of each signal from the interpreter's wake-up descriptor, and decides; the handler raises, if that is
the decision.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from squelch.kit.process.process_exit import leave
from squelch.kit.process.terminal import remark

Answer = Callable[[signal.Signals], None]
LAST_S = 15.0
DECISION_S = 1.0
SAME_S = {signal.SIGINT: 0.2, signal.SIGTERM: 1.0, signal.SIGHUP: 1.0}
"""Seconds within which a signal repeats the one before it. People press Ctrl-C twice, so SIGINT has fewer; SIGTERM and
SIGHUP repeat each other."""


class Interrupted(KeyboardInterrupt):
    """A signal ends the command."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a run to end in good order. A closed terminal is one, unless it is ignored (`nohup`)."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class Signals:
    """The signals of one command. `next`: what the next one does; it is taken away by that signal, and called on a
    thread of its own."""

    def __init__(self) -> None:
        self.arrived: list[signal.Signals] = []
        self.next: Answer | None = None
        self.last_words: Answer = _stopped
        self._decisions: SimpleQueue[bool] = SimpleQueue()
        self._numbers = stop_signals()
        self._raised: int | None = None
        """The signal for which `Interrupted` was raised."""
        self._counted = threading.Condition()
        self._last_at = -math.inf
        """When the last signal that counted came, seconds of the monotonic clock."""
        self._ends = threading.Event()
        """Whether a further signal ends the process."""

    def first_does(self, answer: Answer) -> None:
        """What the first signal does; nothing changes if that has come."""
        if not self.arrived:
            self.next = answer

    @contextmanager
    def answering(self, next_: Answer | None = None, last_words: Answer | None = None) -> Iterator[None]:
        """Within the block, what the next signal does, and what is said before one ends the process."""
        before, words = self.next, self.last_words
        self.next = inside = next_ or before
        self.last_words = last_words or words
        try:
            yield
        finally:
            self.next = before if self.next is inside else None  # else a signal has used it
            self.last_words = words

    @contextmanager
    def meant(self) -> Iterator[None]:
        """Within the block, an error that follows `Interrupted` is that interruption: code through which the exception
        went may have made another of it, as pydantic's serializer does."""
        try:
            yield
        except Exception as error:
            if self._raised is None:
                raise
            raise Interrupted(self._raised) from error

    def beside(self, moment: float, before_s: float, after_s: float) -> signal.Signals | None:
        """The last signal, if it came at most so many seconds before a moment of the monotonic clock, or after it;
        waits until the latter have passed."""
        with self._counted:
            left = max(0.0, moment + after_s - time.monotonic())
            found = self._counted.wait_for(lambda: self._last_at >= moment - before_s, left)
            return self.arrived[-1] if found else None

    def give_way(self) -> None:
        """Does not return once a further signal ends this process: what else fails meanwhile is its work."""
        if self._ends.is_set():
            threading.Event().wait()

    def _listen(self, reader: socket.socket) -> None:
        while (number := _read(reader, None)) is not None:
            if number not in self._numbers:  # another handler's
                continue
            if self._repeats(number):
                self._decisions.put(False)
                continue
            answer, self.next = self.next, None
            raises = answer is None and not self.arrived
            self._count(signal.Signals(number))
            self._decisions.put(raises)
            if answer is not None:  # on a thread of its own, because it may wait for the terminal
                threading.Thread(target=answer, args=[self.arrived[-1]], name="signal", daemon=True).start()
            elif not raises:
                self._end(reader)

    def _repeats(self, number: int) -> bool:
        """Whether a signal says what the one before it said. SIGHUP always does, since nobody means a second Ctrl-C."""
        if not self.arrived:
            return False
        alike = (number == signal.SIGINT) == (self.arrived[-1] == signal.SIGINT)
        soon = time.monotonic() - self._last_at < SAME_S[signal.Signals(number)]
        return number == signal.SIGHUP or (alike and soon)

    def _count(self, number: signal.Signals) -> None:
        with self._counted:
            self.arrived.append(number)
            self._last_at = time.monotonic()
            self._counted.notify_all()

    def _end(self, reader: socket.socket) -> None:
        """Does not return."""
        self._ends.set()
        logging.disable()  # what another thread still says of the run's parts, which end too, would be no news
        number, deadline = self.arrived[-1], time.monotonic() + LAST_S
        threading.Thread(target=self._leave, args=[number], name="last-words", daemon=True).start()
        while (left := deadline - time.monotonic()) > 0:
            further = _read(reader, left)
            if further in (signal.SIGINT, signal.SIGTERM) and not self._repeats(further):
                break
        os._exit(128 + number)

    def _leave(self, number: signal.Signals) -> None:
        try:
            self.last_words(number)
        finally:
            leave(128 + number)

    def _handle(self, number: int, _: object) -> None:
        """Python's handler. Several signals at once may be one call."""
        raises = False
        try:
            raises = self._decisions.get(timeout=DECISION_S)
            while True:
                raises = self._decisions.get_nowait() or raises
        except Empty:
            pass
        if raises:
            self._raised = number
            raise Interrupted(number)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within the block, on the main thread, the signals of this process are these."""
        reader, writer = socket.socketpair()
        with reader, writer:
            writer.setblocking(False)
            thread = threading.Thread(target=self._listen, args=[reader], name="signals", daemon=True)
            thread.start()
            descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            handlers = {number: signal.signal(number, self._handle) for number in self._numbers}
            try:
                yield
            finally:
                self.give_way()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(descriptor)
                writer.close()
                if threading.current_thread() is not thread:
                    thread.join(DECISION_S)


def _read(reader: socket.socket, timeout_s: float | None) -> int | None:
    """The number of the next signal; None after the time-out, or once nobody listens any more."""
    if not select.select([reader], [], [], timeout_s)[0]:
        return None
    found = reader.recv(1)
    return found[0] if found else None


def _stopped(number: signal.Signals) -> None:
    remark(f"squelch: stopped by {number.name}, at once")


_current: list[Signals] = []


@contextmanager
def listening() -> Iterator[Signals]:
    """The signals of this process, within the outermost such block. Only the main thread can begin to listen; on
    another one no signal ever comes, unless the main thread listens."""
    if _current or threading.current_thread() is not threading.main_thread():
        yield current()
        return
    signals = Signals()
    _current.append(signals)
    try:
        with signals.heard():
            yield signals
    finally:
        _current.clear()


def current() -> Signals:
    """The signals that are listened to; some that never come if there are none."""
    return _current[0] if _current else Signals()


def take_back() -> None:
    """After a call of `ray.init`, whose client takes SIGTERM away below Python: its handler prints a trace, calls the
    one before it, and has the kernel end the process 3 s later."""
    if _current and threading.current_thread() is threading.main_thread():
        for number in _current[0]._numbers:
            signal.signal(number, _current[0]._handle)
        if _current[0].arrived:
            signal.alarm(0)


def _forget() -> None:
    """In a child that was forked: its signals are its own, although it shares the descriptor."""
    if _current:
        signal.set_wakeup_fd(-1)
        for number in stop_signals():
            signal.signal(number, signal.SIG_DFL)
        _current.clear()


os.register_at_fork(after_in_child=_forget)
