"""Reads a run that is in a store (`cluster.runs.in_store.manifest`), on a host that has no folder of it.

`Followed` shows the newest state of a run that may be live: when it is read, it looks for a newer manifest, at most
every `FOLLOW_S` seconds. `LocalCopy` brings files to this disk, for readers that need a folder. Both are only read.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from squelch.cluster.runs.in_store.manifest import ReadOnly, Snapshot, answering, find_run, newest, numbers
from squelch.cluster.runs.listing import runs_in
from squelch.kit.archive.bucket import open_store
from squelch.kit.archive.store import LocalStore, Stat
from squelch.kit.base.disk import whole_file

FOLLOW_S = 5.0


class Followed(ReadOnly):
    """The files of a run's newest manifest. Every method but `where` passes on the
    OSError of a store that does not answer, or from which the run has vanished."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._seen = snapshot, time.monotonic()

    def _newest(self, at_once: bool = False) -> Snapshot:
        if at_once or time.monotonic() - self._seen > FOLLOW_S:
            store, before = self._snapshot.store, self._snapshot.manifest
            found = newest(store, None if at_once else before)
            if before.files and not found.files:
                raise OSError(f"{store.where()} holds the run no more: is the store still there?")
            self._snapshot, self._seen = Snapshot(store, found), time.monotonic()
        return self._snapshot

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`. A file that the driver has replaced meanwhile is looked up again."""
        try:
            return self._newest().get(key)
        except FileNotFoundError:
            return self._newest(at_once=True).get(key)

    def list(self, prefix: str = "") -> list[str]:
        """As `Store.list`."""
        return self._newest().list(prefix)

    def stat(self, key: str) -> Stat | None:
        """As `Store.stat`."""
        return self._newest().stat(key)

    def where(self, key: str = "") -> str:
        """As `Store.where`."""
        return self._snapshot.where(key)


def runs_at(url: str) -> dict[str, Path | str] | None:
    """The URLs of the runs below a store's URL by name; None if a run itself is there, or nothing.

    Raises:
        UserError: there is no such store, or it cannot be read.
    """
    with answering(url):
        store = open_store(url)
        if numbers(store):
            return None
        return {name: f"{url.rstrip('/')}/{name}" for name in runs_in(store)} or None


class LocalCopy:
    """A folder with files of a run in a store, verified, under their own names."""

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self.snapshot, self.folder = snapshot, folder

    def fetch(self, wanted: Callable[[str], bool]) -> None:
        """Copies the files whose keys are wanted. UserError for a file that is not the one in the manifest."""
        local = LocalStore(self.folder)
        for key in filter(wanted, self.snapshot.list()):
            with whole_file(local.path(key)) as file:
                file.writelines(self.snapshot.chunks(key))


@contextmanager
def local_copy(url: str) -> Iterator[LocalCopy]:
    """An empty copy of the run at a URL, in a temporary folder with the run's name. UserError if there is no run."""
    snapshot = find_run(url)
    with tempfile.TemporaryDirectory(prefix="squelch-run-") as folder:
        place = Path(folder) / url.rstrip("/").rpartition("/")[2]
        place.mkdir()
        yield LocalCopy(snapshot, place)
