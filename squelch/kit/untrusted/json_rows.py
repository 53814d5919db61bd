"""The rows of a file of records, and those of JSON Lines or of one JSON array of objects, read as they are accessed.

Data in a file that are wrong raise `Unreadable`, which names file and row (from 1; for JSON Lines the line).
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from squelch.kit.untrusted.files import Unreadable, decoding, open_file, shortened, size_text
from squelch.kit.untrusted.json_spans import array_spans, line_spans
from squelch.kit.untrusted.text import MAX_LINE, parse_object


class Shard(ABC):
    """One file."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self.path, self.columns = path, columns

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The columns of the file, or of its first row; none of a file without rows."""

    @abstractmethod
    def row(self, index: int) -> dict[str, Any]:
        """The wanted columns that the row has; all of them if `columns` is None."""

    @abstractmethod
    def row_name(self, index: int) -> str:
        """The row's name in error messages."""

    @abstractmethod
    def pairs(self, name: str, beside: str | None) -> Iterator[tuple[Any, Any]]:
        """One column in order, each value with that of the column `beside` it, None if the file has none."""


class JsonShard(Shard):
    """JSON Lines, or one JSON array of objects; the file is memory-mapped and a row is parsed when it is accessed."""

    def __init__(self, path: Path, columns: Sequence[str] | None, required: Sequence[str] = ()) -> None:
        super().__init__(path, columns)
        self._required = required
        with open_file(path) as file:
            if not file.seek(0, 2):
                raise Unreadable(f"{path}: empty; need JSON Lines or an array of objects")
            with decoding(str(path), "cannot be read"):
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._is_array = self._data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
        self._spans, self._lines = (array_spans if self._is_array else line_spans)(self._data, path)

    def __len__(self) -> int:
        return len(self._spans)

    def names(self) -> Sequence[str]:
        """As `Shard.names`."""
        return tuple(self._parse(0)) if len(self) else ()

    def row(self, index: int) -> dict[str, Any]:
        """As `Shard.row`."""
        found = self._parse(index)
        return found if self.columns is None else {name: found[name] for name in self.columns if name in found}

    def row_name(self, index: int) -> str:
        """As `Shard.row_name`."""
        return f"row {index + 1}" if self._is_array else f"line {self._lines[index]}"

    def pairs(self, name: str, beside: str | None) -> Iterator[tuple[Any, Any]]:
        """As `Shard.pairs`."""
        needed = [name]
        for index in range(len(self)):
            found = self._parse(index)
            if self.columns is None and not index:
                needed = list(dict.fromkeys((name, *self._required, *found)))
            if lacking := [one for one in needed if one not in found]:
                where = f"{self.path}, {self.row_name(index)}"
                raise Unreadable(f"{where}: no column {lacking[0]!r}; it has {named(found)}")
            if self.columns is None and len(found) > len(needed):
                [extra, *_] = (one for one in found if one not in needed)
                where, other = f"{self.path}, {self.row_name(0)}", self.row_name(index)
                raise Unreadable(f"{where}: no column {extra!r}, which {other} has; every row needs the same columns")
            yield found[name], None if beside is None else found.get(beside)

    def _parse(self, index: int) -> dict[str, Any]:
        start, end = self._spans[index]
        where = f"{self.path}, {self.row_name(index)}"
        if end - start > MAX_LINE:
            raise Unreadable(f"{where}: longer than {size_text(MAX_LINE)}")
        return parse_object(self._data[start:end], where)


def named(names: Sequence[str] | dict[str, Any]) -> str:
    """The names of columns, for messages; many are cut."""
    return shortened(", ".join(names), 300)
