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

from squelch.actors.archive.schema import ARCHIVE_SCHEMA, DECISION, TRAJECTORY, TURN
from squelch.actors.failures import failure_of_text

_SAME = frozenset(
    [
        "group_id",
        "trajectory",
        "step",
        "environment",
        "split",
        "task_seed",
        "task_options",
        "task_key",
        "token_ids",
        "loss_mask",
        "log_probs",
        "episode_return",
        "format_penalty",
        "success",
        "truncated",
        "worker",
        "score",
        "decision",
        "reason",
        "filter",
    ]
)
"""Columns of version 0 that schema 1 has under the same name. A column that schema 1 gains later is not among them."""
_SAME_IN_TURN = frozenset(
    [
        "sample_start",
        "sample_end",
        "reasoning_start",
        "reasoning_end",
        "reward",
        "format_penalty",
        "format_valid",
        "num_actions",
        "version_min",
        "version_max",
    ]
)
"""Likewise for the fields of a turn."""
_OLD_TURN = pa.struct(
    [
        *(column.field for column in TURN if column.name in _SAME_IN_TURN),
        pa.field("truncated", pa.bool_()),
    ]
)
_SOURCES = {"failure_cause": "failure", "failure_detail": "failure", "bootstrap_last_state": "cut"}
"""Columns of schema 1 that have another name in version 0."""


def _old_fields() -> list[pa.Field]:
    fields = [pa.field("failure", pa.string()), pa.field("cut", pa.bool_())]
    same = [c.field for c in (*TRAJECTORY, *DECISION) if c.name in _SAME]
    return [*same, pa.field("turns", pa.list_(_OLD_TURN)), *fields]


SCHEMA = pa.schema(_old_fields())
"""Every column of version 0."""
OPTIONAL = {"cut", *(column.name for column in DECISION)}
"""Columns that a file of version 0 may lack."""


def sources(names: Sequence[str]) -> list[str]:
    """The columns of version 0 from which the columns `names` of schema 1 are computed."""
    known = {*_SAME, *_SOURCES, "turns"}
    return list(dict.fromkeys(_SOURCES.get(name, name) for name in names if name in known))


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
    named["hit_token_limit"] = named["truncated"]
    arrays = [named[f.name] if f.name in named else pa.nulls(len(values), f.type) for f in fields]
    turns = pa.StructArray.from_arrays(arrays, fields=fields)
    lengths = pc.fill_null(old.value_lengths(), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, turns, mask=old.is_null())
