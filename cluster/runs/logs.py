"""What the processes of a run print besides its results: `log/` in the run's folder.

`driver.log` holds the standard error of the process that trains (the Python and C libraries' messages, its own log),
`ACTOR.log` the whole output of an actor (`actors.process.log`), and `failure.log` the trace of the error that ended the
run last. The terminal shows only the lines that the run says, and its own warnings. Files grow: a resumed run appends.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import BinaryIO, TextIO

from actors.process.log import FORMAT
from cluster.errors import UserError

FAILURE = "failure.log"
ROOMS = {"actors", "cluster", "envs", "learner"}
FRAME = re.compile(r'^\s+File ".*", line \d+')
REMOTE = re.compile(r"(\x1b\[\d+m)?ray::.*$", flags=re.MULTILINE)


def log_folder(run_dir: Path) -> Path:
    """The folder, made if it is not there."""
    folder = run_dir / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class StandardError:
    """This process's standard error, which is held back in a temporary file until the run's folder is there."""

    def __init__(self, held: BinaryIO) -> None:
        self._held: BinaryIO | None = held

    def keep(self, run_dir: Path, name: str = "driver") -> None:
        """Appends what was held back, and all that follows, to `log/NAME.log`.

        Raises:
            OSError: the file cannot be written.
        """
        if self._held is None:
            return
        with (log_folder(run_dir) / f"{name}.log").open("ab") as file:
            self.pour(file)
            os.dup2(file.fileno(), 2)
        self._held = None

    def pour(self, into: BinaryIO) -> None:
        """Copies what is held back."""
        if self._held is not None:
            self._held.seek(0)
            shutil.copyfileobj(self._held, into)
            into.flush()


@contextmanager
def quiet() -> Iterator[StandardError]:
    """Keeps standard error off the terminal, including what C libraries and child processes write to it; only Squelch's
    own warnings are shown there too, each as one paragraph.

    What was not kept in a run's folder is dropped at the end, as after bad input; an unexpected error shows it.
    """
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held, open(terminal, "w", buffering=1) as screen:
        taken = StandardError(held)
        os.dup2(held.fileno(), 2)
        try:
            with open(2, "w", buffering=1, closefd=False) as stream, redirect_stderr(stream), _logging(stream, screen):
                yield taken
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException:
            taken.pour(screen.buffer)
            raise
        finally:
            os.dup2(terminal, 2)


class OwnWarnings(logging.Handler):
    """Shows the warnings and errors that the rooms log."""

    def __init__(self, screen: TextIO) -> None:
        super().__init__(logging.WARNING)
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in ROOMS:
            print(one_paragraph(record.getMessage()), file=self.screen)


@contextmanager
def _logging(stream: TextIO, screen: TextIO) -> Iterator[None]:
    """The log of this process's Python code goes to `stream`, from INFO on."""
    root, log = logging.getLogger(), logging.StreamHandler(stream)
    log.setFormatter(logging.Formatter(FORMAT))
    handlers, level = (log, OwnWarnings(screen)), root.level
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
    """The text as one paragraph. Of a remote traceback only the last lines are left: the error itself."""
    lines = text.splitlines()
    frames = [i for i, line in enumerate(lines) if FRAME.match(line)]
    if frames:
        told = [line for line in lines[frames[-1] + 1 :] if not line.startswith(" ")]
        lines = [REMOTE.sub("", lines[0]), *told]
    return " ".join(" ".join(lines).split())


def write_trace(run_dir: Path, error: BaseException, cause: BaseException | None = None) -> str:
    """Writes the error's whole trace, those of other processes included, to `log/failure.log`.

    Returns one paragraph for the user: the text of `cause`, by default of the error, and where the trace is.
    """
    told = cause or error
    text = one_paragraph(str(told)) or type(told).__name__
    path = run_dir / "log" / FAILURE
    try:
        log_folder(run_dir)
        path.write_text("".join(traceback.format_exception(error)))
    except OSError as refused:
        return f"{text} (its trace cannot be written to {path}: {refused.strerror})"
    return f"{text} (trace: {path})"
