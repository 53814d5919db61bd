"""Redirects the output of each actor's process to its own file in the run folder."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from pathlib import Path

from squelch.kit.untrusted.files import open_own, shortened
from squelch.kit.untrusted.secrets import masked

VARIABLE = "SQUELCH_LOG"
"""Environment variable that names the file."""
TAIL = 2**16
"""Bytes at the end of a log in which the last error is looked for."""
_ERROR = re.compile(r"^(?:\(.*?\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a traceback, alone or as vLLM logs it."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class MaskedFormatter(logging.Formatter):
    """Formats a record, its traceback included, with the secrets in it masked."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        return masked(super().format(record))


class MaskedStream(io.TextIOWrapper):
    """A stream of text that masks the secrets in each piece that Python code prints, tracebacks included. What C
    libraries and child processes write passes it by."""

    def write(self, text: str, /) -> int:
        """Writes the piece; returns its length."""
        super().write(masked(text))
        return len(text)


def log_variable(folder: Path, actor: str) -> dict[str, str]:
    """The environment variable that sends an actor's output to `folder/ACTOR.log`."""
    return {VARIABLE: str(folder.absolute() / f"{actor}.log")}


def take_output() -> None:
    """Appends stdout and stderr of this process and its children to the file that the variable names.

    Output stays where Ray puts it if the variable is not set or the file's folder does not exist, as on a cluster node
    that does not share the run folder.
    """
    path = Path(os.environ.get(VARIABLE, ""))
    if not path.name or not path.parent.is_dir():
        return
    with open_own(path) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115  (stays open as long as the process)
        setattr(sys, name, MaskedStream(raw, "utf-8", "backslashreplace", write_through=True))
    handler = logging.StreamHandler()
    handler.setFormatter(MaskedFormatter(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger(__name__).info("process %d is %s", os.getpid(), path.stem)


def last_error() -> str:
    """The newest error whose traceback is in the file that `take_output` writes, in one line; empty without one."""
    path = Path(os.environ.get(VARIABLE, ""))
    if not path.is_file():
        return ""
    with open_own(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        found = _ERROR.findall(file.read(TAIL).decode(errors="replace"))
    return shortened(masked(found[-1].strip()), 400) if found else ""
