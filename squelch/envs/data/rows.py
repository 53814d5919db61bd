"""Readers of published data: rows of local Parquet, JSON and JSON Lines files, or of a data set of the hub.

    class Question(BaseModel):
        query: str
        response: str

    rows = read_rows("path/to/MetaMathQA", "train", Question)      # a Sequence[Question]
    mine = split_rows("path/to/MetaMathQA", "validation", Question, group_by="query")

A row type is a pydantic model whose fields (or their aliases) are the wanted columns; a field with a default is
optional, and other columns are not read unless the model allows extra fields. Invariants:

- Opening reads no rows: for Parquet only the footers, for JSON one pass that finds the beginnings of rows. A row is
  read when it is accessed, a row group at a time, and at most `CACHE_BYTES` of row groups are cached, so that a data
  set may be larger than memory. Readers may be shared between threads.
- Bad data in a file raise `Unreadable`, a ValueError, that names file, row (from 1; for JSON Lines the line) and
  column, and says what would be right. Files may be hostile: what is decoded at once is bounded (`kit.untrusted`).
- `split_rows`: no group is in both splits. If a data set publishes no validation split, the held-out part is a function
  of the groups' digests, so it is the same in every run and is never trained on. Two groups are enough.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np
from pydantic import BaseModel, ValidationError

from squelch.envs.data.files import Source, UnknownSplitError, find_files
from squelch.kit.records.splits import Split, split_of, task_key_of
from squelch.kit.untrusted.files import Unreadable, brief, decoding, require_regular, shortened
from squelch.kit.untrusted.json_rows import JsonShard, Shard, named
from squelch.kit.untrusted.parquet import DAMAGED, open_parquet, read_row_group

if TYPE_CHECKING:  # the filter's commands import `envs` and must start fast: pyarrow is loaded with the first file
    import pyarrow as pa

Row = TypeVar("Row", bound=BaseModel)
T = TypeVar("T")

CACHE_BYTES = 256 * 2**20
"""Most bytes of row groups cached in memory, over all readers of the process; the newest row group is always cached."""


def read_rows(source: Source, split: str, row_type: type[Row], subset: str | None = None) -> Rows[Row]:
    """The rows of one published split, as a sequence that reads lazily.

    `source`: a file, several files, a folder with the layout of the hub, or a hub id `OWNER/NAME` (downloaded).
    `split`: a published split (train, validation, test, or the data set's own name). `subset`: one of the data set's
    subsets. Raises ValueError naming the missing split or file and the existing ones. Opening needs a pass over JSON
    files, so share the result.
    """
    named = [field.alias or name for name, field in row_type.model_fields.items()]
    columns = None if row_type.model_config.get("extra") == "allow" else named
    required = {field.alias or name for name, field in row_type.model_fields.items() if field.is_required()}
    shards = [_open(path, columns, required) for path in find_files(source, split, subset)]
    if columns is None:
        _require_same_columns(shards)
    rows = Rows(shards, row_type)
    if not len(rows):
        raise Unreadable(f"{', '.join(str(shard.path) for shard in shards)}: no rows in split {split!r}")
    return rows


def any_rows(source: Source, row_type: type[Row]) -> Rows[Row]:
    """The rows of files, whatever split their names say; of a folder or a hub id those of the first split of
    validation, test and train. Raises as `read_rows`."""
    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    shards = [shard for one in several for shard in _first_split(one, row_type).shards]
    _require_same_columns(shards)
    return Rows(shards, row_type)


def _first_split(source: Source, row_type: type[Row]) -> Rows[Row]:
    for split in ("validation", "test"):
        with suppress(UnknownSplitError):
            return read_rows(source, split, row_type)
    return read_rows(source, "train", row_type)


class Beside(NamedTuple):
    """A second column, read in the same pass. `seen` gets the text and the value of the first column and the value of
    this one, None in a file without it, of every row; its ValueError is raised with the row."""

    column: str
    seen: Callable[[str, Any, Any], None]


def plain_text(value: Any) -> str:
    """The value, which must be text: a ValueError says so."""
    if not isinstance(value, str):
        raise ValueError(f"text is needed (got {brief(value)})")
    return value


def split_rows(
    source: Source,
    split: Split,
    row_type: type[Row],
    group_by: str,
    subset: str | None = None,
    text_of: Callable[[Any], str] = plain_text,
) -> Part[Row]:
    """The rows of one of Squelch's two splits. Rows with the same text in column `group_by`, ignoring case and white
    space, are always in the same split. `text_of`: the text of a value of that column; its ValueError is raised with
    the row.

    A published validation split is used as it is, and training rows of its groups are excluded. Without one, groups of
    `train` are held out by their digest (`kit.records.splits.split_of`); if it leaves a split empty, that gets the
    group whose digest is nearest. A published `test` is never read.
    """
    rows, published = _opened(source, row_type, subset)
    if split == "validation" and published is not None:
        return Part(published, np.arange(len(published)), str(published))
    return _parted(rows, published, group_by, text_of, None)[split]


def both_splits(
    source: Source,
    row_type: type[Row],
    group_by: str,
    text_of: Callable[[Any], str],
    beside: Beside,
    validation: Rows[Row] | None = None,
) -> dict[Split, Part[Row]]:
    """Both splits, as `split_rows` gives them, of which every row is read once. `validation`: the rows of
    validation, if not the source has them."""
    return _parted(*_opened(source, row_type, None, validation), group_by, text_of, beside)


def _opened(
    source: Source, row_type: type[Row], subset: str | None, published: Rows[Row] | None = None
) -> tuple[Rows[Row], Rows[Row] | None]:
    """The rows of `train`, and those that are `published` for validation, here or by the source."""
    rows = read_rows(source, "train", row_type, subset)
    if published is None:
        try:
            published = read_rows(source, "validation", row_type, subset)
        except UnknownSplitError:
            return rows, None
    if row_type.model_config.get("extra") == "allow":
        _require_same_columns([*rows.shards, *published.shards])
    return rows, published


def _require_same_columns(shards: Sequence[Shard]) -> None:
    """Raises Unreadable if a file lacks a column that another has; the rows of each have all columns of its first."""
    named = [(shard, names) for shard in shards if (names := shard.names())]
    for shard, names in named:
        for other, theirs in named:
            if lacking := [name for name in theirs if name not in names]:
                where = f"{shard.path}, {shard.row_name(0)}"
                raise Unreadable(
                    f"{where}: no column {lacking[0]!r}, which {other.path} has; every row needs the same columns"
                )


def _parted(
    rows: Rows[Row], published: Rows[Row] | None, group_by: str, text_of: Callable[[Any], str], beside: Beside | None
) -> dict[Split, Part[Row]]:
    digests = _digests(rows, group_by, text_of, beside)
    if published is None:
        held_out = np.isin(digests, _held_out(np.unique(digests), f"{rows}, column {group_by}"))
        indices: dict[Split, np.ndarray] = {"train": np.flatnonzero(~held_out), "validation": np.flatnonzero(held_out)}
        return {split: Part(rows, own, f"the {split} part of {rows}") for split, own in indices.items()}
    theirs = np.isin(digests, _digests(published, group_by, text_of, beside))
    return {
        "train": Part(rows, np.flatnonzero(~theirs), f"{rows} without what {published} holds"),
        "validation": Part(published, np.arange(len(published)), str(published)),
    }


class LazyRows(Sequence[Row], ABC):
    """A sequence whose items are read when they are accessed."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.read(index % len(self))

    @abstractmethod
    def read(self, index: int) -> Row:
        """The row at `index`, 0 <= index < len(self), checked. Raises ValueError with file, row and column."""

    @abstractmethod
    def location(self, index: int) -> str:
        """File and row of an item, for error messages of callers."""


class Rows(LazyRows[Row]):
    """Rows of several files in sequence; each row is checked when it is read."""

    def __init__(self, shards: Sequence[Shard], row_type: type[Row]) -> None:
        self.row_type = row_type
        self.shards = shards
        self._ends = list(itertools.accumulate(len(shard) for shard in shards))

    def __len__(self) -> int:
        return self._ends[-1]

    def __str__(self) -> str:
        return ", ".join(str(shard.path) for shard in self.shards)

    def read(self, index: int) -> Row:
        """As `LazyRows.read`."""
        shard, offset = self._find(index)
        try:
            return self.row_type.model_validate(shard.row(offset))
        except ValidationError as error:
            raise Unreadable(f"{self.location(index)}, {_complaint(error)}") from error
        except OverflowError as error:  # an integer with more digits than a float can express
            raise Unreadable(f"{self.location(index)}: a number is too large ({error})") from error

    def location(self, index: int) -> str:
        """As `LazyRows.location`."""
        shard, offset = self._find(index)
        return f"{shard.path}, {shard.row_name(offset)}"

    def column(self, name: str) -> Iterator[str]:
        """One text column in order, as `values`. Raises ValueError for other types."""
        return self.texts(name, plain_text)

    def texts(self, name: str, text_of: Callable[[Any], str], beside: Beside | None = None) -> Iterator[str]:
        """What `text_of` makes of the values of a column, in order. Raises ValueErrors with the row."""
        second = None if beside is None else beside.column
        for index, (value, other) in enumerate(self.values(name, second)):
            column = name
            try:
                text = text_of(value)
                if beside is not None:
                    column = beside.column
                    beside.seen(text, value, other)
            except ValueError as error:
                raise Unreadable(f"{self.location(index)}, column {column}: {error}") from error
            yield text

    def values(self, name: str, beside: str | None = None) -> Iterator[tuple[Any, Any]]:
        """One column in order, and the column `beside` it (`Shard.pairs`), without reading others if the format allows
        it."""
        for shard in self.shards:
            yield from shard.pairs(name, beside)

    def _find(self, index: int) -> tuple[Shard, int]:
        which = bisect.bisect_right(self._ends, index)
        return self.shards[which], index - (self._ends[which - 1] if which else 0)


class Part(LazyRows[Row]):
    """A subset of the rows, by index; at least one row."""

    def __init__(self, rows: Rows[Row], indices: np.ndarray, name: str) -> None:
        if not len(indices):
            raise Unreadable(f"{name}: no rows; more data are needed")
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> Row:
        """As `LazyRows.read`."""
        return self._rows.read(int(self._indices[index]))

    def location(self, index: int) -> str:
        """As `LazyRows.location`."""
        return self._rows.location(int(self._indices[index]))


class ParquetShard(Shard):
    """A Parquet file; decodes the wanted columns of one row group at a time."""

    def __init__(self, path: Path, columns: Sequence[str] | None, required: set[str]) -> None:
        super().__init__(path, columns)
        require_regular(path)
        self._file = open_parquet(path, str(path))
        known = self._file.schema_arrow.names
        for name in sorted(required - set(known)):
            raise Unreadable(f"{path}: no column {name!r}; it has {named(known)}")
        self._present = known if columns is None else [name for name in columns if name in known]
        with decoding(str(path), DAMAGED):
            sizes = [self._file.metadata.row_group(g).num_rows for g in range(self._file.num_row_groups)]
        if any(size < 0 for size in sizes):
            raise Unreadable(f"{path} {DAMAGED}: a row group has {min(sizes)} rows")
        self._ends = list(itertools.accumulate(sizes))
        self._number = next(_NUMBERS)
        self._lock = threading.Lock()  # a ParquetFile is not safe to read from two threads

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def names(self) -> Sequence[str]:
        """As `Shard.names`."""
        return self._file.schema_arrow.names if len(self) else ()

    def row(self, index: int) -> dict[str, Any]:
        """As `Shard.row`."""
        group = bisect.bisect_right(self._ends, index)
        table = _CACHE.get((self._number, group))
        if table is None:
            table = self._read(group, self._present)
            _CACHE.put((self._number, group), table)
        with decoding(f"{self.path}, {self.row_name(index)}", "is damaged"):
            return table.slice(index - (self._ends[group - 1] if group else 0), 1).to_pylist()[0]

    def row_name(self, index: int) -> str:
        """As `Shard.row_name`."""
        return f"row {index + 1}"

    def pairs(self, name: str, beside: str | None) -> Iterator[tuple[Any, Any]]:
        """As `Shard.pairs`."""
        known = self._file.schema_arrow.names
        if name not in known:
            raise Unreadable(f"{self.path}: no column {name!r}; it has {named(known)}")
        names = [one for one in (name, beside) if one is not None and one in known]
        for group in range(len(self._ends)):
            for batch in self._read(group, names).to_batches(max_chunksize=65_536):
                with decoding(self._rows(group), DAMAGED):
                    first, *other = (batch.column(one).to_pylist() for one in names)
                yield from zip(first, other[0] if other else itertools.repeat(None), strict=False)

    def _read(self, group: int, columns: list[str]) -> pa.Table:
        with self._lock:
            table = read_row_group(self._file, self._rows(group), group, columns)
        first = self._ends[group - 1] if group else 0
        if len(table) != self._ends[group] - first:
            raise Unreadable(f"{self._rows(group)} {DAMAGED}: there are {len(table)} rows")
        return table

    def _rows(self, group: int) -> str:
        """The rows of a group, for messages."""
        return f"{self.path}, rows {(self._ends[group - 1] if group else 0) + 1} to {self._ends[group]}"


def _open(path: Path, columns: Sequence[str] | None, required: set[str]) -> Shard:
    if path.suffix == ".parquet":
        return ParquetShard(path, columns, required)
    return JsonShard(path, columns, sorted(required))


def _digests(rows: Rows[Any], column: str, text_of: Callable[[Any], str], beside: Beside | None = None) -> np.ndarray:
    """The leading 64 bits of each row's digest of `column`, shape (num_rows,), uint64. Case and white space are
    ignored: data sets repeat questions with an additional line break, and such copies must be in the same split."""
    texts = rows.texts(column, text_of, beside)
    keys = (int(task_key_of("data", " ".join(text.split()).casefold())[:16], 16) for text in texts)
    return np.fromiter(keys, np.uint64, len(rows))


def _held_out(digests: np.ndarray, where: str) -> np.ndarray:
    """The digests, of those that differ, whose rows are validation's; (num_held_out,) uint64. Raises Unreadable if
    there is only one, which cannot be in both splits."""
    if len(digests) < 2:
        raise Unreadable(
            f"{where}: all rows are the same; at least two must differ, because one is held out for validation"
        )
    theirs = np.array([split_of(f"{digest:016x}") == "validation" for digest in digests.tolist()])
    if not theirs.any():
        theirs[0] = True
    elif theirs.all():
        theirs[-1] = False
    return digests[theirs]


def _complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    column = shortened(".".join(map(str, first["loc"])) or "?", 80)
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return f"column {column}: missing; every row needs it"
    return f"column {column}: {first['msg'].removeprefix('Value error, ')} (got {brief(first['input'])})"


class _GroupCache:
    """Cache of decoded row groups; the least recently used is dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, int]) -> pa.Table | None:
        """A cached row group; None if it is not cached."""
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
            return self._tables.get(key)

    def put(self, key: tuple[int, int], table: pa.Table) -> None:
        """Adds a row group, and drops others beyond `CACHE_BYTES`."""
        with self._lock:
            if key not in self._tables:
                self._bytes += table.nbytes
            self._tables[key] = table
            while self._bytes > CACHE_BYTES and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes


_CACHE = _GroupCache()
_NUMBERS = itertools.count()


def shuffled(seed: int, count: int) -> int:
    """Maps any `count` consecutive values of `seed` to a permutation of range(count)."""
    stride = int(count * 0.618) | 1
    while math.gcd(stride, count) > 1:
        stride += 2
    return seed * stride % count
