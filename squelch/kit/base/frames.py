"""Frames on a stream socket, by which this process and a child speak: four bytes of length, then the body."""

from __future__ import annotations

import socket
import time

HEAD = 4


class Oversize(OSError):
    """A frame is larger than its reader takes."""


def send(channel: socket.socket, body: bytes) -> None:
    """Sends a frame. OSError if the other end is gone or does not read, TimeoutError after the socket's time-out."""
    channel.sendall(len(body).to_bytes(HEAD, "big") + body)


def receive(channel: socket.socket, most: int, until: float) -> bytes:
    """The next frame.

    Raises:
        TimeoutError: it is not whole at the time `until` of the monotonic clock.
        EOFError: the other end is closed.
        Oversize: it has more than `most` bytes.
        OSError: the other end is gone.
    """
    size = int.from_bytes(_exactly(channel, HEAD, until), "big")
    if size > most:
        raise Oversize(f"a frame of {size} bytes")
    return bytes(_exactly(channel, size, until))


def _exactly(channel: socket.socket, count: int, until: float) -> bytearray:
    found = bytearray()
    while len(found) < count:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError
        channel.settimeout(left)
        piece = channel.recv(min(count - len(found), 1 << 20))
        if not piece:
            raise EOFError
        found += piece
    return found
