"""Reads files of version 0 as schema 1. They state no schema version: runs before schema 1 and other trainers wrote
them.

Differences: a turn's `truncated` is `hit_token_limit`; `cut` is `bootstrap_last_state`, and is read as false if it is
missing; `failure` contains `cause` or `cause: detail`. Columns that version 0 does not have are null.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actors.archive.schema import ARCHIVE_SCHEMA, DECISION, TRAJECTORY, TURN
from actors.failures import failure_of_text

_OLD_TURN = pa.struct(
    [
        pa.field("truncated" if column.name == "hit_token_limit" else column.name, column.type)
        for column in TURN
        if column.name != "content_key"
    ]
)
_NEW = ("task_kind", "version_spans", "pictures")
_SOURCES = {"failure_cause": "failure", "failure_detail": "failure", "bootstrap_last_state": "cut"}
"""Columns of schema 1 that have another name in version 0."""


def _old_fields() -> list[pa.Field]:
    fields = [pa.field("failure", pa.string()), pa.field("cut", pa.bool_())]
    same = [c.field for c in (*TRAJECTORY, *DECISION) if c.name not in (*_NEW, *_SOURCES, "turns")]
    return [*same, pa.field("turns", pa.list_(_OLD_TURN)), *fields]


SCHEMA = pa.schema(_old_fields())
"""Every column of version 0."""
OPTIONAL = {"cut", *(column.name for column in DECISION)}
"""Columns that a file of version 0 may lack."""


def sources(names: Sequence[str]) -> list[str]:
    """The columns of version 0 from which the columns `names` of schema 1 are computed."""
    return list(dict.fromkeys(_SOURCES.get(name, name) for name in names if name not in _NEW))


def upgraded(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The columns `names` of schema 1 from a table of version 0. Raises pa.ArrowInvalid if a column has a wrong
    type."""
    columns = [_column(table, name).cast(ARCHIVE_SCHEMA.field(name).type) for name in names]
    fields = [ARCHIVE_SCHEMA.field(name) for name in names]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=ARCHIVE_SCHEMA.metadata))


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    if name in ("failure_cause", "failure_detail"):
        return _failures(table["failure"].cast(pa.string()), name)
    if name == "turns":
        return _turns(table["turns"].cast(SCHEMA.field("turns").type).combine_chunks())
    source = _SOURCES.get(name, name)
    if name == "bootstrap_last_state":
        return pc.fill_null(_or_nulls(table, source, pa.bool_()), False)
    return _or_nulls(table, source, ARCHIVE_SCHEMA.field(name).type)


def _or_nulls(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return table[name].cast(kind) if name in table.column_names else pa.nulls(len(table), kind)


def _failures(texts: pa.ChunkedArray, name: str) -> pa.Array:
    found = [None if text is None else failure_of_text(text) for text in texts.to_pylist()]
    part = [None if f is None else f.cause.value if name == "failure_cause" else f.detail for f in found]
    return pa.array(part, pa.string())


def _turns(old: pa.ListArray) -> pa.ListArray:
    """The same lists with the fields of schema 1."""
    values = old.flatten()
    fields = [column.field for column in TURN]
    named = {field.name: array for field, array in zip(_OLD_TURN, values.flatten(), strict=True)}
    named |= {"hit_token_limit": named["truncated"], "content_key": pa.nulls(len(values), pa.string())}
    turns = pa.StructArray.from_arrays([named[field.name] for field in fields], fields=fields)
    lengths = pc.fill_null(old.value_lengths(), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, turns, mask=old.is_null())
