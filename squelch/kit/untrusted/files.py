"""Opens files that may be hostile: regular files only, of a bounded size, with errors that name the file.

Invariants:

- A folder, named pipe, device or socket, or a link to one, is refused before it is opened: opening a pipe would wait,
  and opening a device may have an effect.
- At most `most_bytes` bytes are read, whatever size the file claims to have.
- Every error is `Unreadable`. Its message is one paragraph of bounded length that begins with the file's name.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

MIB = 2**20
MAX_REASON = 300
"""Characters of a library's error message that are passed on."""
_CAUSED_BY = re.compile(r"Caused by \w+\(['\"]?(?:<[^>]*>: )?(.+)")
_PANIC = "PanicException"
"""A fault of a library that is written in Rust; it derives from BaseException, and no module exports it."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class Unreadable(ValueError):
    """A file cannot be used. The message names the file and the place in it, and says what would be right."""


class Missing(Unreadable, FileNotFoundError):
    """There is no file of that name."""


class WrongKind(Unreadable, OSError):
    """A folder, named pipe, device or socket stands where a file is read or written, or a link where one is written."""


def state(path: Path) -> os.stat_result | None:
    """The facts of the file, folder or device to which the path leads; None if there is none."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        raise Unreadable(f"{shortened(str(path), MAX_REASON)} cannot be looked up: {reason(error)}") from error


def is_file(path: Path) -> bool:
    """Whether the path leads to a regular file."""
    found = state(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: Path) -> bool:
    """Whether the path leads to a folder."""
    found = state(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def require_regular(path: Path) -> None:
    """Raises WrongKind if the path leads to anything but a regular file, and Missing if it leads to nothing."""
    found = state(path)
    if found is None:
        raise Missing(f"{path} does not exist")
    _require_regular(path, found)


def require_output(path: Path) -> None:
    """Raises WrongKind if a file cannot be written at the path because a folder, pipe, device or socket is there."""
    found = state(path)
    if found is not None:
        _require_regular(path, found)


def open_own(path: Path) -> BinaryIO:
    """A regular file that is read and appended to, unbuffered; it is made if there is none.

    Raises:
        WrongKind: a link has the name, or the file has a second name: what is written would change a file elsewhere.
        OSError: the file cannot be opened.
    """
    require_output(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WrongKind(f"{path} is a link, and nothing is written through one; remove it") from error
        raise
    file = open(descriptor, "a+b", buffering=0)  # noqa: SIM115  (the caller closes it)
    found = os.fstat(descriptor)
    try:
        _require_regular(path, found)
        if found.st_nlink > 1:
            raise WrongKind(f"{path} has a second name (a hard link), under which it would change; put a copy here")
    except Unreadable:
        file.close()
        raise
    return cast(BinaryIO, file)


def require_own(folder: Path) -> None:
    """Raises WrongKind if a link below the folder leads out of it: what is written there would change files elsewhere.
    The folder itself may be reached through a link."""
    whole, left = os.path.realpath(folder), [str(folder)]
    while left:
        with suppress(FileNotFoundError), os.scandir(left.pop()) as entries:  # of a run that lives, one may be gone
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if os.path.commonpath([whole, target]) != whole:
                        raise WrongKind(
                            f"{entry.path} is a link that leads out of {folder}, to {target}, and nothing is written "
                            "there; put what it leads to in its place, or remove it"
                        )
                elif entry.is_dir():
                    left.append(entry.path)


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise WrongKind(f"{path} is {kind}; a regular file is needed")


def open_file(path: Path) -> BinaryIO:
    """The bytes of a regular file, seekable. Raises Missing if there is none."""
    require_regular(path)
    try:
        # O_NONBLOCK: the name may lead to a pipe by now, which `fstat` below finds.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Missing(f"{path} does not exist") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be opened: {reason(error)}") from error
    file = open(descriptor, "rb")  # noqa: SIM115  (the caller closes it)
    try:
        _require_regular(path, os.fstat(descriptor))
    except Unreadable:
        file.close()
        raise
    return file


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes` bytes."""
    with open_file(path) as file:
        return read_bounded(file, most_bytes, str(path))


def read_bounded(file: BinaryIO, most_bytes: int, where: str) -> bytes:
    """The rest of an open file. Raises Unreadable if it has more than `most_bytes` bytes or cannot be read."""
    try:
        data = file.read(most_bytes + 1)
    except OSError as error:
        raise Unreadable(f"{where} cannot be read: {reason(error)}") from error
    if len(data) > most_bytes:
        raise Unreadable(f"{where} is larger than {size_text(most_bytes)}, the most that such a file may have")
    return data


def text_of(data: bytes, where: str) -> str:
    """The bytes as UTF-8 text, without a byte order mark. Raises Unreadable, with the position, for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{where} cannot be read as text: it is not UTF-8 ({reason(error)})") from error


@contextmanager
def decoding(where: str, fault: str, remedy: str = "") -> Iterator[None]:
    """Turns every error that a decoder raises into Unreadable: `WHERE FAULT (reason); REMEDY`.

    Only for a call of a library on bytes of a file. Damaged bytes make decoders raise errors of any class, also of
    classes that no documentation lists; what else is in the block must not raise.
    """
    after = f"; {remedy}" if remedy else ""
    try:
        yield
    except Unreadable:
        raise
    except MemoryError as error:
        raise Unreadable(f"{where} needs more memory than a reader may use; split it, or write less to it") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise Unreadable(f"{where} {fault} ({reason(error)}){after}") from error


def reason(error: BaseException) -> str:
    """The error as one line of at most `MAX_REASON` characters; of a chain of errors in one text, as urllib3 writes
    them, the innermost."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    if inner := _CAUSED_BY.findall(text):
        text = inner[-1].rstrip("'\")") or text
    return shortened(text or type(error).__name__, MAX_REASON)


def brief(value: Any, most: int = 80) -> str:
    """The value's `repr`, cut to `most` characters."""
    try:
        return shortened(repr(value), most)
    except (ValueError, RecursionError):  # an integer of over 4,300 digits has no decimal text
        return f"a {type(value).__name__} that cannot be shown"


def shortened(text: str, most: int) -> str:
    """The text, cut to `most` characters; a cut is marked."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size_text(num_bytes: int) -> str:
    """The size as text, e.g. `16 MiB`."""
    return f"{num_bytes // MIB} MiB" if num_bytes >= MIB else f"{num_bytes} bytes"
