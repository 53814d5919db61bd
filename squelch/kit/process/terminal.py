"""Output of a command to the terminal. Nothing else in the command line writes there.

Text may come from a file, an archive or another process, so it is shown with its secrets masked and its control
characters visible: an escape sequence is printed as `\\x1b[...`, and the terminal does not obey it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import reason, shortened
from squelch.kit.untrusted.secrets import masked

EVERY_S = 15.0
"""Most seconds for which a command is silent on a terminal."""
UNKNOWN = "n/a"
"""What is shown for a value that is not known."""
MAX_PARAGRAPH = 4_000
"""Characters of an error that are shown."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control and format characters besides line end and tab: escape sequences begin with one, others reorder or hide
text. Lone surrogates cannot be printed."""


def known(value: float | None, form: str = ".3f") -> str:
    """A value in this format; None and NaN are not known."""
    return UNKNOWN if value is None or value != value else format(value, form)


def open_standard_streams() -> None:
    """Sends the streams that the caller has closed (`>&-`) nowhere: a file that is opened later would get the number,
    and the output with it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nowhere := os.open(os.devnull, os.O_RDWR), number)
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def say(text: str) -> None:
    """Prints a text to stdout and flushes it. UserError if stdout cannot be written, e.g. because its disk is full."""
    _print(visible(text))


def say_unmasked(text: str) -> None:
    """As `say`, of a text that holds a secret which was made for the reader of the terminal."""
    _print(controls_visible(text))


def say_json(value: Any, indent: int | None = None) -> None:
    """As `say`, for a value that is printed as JSON, in ASCII. Secrets are masked in its texts and not in their
    encoding, where the mask of a secret that a quotation mark follows would cover the backslash between them."""
    _print(json.dumps(_masked_texts(value), allow_nan=False, indent=indent))


def _masked_texts(value: Any) -> Any:
    """The JSON value with the secrets masked in every text, keys included."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {_masked_texts(key): _masked_texts(inner) for key, inner in value.items()}
    return [_masked_texts(inner) for inner in value] if isinstance(value, list | tuple) else value


def remark(text: str) -> None:
    """Prints a text to stderr that is not part of the command's result, and flushes it. A stderr that cannot be written
    is given up."""
    with suppress(OSError):
        _write(sys.stderr, visible(text))


def complain(text: str) -> None:
    """Prints an error to stderr as one paragraph."""
    remark(shortened(" ".join(text.split()), MAX_PARAGRAPH))


def visible(text: str) -> str:
    """The text as a terminal may show it: secrets masked, control characters as `\\xNN` or `\\uNNNN`."""
    return controls_visible(masked(text))


def controls_visible(text: str) -> str:
    """The text with control and format characters as `\\xNN` or `\\uNNNN`, except line ends and tabs."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def columns() -> int | None:
    """The width of the terminal that standard output is; None if it is none."""
    return shutil.get_terminal_size((0, 0)).columns or None


def one_line(text: str) -> str:
    """As `visible`, with line ends and tabs made visible too, for a text that must not look like several lines."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


@contextmanager
def not_silent(what: str) -> Iterator[Callable[[], None]]:
    """Says on a terminal every EVERY_S seconds what is under way, and for how long, until the block ends or the
    function that it yields is called."""
    ended, began = threading.Event(), time.monotonic()

    def work() -> None:
        while not ended.wait(EVERY_S):
            remark(f"{what} ({duration(time.monotonic() - began)} so far)")

    if sys.stderr.isatty():
        threading.Thread(target=work, name="not-silent", daemon=True).start()
    try:
        yield ended.set
    finally:
        ended.set()


def duration(seconds: float) -> str:
    """The duration as text: `45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole >= 48 * 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; each column is padded to its widest cell, and every cell is one line."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _print(text: str) -> None:
    try:
        _write(sys.stdout, text)
    except OSError as error:
        raise UserError(f"standard output cannot be written: {reason(error)}") from error


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        _discard(stream)
    except OSError as error:
        is_terminal = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
        _discard(stream)
        if not (is_terminal and error.errno == errno.EIO):  # else it was closed, of which SIGHUP tells
            raise


def _discard(stream: TextIO) -> None:
    """Sends the rest of the stream nowhere, so that the interpreter's last flush does not fail as well."""
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
