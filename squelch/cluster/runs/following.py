"""Follows the lines of a live run: each call returns the lines that are new since the last one. Pure.

A resumed run replaces `metrics.jsonl` by a shorter file. The follower notices that the line that it read last is no
longer where it was, and starts again from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from squelch.kit.archive.store import Store, reading
from squelch.kit.untrusted.text import MAX_LINE, lines_of, parse_object


class LineFollower:
    """The complete lines of one file of JSON lines."""

    def __init__(self, store: Store, key: str, newest_bytes: int | None = None) -> None:
        """`newest_bytes`: of a larger file only the last bytes are read at first."""
        self.store, self.key, self.newest_bytes = store, key, newest_bytes
        self._at = 0
        """Bytes read so far."""
        self._last = b""
        """The line that ends there."""
        self._lines: int | None = 0
        """Number of lines up to there; None if the follower began in the middle."""

    def news(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """(whether the lines of earlier calls are void, the new lines). Raises ArchiveError for a damaged line, at this
        call and at every later one; likewise a line during which the caller raises comes again."""
        void = self._moved()
        if void:
            self._at, self._last, self._lines = 0, b"", 0
        return void, self._new_lines()

    def _moved(self) -> bool:
        """Whether the line that was read last is gone."""
        with reading(self.store.where(self.key)):
            found = self.store.stat(self.key)
            if not self._at:
                return False
            if found is None or found.size < self._at:
                return True
            with self.store.get(self.key) as file:
                file.seek(self._at - len(self._last))
                return file.read(len(self._last)) != self._last

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        where = self.store.where(self.key)
        with reading(where):
            found = self.store.stat(self.key)
            if found is None or found.size <= self._at:
                return
            with self.store.get(self.key) as file:
                if not self._at and self.newest_bytes is not None and found.size > self.newest_bytes:
                    file.seek(found.size - self.newest_bytes - 1)
                    self._last = file.readline(MAX_LINE)
                    self._at, self._lines = file.tell(), None
                file.seek(self._at)
                before = f"byte {self._at}" if self._lines is None else f"line {self._lines}"
                here = f"{where} after {before}" if self._at else where
                for number, line in lines_of(file, here):
                    if not line.endswith(b"\n"):
                        return
                    if line.strip():
                        place = f"{here}, line {number}" if self._lines is None else f"{where} line {self._lines + 1}"
                        yield parse_object(line, place)
                    self._at, self._last = self._at + len(line), line  # not after a line that is refused
                    self._lines = None if self._lines is None else self._lines + 1
