"""A user's retriever over HTTP, with the protocol of Search-R1's server (Jin et al. 2025, `retrieval_server.py`).

    POST <url>  {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"contents": "\\"Title\\"\\ntext"}, "score": 1.5}]]}

A call waits for the server at most `longest_wait_s`. There are `retries + 1` attempts, with a back-off that doubles
from the second attempt on. Each attempt waits `timeout_s` for the head of the answer. The body gets another
`timeout_s`; this limit is checked when data arrive or after a silence of `timeout_s`. An attempt is repeated if the
connection fails, if there is no answer in time, and for the status codes of an overloaded server.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import urllib3
from pydantic import BaseModel, ValidationError
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry, Timeout

from envs.retrieval.found import Found, RetrieverError
from envs.untrusted.files import brief, shortened
from envs.untrusted.secrets import masked

OVERLOADED = (429, 500, 502, 503, 504)
FIRST_BACKOFF_S = 0.25
MAX_BODY = 4 * 2**20
MAX_COMPLAINT = 500
"""Characters of an error besides the URL, parts of which the server may have chosen."""
_CHUNK = 2**16


class _Document(BaseModel):
    contents: str


class _Hit(BaseModel):
    document: _Document
    score: float


class _Answer(BaseModel):
    result: list[list[_Hit]]


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


class HttpRetriever:
    """Retriever that queries the server at `url`. May be shared between threads."""

    def __init__(self, url: str, timeout_s: float, retries: int) -> None:
        self.url, self.timeout_s, self.retries = url, timeout_s, retries
        policy = Retry(
            total=retries,
            backoff_factor=FIRST_BACKOFF_S,
            status_forcelist=OVERLOADED,
            allowed_methods=None,  # a query may be repeated
            respect_retry_after_header=False,  # the server must not choose how long the client sleeps
            redirect=0,
        )
        plain = {"Accept-Encoding": "identity"}
        self._pool = urllib3.PoolManager(headers=plain, retries=policy, timeout=Timeout(total=timeout_s), maxsize=16)
        self._pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    @property
    def longest_wait_s(self) -> float:
        """Seconds after which every call has ended."""
        return (self.retries + 3) * self.timeout_s + FIRST_BACKOFF_S * max(0, 2**self.retries - 2)

    def retrieve(self, query: str, count: int) -> list[Found]:
        """The server's passages for `query`. Raises RetrieverError with the reason if there is no valid answer."""
        body = {"queries": [query.encode(errors="replace").decode()], "topk": count, "return_scores": True}
        try:
            response = self._pool.request("POST", self.url, json=body, preload_content=False)
        except MaxRetryError as error:
            reason = error.reason or error
            raise self._error(f"no answer in {self.retries + 1} attempts of {self.timeout_s:g} s ({reason})") from error
        except HTTPError as error:
            raise self._error(f"no answer ({error})") from error
        try:
            content = self._read(response)
        finally:
            response.close()
        if response.status != 200:
            raise self._error(f"status {response.status} ({_brief(content)})")
        return self._found(content)[:count]

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":  # a few bytes may inflate to gigabytes
            raise self._error(f"an answer compressed as {brief(encoding)}, which was not asked for")
        end, parts, size = time.monotonic() + self.timeout_s, [], 0
        try:
            while part := response.read1(_CHUNK, decode_content=False):
                parts.append(part)
                size += len(part)
                if size > MAX_BODY:
                    raise self._error(f"an answer above {MAX_BODY} bytes")
                if time.monotonic() > end:
                    raise self._error(f"an answer that takes more than {self.timeout_s:g} s")
        except HTTPError as error:
            raise self._error(f"an answer that breaks off ({error})") from error
        return b"".join(parts)

    def _found(self, content: bytes) -> list[Found]:
        try:
            answer = _Answer.model_validate(json.loads(content))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise self._error(f"nonsense: {where}: {first['msg']} (got {brief(first['input'])})") from error
        except (ValueError, RecursionError) as error:
            raise self._error(f"nonsense, not JSON: {_brief(content)}") from error
        if len(answer.result) != 1:
            raise self._error(f"nonsense: {len(answer.result)} results for 1 query")
        return [_split(hit) for hit in answer.result[0]]

    def _error(self, what: str) -> RetrieverError:
        return RetrieverError(masked(f"retriever {self.url}: {shortened(what, MAX_COMPLAINT)}"))


def _split(hit: _Hit) -> Found:
    """The passage in Search-R1's contents: the title in quotes, a line break, the text."""
    title, _, text = hit.document.contents.partition("\n")
    return Found(title.strip().strip('"'), text.strip(), hit.score)


def _brief(content: bytes) -> str:
    return repr(content[:80].decode(errors="replace"))
