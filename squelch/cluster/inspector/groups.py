"""The groups of a run in memory: one row each, from the index; filtered, sorted and cut into pages.

`GroupIndex` holds the index of a live or finished run. It reads a file of the index again when the file has changed,
and a step that is in no index from its part. `Query` is what the address bar says; `Selection` the rows that it means.

100,000 groups take about 60 MB; a query takes some milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squelch.kit.archive.reader import block_keys, group_parts, index_of, read_block, read_index_of
from squelch.kit.archive.schema import INDEX_SCHEMA
from squelch.kit.archive.store import Stat, Store, reading
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import brief

PAGE_SIZE = 50
FRESH_S = 1.0
"""Seconds for which the index in memory is taken as current."""
SORTS = {
    "step": "step",
    "variance": "reward_variance",
    "mean": "mean_return",
    "success": "success",
    "tokens": "num_tokens",
    "score": "score",
}
"""Column by the name of a sort in the URL."""
DECISIONS = ("kept", "dropped", "refused")
SIGNALS = ("zero", "some")
_SEARCHED = ("group_id", "task_key", "environment", "task_kind", "reason", "worker")
_CODED = ("environment", "split", "task_kind", "decision", "reason", "worker")
_ZERO = 1e-10
"""A reward variance of at most this is zero (`kit.filter`)."""


@dataclass(frozen=True)
class Query:
    """Filters, sort and page of the list. An empty text and None filter nothing."""

    q: str = ""
    """Text in the group's id, task key, environment, kind, reason, rollout worker or failure cause."""
    first: int | None = None
    last: int | None = None
    """Steps, both included."""
    decision: str = ""
    signal: str = ""
    """`zero`: no reward variance; `some`: reward variance above zero."""
    environment: str = ""
    kind: str = ""
    task: str = ""
    """A task key: the groups of one task."""
    failed: int | None = None
    """1: only groups with a failed trajectory."""
    sort: str = "step"
    descending: int = 1
    page: int = 1

    @staticmethod
    def of(params: Mapping[str, str]) -> Query:
        """The query of a URL's parameters; parameters of other pages are ignored. UserError for a wrong value."""
        found: dict[str, Any] = {}
        for field in fields(Query):
            text = params.get(field.name, "").strip()
            if text:
                found[field.name] = text if field.type == "str" else _whole(field.name, text)
        query = Query(**found)
        _one_of("sort", query.sort, tuple(SORTS))
        _one_of("decision", query.decision, ("", *DECISIONS))
        _one_of("signal", query.signal, ("", *SIGNALS))
        return query

    def params(self) -> dict[str, str]:
        """The parameters that differ from the defaults, for a URL."""
        plain = Query()
        pairs = ((field.name, getattr(self, field.name)) for field in fields(Query))
        return {name: str(value) for name, value in pairs if value != getattr(plain, name)}


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UserError(f"`{name}` is {brief(text)} in the address; it must be a whole number of 0 or more")
    return int(text)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        known = ", ".join(name for name in allowed if name)
        raise UserError(f"`{name}` is {brief(value)} in the address; it must be one of: {known}")


