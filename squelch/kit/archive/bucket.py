"""A store in a bucket of an object store (S3 and what speaks its protocol, Google Cloud Storage, Azure), and the store
that a URL names.

The library is `obstore`, which the extra `store` installs: it has conditional writes, which pyarrow's file systems
lack. Credentials come from the environment of the process (`AWS_ACCESS_KEY_ID`, a role of the machine, ...), never from
a setting or a URL, so that no configuration, log or archive can hold them.

Every request is bounded (`CONNECT_S`, `SILENCE_S`, `REQUEST_S`) and sent at most `1 + RETRIES` times; then an OSError
says what the server answered. A file is transferred in chunks of `CHUNK_BYTES`, so that memory does not grow with it.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from squelch.kit.archive.store import LocalStore, RangeReader, Stat, Store, StoreUrlError, check_store
from squelch.kit.untrusted.files import Unreadable, reason, shortened

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

CHUNK_BYTES = 8 << 20
CONCURRENT = 4
"""Chunks of one file that are sent at once."""
CONNECT_S, SILENCE_S, REQUEST_S, RETRIES = 5, 30, 300, 2
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>\s*(?:<Message>([^<]{0,300})</Message>)?")
_STATUS = re.compile(r"Server returned non-2xx status code: ([^:\n]{1,60})")
_REASON = re.compile(r'\b(?:message|error): "((?:[^"\\\n]|\\.){1,300})"')
"""A reason in the chain of errors that the library shows below its first line; the innermost is last."""
_LATE = re.compile(r"\bTimedOut\b|kind: Timeout\b")
_SERVER = re.compile(r"https?://[^/\s,?]{1,200}")
_MAY_NOT = "; check the bucket's name, and that the credentials in the environment may read it and write to it"


def open_store(url: str, *, name: str = "") -> Store:
    """The store at a URL, or below it at `name`. Sends nothing.

    Raises:
        StoreUrlError: the URL has another form or holds credentials (`kit.archive.store.check_store`), or the
            library for buckets is not installed.
    """
    scheme, colon, rest = check_store(url).partition("://")
    if not colon or scheme == "file":
        return LocalStore(Path(rest if colon else url) / name)
    return Bucket("/".join(part for part in (url.rstrip("/"), name) if part))


@dataclass(frozen=True)
class Bucket:
    """A store below a prefix of a bucket. `url` has no trailing slash."""

    url: str
    _client: ObjectStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_client", _client(self.url))

    @contextmanager
    def put(self, key: str) -> Iterator[BinaryIO]:
        """As `Store.put`. A file larger than a chunk travels in several requests and becomes visible with the last."""
        import obstore

        with _named(self.where(key)):
            writer = obstore.open_writer(
                self._client, _checked(key), buffer_size=CHUNK_BYTES, max_concurrency=CONCURRENT
            )
        sink = _Sink(writer, self.where(key))
        yield cast(BinaryIO, sink)  # after an error in the block nothing is committed: the writer is not closed
        with _named(self.where(key)):
            writer.close()

    def create(self, key: str, data: bytes) -> bool:
        """As `Store.create`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with _named(self.where(key)):
            try:
                obstore.put(self._client, _checked(key), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return self._holds(key, data)  # a repeated request finds what the first has written
        return True

    def _holds(self, key: str, data: bytes) -> bool:
        with self.get(key) as file:
            return file.read(len(data) + 1) == data

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`. Reads a chunk at a time."""
        found = self.stat(key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(key))
        return io.BufferedReader(_Ranges(self, key, found.size), CHUNK_BYTES)

    def read_range(self, key: str, start: int, length: int) -> Buffer:
        """Bytes of a file from `start`; `length` must be above 0."""
        import obstore

        with _named(self.where(key)):
            return obstore.get_range(self._client, _checked(key), start=start, length=length)

    def list(self, prefix: str = "") -> list[str]:
        """As `Store.list`."""
        import obstore

        folder, _, _ = prefix.rpartition("/")  # the library lists whole folders only
        with _named(self.where(prefix)):
            found = [meta["path"] for page in obstore.list(self._client, folder or None) for meta in page]
        return sorted(key for key in found if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """As `Store.delete`."""
        import obstore

        with _named(self.where(key)):
            try:
                obstore.delete(self._client, _checked(key))
            except FileNotFoundError:
                return

    def stat(self, key: str) -> Stat | None:
        """As `Store.stat`."""
        import obstore

        with _named(self.where(key)):
            try:
                meta = obstore.head(self._client, _checked(key))
            except FileNotFoundError:
                return None
        return Stat(meta["size"], int(meta["last_modified"].timestamp() * 1e9))

    def where(self, key: str = "") -> str:
        """As `Store.where`."""
        return f"{self.url}/{key}" if key else self.url


def _checked(key: str) -> str:
    if not key or key.startswith("/") or ".." in key.split("/"):
        raise ValueError(f"{key!r} is no key: a key is a relative path without `..`")
    return key


def _client(url: str) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError as error:
        raise StoreUrlError(f"{url} needs the package obstore: pip install 'squelch-rl[store]'") from error
    plain = any(os.environ.get(name, "").startswith("http://") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))
    limits: Any = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=SILENCE_S),
        "timeout": timedelta(seconds=REQUEST_S),
        "allow_http": plain,
    }
    try:
        retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=REQUEST_S)}
        return from_url(url, client_options=limits, retry_config=retry)
    except (BaseError, ValueError) as error:
        raise StoreUrlError(f"{url} is no store: {_answer(error)}") from error


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Turns the library's errors into an OSError that names the place and says in a line what the server answered."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:  # of a write or a listing: the bucket itself is missing
        raise OSError(errno.ENOENT, f"{where}: {_answer(error)}", where) from error
    except (BaseError, ValueError) as error:
        if isinstance(error, Unreadable):
            raise
        raise OSError(errno.EIO, f"{where}: {_answer(error)}", where) from error


def _answer(error: Exception) -> str:
    """The server's code and message, or else the innermost reason, or else the library's first line. The rest of the
    library's text is left out: it shows the request."""
    text = str(error)
    if found := _CODE.search(text):
        return ": ".join(part.strip() for part in found.groups() if part)
    if found := _STATUS.search(text):
        return found[1] + (_MAY_NOT if found[1].startswith(("401", "403")) else "")
    first = text.partition("\n")[0]
    if "169.254." in first:  # the library asks the machine for a role when it finds no other credentials
        return "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
    return _innermost(text) or (shortened(first, 200) if first else reason(error))


def _innermost(text: str) -> str | None:
    """The reason in which the library's chain of errors ends, and the server; None if the text shows no reason."""
    reasons = _REASON.findall(text)
    if not reasons and not _LATE.search(text):
        return None
    server = _SERVER.search(text)
    return (reasons[-1] if reasons else "no answer in time") + (f" ({server[0]})" if server else "")


class _Sink(io.RawIOBase):
    """A file whose bytes go to the library's writer."""

    def __init__(self, writer: Any, where: str) -> None:
        super().__init__()
        self._writer, self._where = writer, where

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        with _named(self._where):
            self._writer.write(bytes(data))
        return memoryview(data).nbytes


class _Ranges(RangeReader):
    """A file of a bucket, read range by range."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        super().__init__(size)
        self._bucket, self._key = bucket, key

    def _read_at(self, position: int, length: int) -> Buffer:
        return self._bucket.read_range(self._key, position, length)
