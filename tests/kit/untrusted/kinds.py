"""What may stand in the place of a file."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


KINDS: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a named pipe": _link_to_pipe,
}
"""Makes each at a path, by what the error calls it."""


def called(kind: str) -> str:
    """The words for the kind in an error."""
    return kind.removeprefix("a link to ")
