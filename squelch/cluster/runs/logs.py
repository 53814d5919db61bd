"""The log files of a run, in `log/` in its folder.

`driver.log` holds the output of the process that trains (messages of Python and C libraries, and its own log),
`ACTOR.log` the whole output of an actor (`actors.process.log`), and `failure.log` the trace of the last error that
ended the run. The terminal shows only the run's own lines and warnings. A resumed run appends to the files.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from squelch.actors.process.log import FORMAT, MaskedFormatter
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import visible
from squelch.kit.untrusted.files import Unreadable, open_own, reason
from squelch.kit.untrusted.secrets import masked

FAILURE = "failure.log"
FRAME = re.compile(r'^\s+File ".*", line \d+')
REMOTE = re.compile(r"(\x1b\[\d+m)?ray::.*$", flags=re.MULTILINE)


def log_folder(run_dir: Path) -> Path:
    """The folder of a run's log files, which is created if it does not exist."""
    folder = run_dir / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Output:
    """The output of this process that is not meant for the terminal. It goes to a temporary file until the run's folder
    exists, and then to a log file there."""

    def __init__(self, held: BinaryIO) -> None:
        self._held: BinaryIO | None = held
        self.screen = sys.stdout
        """The stream that was standard output before; None if that is closed."""
        self._lock = threading.Lock()
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context within which warnings may be printed to the terminal, where something else draws there."""

    def aloud(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """`say`, which prints to standard output, as a function that prints to the terminal meanwhile; any thread may
        call it."""

        def say_on_screen(text: str) -> None:
            with self._lock, redirect_stdout(self.screen):
                say(text)

        return say_on_screen

    def keep(self, run_dir: Path, name: str = "driver") -> None:
        """Appends the output so far, and all later output, to `log/NAME.log`.

        Raises:
            OSError: the file cannot be written.
            Unreadable: something else than a regular file of the run has its name.
        """
        if self._held is None:
            return
        path = log_folder(run_dir) / f"{name}.log"
        with open_own(path) as file:
            file.write(self.text().encode(errors="backslashreplace"))
            os.dup2(file.fileno(), 2)
        self._held = None

    def text(self) -> str:
        """The output in the temporary file; empty once the output goes to the run's folder."""
        if self._held is None:
            return ""
        self._held.seek(0)
        return self._held.read().decode(errors="replace")


WATCH = """
IFS= read -r ended && exit
last=$(tail -n 1 "/proc/self/fd/$1" | tr -cd '[:print:]' | cut -c 1-300)
echo "squelch: $2${last:+: $last}" >&2
"""
"""Shell words that wait for a line, and where there is none, because the process that would write it is gone, print
what they are told, and the last line of a file."""


@contextmanager
def quiet(if_cut_off: str = "") -> Iterator[Output]:
    """Keeps standard error off the terminal, including output of C libraries and child processes, and what Python
    libraries print (Ray reports dead processes so). The terminal shows only what is said `aloud` and Squelch's own
    warnings, each as one paragraph.

    Output that `keep` did not move to a run's folder is dropped at the end, as after bad input, but is shown after an
    unexpected error. `if_cut_off`: printed, with the last line that was held back, if the process ends within this
    context without Python's knowledge: Ray's library calls `_exit` where its cluster does not take the driver in time.
    """
    terminal = os.dup(2)
    with (
        tempfile.TemporaryFile() as held,
        open(terminal, "w", buffering=1) as screen,
        _watched(if_cut_off, held) if if_cut_off else nullcontext(),
    ):
        taken = Output(held)
        os.dup2(held.fileno(), 2)
        try:
            with (
                open(2, "w", buffering=1, closefd=False) as stream,
                redirect_stdout(stream),
                redirect_stderr(stream),
                _logging(stream, screen, taken),
            ):
                yield taken
        except (UserError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            screen.write(visible(taken.text()))
            raise
        finally:
            os.dup2(terminal, 2)


@contextmanager
def _watched(words: str, held: BinaryIO) -> Iterator[None]:
    """Within this context a process of its own waits for the end of this one."""
    command = ["sh", "-c", WATCH, "sh", str(held.fileno()), words]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[held.fileno()], start_new_session=True)
    try:
        yield
    finally:
        watch.communicate(b"ended\n")


class OwnWarnings(logging.Handler):
    """Shows on `screen` the warnings and errors that Squelch's own packages log, apart from what `output` draws."""

    def __init__(self, screen: TextIO, output: Output) -> None:
        super().__init__(logging.WARNING)
        self.screen, self.output = screen, output

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the record as one paragraph if a package of Squelch logged it."""
        if record.name.startswith("squelch."):
            with suppress(OSError), self.output.apart():  # e.g. a closed terminal; the log has the warning too
                print(visible(one_paragraph(record.getMessage())), file=self.screen)


@contextmanager
def _logging(stream: TextIO, screen: TextIO, output: Output) -> Iterator[None]:
    """Sends the log of this process's Python code, from level INFO, to `stream`, and its own warnings to `screen`."""
    root, log = logging.getLogger(), logging.StreamHandler(stream)
    log.setFormatter(MaskedFormatter(FORMAT))
    handlers, level = (log, OwnWarnings(screen, output)), root.level
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level)


def one_paragraph(text: str) -> str:
    """The text as one paragraph; a remote traceback is shortened to its last lines, which hold the error itself."""
    lines = text.splitlines()
    frames = [i for i, line in enumerate(lines) if FRAME.match(line)]
    if frames:
        message = [line for line in lines[frames[-1] + 1 :] if not line.startswith(" ")]
        lines = [REMOTE.sub("", lines[0]), *message]
    return " ".join(" ".join(lines).split())


def write_trace(run_dir: Path, error: BaseException, cause: BaseException | None = None) -> str:
    """Writes the error's whole trace, with the traces of other processes, to `log/failure.log`.

    Returns one paragraph for the user: the text of `cause` (by default of the error) and the path of the trace.
    """
    shown = cause or error
    text = one_paragraph(str(shown)) or type(shown).__name__
    path = run_dir / "log" / FAILURE
    try:
        log_folder(run_dir)
        text_of_trace = masked("".join(traceback.format_exception(error)))
        write_whole(path, text_of_trace.encode(errors="backslashreplace").decode())
    except Unreadable as refused:
        return f"{text} (its trace cannot be written: {refused})"
    except OSError as refused:
        return f"{text} (its trace cannot be written to {path}: {reason(refused)})"
    return f"{text} (trace: {path})"
