"""Posts JSON to a server that may be down, slow or hostile, with a bound on every wait and every answer.

A call waits for the server at most `longest_wait_s`. There are `retries + 1` attempts, with a back-off that doubles
from the second attempt on. Each attempt waits `timeout_s` for the head of the answer. The body gets another
`timeout_s`; this limit is checked when data arrive or after a silence of `timeout_s`. An attempt is repeated if the
connection fails, if there is no answer in time, and for the status codes that the caller names.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry, Timeout

from squelch.kit.untrusted.files import brief

FIRST_BACKOFF_S = 0.25
MAX_BODY = 4 * 2**20
_CHUNK = 2**16


class NoAnswer(Exception):
    """There is no whole answer; the text says why, in the form "no answer ..." or "an answer that ..."."""


class _HeadInTime:
    """A connection that must receive the whole head of the answer within the time-out.

    A socket's own time-out restarts with each byte, so it would not end a head that arrives very slowly.
    """

    sock: socket.socket
    timeout: float

    def getresponse(self) -> Any:
        """The response, whose head must arrive within the time-out."""
        sock, late = self.sock, threading.Event()

        def give_up() -> None:
            late.set()
            with suppress(OSError):  # the socket may already be closed
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own shutdown is not safe from another thread

        timer = threading.Timer(self.timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
        if late.is_set():
            response.close()
            raise TimeoutError("the head of its answer trickles")
        return response


class _Connection(_HeadInTime, HTTPConnection):
    pass


class _TlsConnection(_HeadInTime, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection  # pyrefly: ignore[bad-assignment] `host` is a property in urllib3's classes too


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection  # pyrefly: ignore[bad-assignment] as above


def longest_wait_s(timeout_s: float, retries: int) -> float:
    """Seconds after which every call of a client with these settings has ended."""
    return (retries + 3) * timeout_s + FIRST_BACKOFF_S * max(0, 2**retries - 2)


class JsonClient:
    """Posts to any URL. May be shared between threads."""

    def __init__(self, timeout_s: float, retries: int, repeated_statuses: Collection[int]) -> None:
        self.timeout_s, self.retries = timeout_s, retries
        policy = Retry(
            total=retries,
            backoff_factor=FIRST_BACKOFF_S,
            status_forcelist=repeated_statuses,
            allowed_methods=None,  # the callers' requests may be repeated
            respect_retry_after_header=False,  # the server must not choose how long the client sleeps
            redirect=0,
        )
        plain = {"Accept-Encoding": "identity"}
        self._pool = urllib3.PoolManager(headers=plain, retries=policy, timeout=Timeout(total=timeout_s), maxsize=16)
        self._pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def post(self, url: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """(status, body) of the answer. Raises NoAnswer."""
        sent = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            response = self._pool.request("POST", url, json=body, headers=sent, preload_content=False)
        except MaxRetryError as error:
            reason = error.reason or error
            raise NoAnswer(f"no answer in {self.retries + 1} attempts of {self.timeout_s:g} s ({reason})") from error
        except HTTPError as error:
            raise NoAnswer(f"no answer ({error})") from error
        try:
            return response.status, self._read(response)
        finally:
            response.close()

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":  # a few bytes may inflate to gigabytes
            raise NoAnswer(f"an answer compressed as {brief(encoding)}, which was not asked for")
        end, parts, size = time.monotonic() + self.timeout_s, [], 0
        try:
            while part := response.read1(_CHUNK, decode_content=False):
                parts.append(part)
                size += len(part)
                if size > MAX_BODY:
                    raise NoAnswer(f"an answer above {MAX_BODY} bytes")
                if time.monotonic() > end:
                    raise NoAnswer(f"an answer that takes more than {self.timeout_s:g} s")
        except HTTPError as error:
            raise NoAnswer(f"an answer that breaks off ({error})") from error
        return b"".join(parts)
