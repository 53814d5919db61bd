"""Checks of tables that were read from files: types are right by then, values may still be wrong.

Refused are nulls where the schema has none, also inside lists; lists of the same tokens that differ in length;
positions of turns outside of the row's tokens or in two segments; and segments that begin with a sampled token. Each
would otherwise show as an error, or a wrong metric, far from the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squelch.kit.archive.schema import DECISION, INDEX, TABLES, TRAJECTORY, Column
from squelch.kit.untrusted.files import Unreadable

_OF_TOKENS = ("token_ids", "loss_mask", "log_probs")
_OF_TRAJECTORIES = ("returns", "successes", "lengths", "num_turns")
"""Lists of the index with one value for each trajectory."""
_INSIDE = {
    name: TABLES[name.removesuffix("s")] for name in ("turns", "version_spans", "pictures", "segments", "untrained")
}
"""Lists of a trajectory whose entries have columns of their own."""
_HOLES = frozenset({"returns", "successes"})
"""Lists of the index with a null for each failed trajectory."""
_POSITIONS = ("sample_start", "reasoning_start", "reasoning_end", "sample_end")
"""Positions of a turn in ascending order."""


def check_rows(table: pa.Table, where: str) -> None:
    """Raises Unreadable, naming file and column, for rows of the archive that its schema does not allow."""
    _check_nulls(table, (*TRAJECTORY, *DECISION), where)
    lengths = {name: _lengths(table, name) for name in _OF_TOKENS if name in table.column_names}
    first, *others = lengths or {"": None}
    for name in others:
        if not lengths[first].equals(lengths[name]):
            raise Unreadable(
                f"{where}: `{first}` and `{name}` differ in length in a row; they describe the same tokens"
            )
    if lengths and "turns" in table.column_names:
        _check_turns(table["turns"].combine_chunks(), lengths[first].to_numpy(), where)
    if "untrained" in table.column_names:
        _check_untrained(table["untrained"].combine_chunks().flatten(), where)
    if lengths and "segments" in table.column_names:
        _check_segments(table, lengths[first].to_numpy(), where)


def check_index(table: pa.Table, where: str, remedy: str) -> None:
    """Raises Unreadable, naming file and column, for rows that the index does not allow."""
    _check_nulls(table, INDEX, where, remedy)
    for name in _OF_TRAJECTORIES:
        if pc.any(pc.not_equal(_lengths(table, name), table["num_trajectories"].combine_chunks())).as_py():
            raise Unreadable(f"{where}: `{name}` and `num_trajectories` differ in a row; {remedy}")


def _check_nulls(table: pa.Table, columns: Sequence[Column], where: str, remedy: str = "every row needs one") -> None:
    for column in columns:
        if column.name in table.column_names:
            found = _null_in(table[column.name].combine_chunks(), column)
            if found:
                raise Unreadable(f"{where}: the column `{found}` holds nulls; {remedy}")


def _null_in(array: pa.Array, column: Column) -> str | None:
    """The name of the column, or of a part of it, that is null although it must not be; None if there is none."""
    if array.null_count and not column.nullable:
        return column.name
    if not pa.types.is_list(array.type):
        return None
    values = array.flatten()
    if values.null_count and column.name not in _HOLES:
        return column.name
    inside = (
        (part, values.field(part.name).filter(values.is_valid()))
        for part in _INSIDE.get(column.name, ())
        if not part.nullable
    )
    return next((f"{column.name}.{part.name}" for part, found in inside if found.null_count), None)


def _lengths(table: pa.Table, name: str) -> pa.Array:
    return pc.list_value_length(table[name]).combine_chunks()


def _check_turns(turns: pa.ListArray, num_tokens: np.ndarray, where: str) -> None:
    """`num_tokens`: (num_rows,), tokens of each row."""
    parts, flat = turns.flatten(), turns.value_lengths().to_numpy()
    limits = np.repeat(num_tokens, flat)
    edges = [np.zeros_like(limits), *(parts.field(name).to_numpy() for name in _POSITIONS), limits]
    if any((before > after).any() for before, after in itertools.pairwise(edges)):
        raise Unreadable(f"{where}: a turn's positions must satisfy 0 <= {' <= '.join(_POSITIONS)} <= number of tokens")


def _check_untrained(found: pa.StructArray, where: str) -> None:
    lists = [found.field(column.name) for column in _INSIDE["untrained"] if pa.types.is_list(column.type)]
    if any(one.flatten().null_count or not one.value_lengths().equals(lists[0].value_lengths()) for one in lists):
        raise Unreadable(f"{where}: the lists of an entry of `untrained` differ in length, or hold nulls")


def _check_segments(table: pa.Table, num_tokens: np.ndarray, where: str) -> None:
    """`num_tokens`: (num_rows,), tokens of each row. Positions are compared in the rows' tokens one after another."""
    row, starts = _inside(table, "segments", ("start",))
    after = np.cumsum(num_tokens, dtype=np.int64)
    before = after - num_tokens
    places = before[row] + starts[0]
    same_row = row[1:] == row[:-1]
    if (starts[0] <= 0).any() or (places >= after[row]).any() or (same_row & (np.diff(places) <= 0)).any():
        raise Unreadable(f"{where}: starts of `segments` must ascend between 0 and the number of tokens, each once")
    if "turns" in table.column_names:
        row, (first, last) = _inside(table, "turns", ("sample_start", "sample_end"))
        begun = np.searchsorted(places, before[row] + first, side="right")
        if (begun < np.searchsorted(places, before[row] + last, side="left")).any():
            raise Unreadable(f"{where}: a segment begins inside a turn; a turn lies in one segment")
    if "loss_mask" in table.column_names:
        mask = table["loss_mask"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if mask[places].any():
            raise Unreadable(f"{where}: the first token of a segment is marked as sampled; it must have been fed")


def _inside(table: pa.Table, name: str, fields: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The row of each entry of a column of lists, and these of its fields, (num_entries,) int64."""
    column = table[name].combine_chunks()
    flat = column.flatten()
    row = np.repeat(np.arange(len(column)), pc.fill_null(column.value_lengths(), 0).to_numpy())
    return row, [flat.field(field).to_numpy().astype(np.int64) for field in fields]
