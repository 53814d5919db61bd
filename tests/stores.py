"""Stores for tests: a real S3 server in process (moto), and a folder that fails when it is told to."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from squelch.kit.archive.store import LocalStore, Stat

SECRET = "moto-secret-0123456789abcdef"


@dataclass(frozen=True)
class S3:
    """An S3 server with one bucket, and the environment by which it is found."""

    url: str
    env: dict[str, str]


@contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[S3]:
    """A server on a free loopback port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=180).close()
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=180).close()
        env = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "moto-key-id",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        yield S3(f"s3://{bucket}", env)
    finally:
        server.stop()


def use(monkeypatch: pytest.MonkeyPatch, server: S3) -> None:
    """Lets this process find the server."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)


class Down(OSError):
    """The store fails, as told."""


@dataclass
class Memory:
    """A store in memory of which only the first `lives` changes succeed; the one after them fails before it is made,
    or with `late` after it was made, as when an answer is lost."""

    files: dict[str, bytes] = field(default_factory=dict)
    lives: int = 10**9
    late: bool = False
    changes: int = 0

    def _change(self, key: str, data: bytes | None) -> None:
        self.lives -= 1
        if self.lives >= 0 or self.late:
            self.changes += 1
            self.files.pop(key, None)
            if data is not None:
                self.files[key] = data
        if self.lives < 0:
            raise Down("memory: the store is down")

    @contextmanager
    def put(self, key: str) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        self._change(key, file.getvalue())

    def create(self, key: str, data: bytes) -> bool:
        if key in self.files:
            return self.files[key] == data  # as a bucket does
        self._change(key, data)
        return True

    def delete(self, key: str) -> None:
        self._change(key, None)

    def get(self, key: str) -> BinaryIO:
        if key not in self.files:
            raise FileNotFoundError(key)
        return io.BytesIO(self.files[key])

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.files if key.startswith(prefix))

    def stat(self, key: str) -> Stat | None:
        return Stat(len(self.files[key]), 0) if key in self.files else None

    def where(self, key: str = "") -> str:
        return f"memory:{key}"


def tree(folder: Path) -> dict[str, bytes]:
    """The content of every file of a folder whose name, and folders' names, begin with no dot."""
    keys = LocalStore(folder).list()
    return {key: (folder / key).read_bytes() for key in keys}