@dataclass(frozen=True)
class Selection:
    """The rows that a query means, in its order. `rows`: (num_found,) row numbers of `table`."""

    table: pa.Table
    query: Query
    rows: np.ndarray

    @property
    def num_pages(self) -> int:
        """Pages of `PAGE_SIZE` rows, at least one."""
        return max(1, -(-len(self.rows) // PAGE_SIZE))

    def page(self) -> list[dict[str, Any]]:
        """The rows of the query's page; the last page if it is beyond."""
        number = min(max(self.query.page, 1), self.num_pages)
        return self.table.take(self.rows[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]).to_pylist()

    def beside(self, step: int, group_id: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None, int]:
        """The rows before and after a group in the selection, and its place from 1; (None, None, 0) if it is not in
        it."""
        at = row_of(self.table, step, group_id)
        places = np.flatnonzero(self.rows == at) if at is not None else np.zeros(0, int)
        if not len(places):
            return None, None, 0
        place = int(places[0])
        before, after = (self._row(place + offset) for offset in (-1, 1))
        return before, after, place + 1

    def _row(self, place: int) -> dict[str, Any] | None:
        inside = 0 <= place < len(self.rows)
        return (
            self.table.slice(int(self.rows[place]), 1).select(["step", "group_id"]).to_pylist()[0] if inside else None
        )


def row_of(table: pa.Table, step: int, group_id: str) -> int | None:
    """The row number of a group; None if it is not there. `table` is in order of step."""
    steps = table["step"].to_numpy()
    start, end = np.searchsorted(steps, [step, step + 1])
    ids = table["group_id"].slice(start, end - start).to_pylist()
    return int(start) + ids.index(group_id) if group_id in ids else None


class GroupIndex:
    """The index of a run. `table`: `INDEX_SCHEMA` with texts as dictionaries and the columns `success` (share of the
    trajectories that did not fail) and `failures` (their causes as text), in order of step. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.table = _prepared(INDEX_SCHEMA.empty_table())
        self.version = 0
        """Counts the changes of `table`."""
        self._files: dict[tuple[str, int], tuple[Stat | None, pa.Table]] = {}
        """By file and step: the file's facts, and its rows."""
        self._lock = threading.Lock()
        self._checked = -FRESH_S
        self._cached: dict[Query, Selection] = {}

    def refresh(self) -> None:
        """Reads what has changed since the last call, at most once in `FRESH_S`. UserError for a damaged file."""
        with self._lock:
            if time.monotonic() - self._checked < FRESH_S:
                return
            with bad_files_are_the_users():
                self._read()
            self._checked = time.monotonic()

    def _read(self) -> None:
        parts, files = group_parts(self.store), dict[tuple[str, int], tuple[Stat | None, pa.Table]]()

        def blocks() -> Iterator[pa.Table]:
            for first, key in block_keys(self.store).items():
                files[key, first] = self._file(key, first, lambda key=key: read_block(self.store, key))
                yield files[key, first][1]

        def late(held: Container[int]) -> Iterator[pa.Table]:
            for step, part in parts.items():
                if step not in held:
                    at = part.key, step
                    files[at] = self._file(*at, lambda step=step: read_index_of(self.store, step))
                    yield files[at][1]

        whole = index_of(self.store, [INDEX_SCHEMA.empty_table()], blocks())
        whole = index_of(self.store, [whole], late(set(pc.unique(whole["step"]).to_pylist())))
        if {key: stat for key, (stat, _) in files.items()} == {key: stat for key, (stat, _) in self._files.items()}:
            return
        self._files = files
        known = whole.filter(pc.is_in(whole["step"], pa.array(list(parts), pa.int32())))
        order = np.argsort(known["step"].to_numpy(), kind="stable")
        self.table, self._cached = _prepared(known.take(order)), {}
        self.version += 1

    def _file(self, key: str, step: int, read: Any) -> tuple[Stat | None, pa.Table]:
        with reading(self.store.where(key)):
            stat = self.store.stat(key)
        known = self._files.get((key, step))
        return known if known is not None and known[0] == stat else (stat, read())

    def select(self, query: Query) -> Selection:
        """The groups that a query means."""
        ordered = replace(query, page=1)
        with self._lock:
            table, found = self.table, self._cached.get(ordered)
        if found is None:
            found = Selection(table, ordered, _sorted(table, query, np.flatnonzero(_mask(table, query))))
            with self._lock:
                self._cached = dict(list(self._cached.items())[-15:]) | {ordered: found}
        return replace(found, query=query)

    def same_task(self, task_key: str) -> list[dict[str, Any]]:
        """The groups of one task, in order of step; none for the empty key."""
        if not task_key:
            return []
        table = self.table.filter(pc.equal(self.table["task_key"], task_key))
        names = ["step", "group_id", "mean_return", "success", "decision", "reward_variance", "returns", "successes"]
        return table.select(names).to_pylist()

    def rows(self, groups: Collection[tuple[int, str]]) -> list[dict[str, Any]]:
        """The rows of these groups, named by step and id; those that are not there are left out."""
        with self._lock:
            table = self.table
        found = (row_of(table, step, name) for step, name in groups)
        return table.take(np.array([row for row in found if row is not None], int)).to_pylist()

    def values(self, column: str) -> list[str]:
        """The distinct values of a text column, sorted."""
        return sorted(value for value in pc.unique(self.table[column]).to_pylist() if value is not None)


def _prepared(table: pa.Table) -> pa.Table:
    """The table with its derived columns; texts that repeat are dictionaries."""
    successes = table["successes"].combine_chunks()
    rows = pc.list_parent_indices(successes).to_numpy(zero_copy_only=False)
    values = successes.flatten()
    known = values.is_valid().to_numpy(zero_copy_only=False)
    won = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    counts = np.bincount(rows, known, len(table))
    with np.errstate(invalid="ignore"):
        share = np.bincount(rows, won, len(table)) / counts
    failures = pc.binary_join(table["failure_causes"], " ")
    table = table.append_column("success", pa.array(share, from_pandas=True)).append_column("failures", failures)
    for name in (*_CODED, "failures"):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table[name].combine_chunks().dictionary_encode())
    return table.unify_dictionaries().combine_chunks()


def _mask(table: pa.Table, query: Query) -> np.ndarray:
    """(num_groups,) whether a query means the group."""
    steps = table["step"].to_numpy()
    keep = np.ones(len(table), dtype=bool)
    if query.first is not None:
        keep &= steps >= query.first
    if query.last is not None:
        keep &= steps <= query.last
    for column, value in (("decision", query.decision), ("environment", query.environment), ("task_kind", query.kind)):
        if value:
            keep &= _equal(table, column, value)
    if query.task:
        keep &= _equal(table, "task_key", query.task)
    if query.signal:
        variance = table["reward_variance"].to_numpy()
        keep &= (variance > _ZERO) if query.signal == "some" else (variance <= _ZERO)
    if query.failed:
        keep &= table["num_failures"].to_numpy() > 0
    return keep & _contains(table, query.q) if query.q else keep


def _equal(table: pa.Table, column: str, value: str) -> np.ndarray:
    return _flags(pc.equal(table[column], value))


def _contains(table: pa.Table, text: str) -> np.ndarray:
    """(num_groups,) whether a searched text of the group contains `text`, in any case."""
    found = np.zeros(len(table), dtype=bool)
    for name in (*_SEARCHED, "failures"):
        column = table[name].combine_chunks()
        if isinstance(column, pa.DictionaryArray):
            hits = _flags(pc.match_substring(column.dictionary, text, ignore_case=True))
            codes = pc.fill_null(column.indices, -1).to_numpy()
            found |= np.append(hits, False)[codes]
        else:
            found |= _flags(pc.match_substring(column, text, ignore_case=True))
    return found


def _flags(array: Any) -> np.ndarray:
    flat = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return pc.fill_null(flat, False).to_numpy(zero_copy_only=False).astype(bool)


def _sorted(table: pa.Table, query: Query, rows: np.ndarray) -> np.ndarray:
    """The rows in the query's order; groups without a value come last, equal ones in order of step."""
    values = table[SORTS[query.sort]].to_numpy()[rows].astype(np.float64)
    order = np.argsort(-values if query.descending else values, kind="stable")
    return rows[order]
