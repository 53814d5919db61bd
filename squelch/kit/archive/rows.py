"""Groups as the tables in which they are passed on and archived. A table has one row of
`kit.archive.schema.TRAJECTORY_SCHEMA` for each trajectory."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from squelch.kit.archive.schema import TRAJECTORY_SCHEMA
from squelch.kit.records.content import Picture, content_key
from squelch.kit.records.failures import failure_of
from squelch.kit.records.records import Group, Segment, Trajectory, Turn, VersionSpan
from squelch.kit.untrusted.secrets import masked, masked_settings


def to_table(group: Group) -> pa.Table:
    """The group as a table of `TRAJECTORY_SCHEMA`, one row per trajectory."""
    return pa.Table.from_pylist([_row(group, t) for t in group.trajectories], schema=TRAJECTORY_SCHEMA)


def packed(table: pa.Table) -> pa.Buffer:
    """The table as one Arrow IPC stream, the form in which rows are stored and sent: pickling a table of these nested
    columns takes ten times as long."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpacked(rows: pa.Buffer) -> pa.Table:
    """The table of `packed`; it shares the buffer's memory."""
    return pa.ipc.open_stream(rows).read_all()


@lru_cache(maxsize=64)
def _options_json(options: str) -> str:
    """A task's options, without secrets."""
    return json.dumps(masked_settings(json.loads(options)), sort_keys=True)


def _row(group: Group, trajectory: Trajectory) -> dict[str, Any]:
    t, ticket, task = trajectory, group.ticket, group.ticket.task
    keys = [content_key(t.prompt_ids(i), t.prompt_pictures(i)) for i in range(len(t.turns))]
    return {
        "group_id": ticket.ticket_id,
        "trajectory": t.index,
        "step": ticket.step,
        "environment": task.environment,
        "label": task.label or None,
        "split": task.split,
        "task_seed": task.seed,
        "task_options": _options_json(task.options_json),
        "task_key": group.task_key,
        "task_kind": group.task_kind,
        "token_ids": t.token_ids,
        "loss_mask": t.loss_mask,
        "log_probs": t.log_probs,
        "turns": [vars(turn) | {"content_key": key} for turn, key in zip(t.turns, keys, strict=True)],
        "version_spans": None if t.version_spans is None else [vars(span) for span in t.version_spans],
        "pictures": [vars(picture) for picture in t.pictures] or None,
        "segments": [vars(segment) for segment in t.segments] or None,
        "episode_return": t.episode_return,
        "format_penalty": t.format_penalty,
        "success": t.success,
        "truncated": t.truncated,
        "bootstrap_last_state": t.bootstrap_last_state,
        "failure_cause": None if t.failure is None else t.failure.cause.value,
        "failure_detail": None if t.failure is None else masked(t.failure.detail),
        "worker": t.worker,
    }


def list_column(table: pa.Table, name: str) -> list[np.ndarray]:
    """A list column as one numpy array per row, without a Python object per element."""
    column = table.column(name).combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def from_table(table: pa.Table) -> list[Trajectory]:
    """The trajectories of a table, in its row order; inverse of `to_table` up to the ticket."""
    big = ("token_ids", "loss_mask", "log_probs")
    arrays = zip(*(list_column(table, name) for name in big), strict=True)
    small = table.select([name for name in TRAJECTORY_SCHEMA.names if name not in big]).to_pylist()
    return [_trajectory(row, *parts) for row, parts in zip(small, arrays, strict=True)]


def _trajectory(row: dict[str, Any], ids: np.ndarray, mask: np.ndarray, log_probs: np.ndarray) -> Trajectory:
    spans = row["version_spans"]
    return Trajectory(
        index=row["trajectory"],
        token_ids=ids,
        loss_mask=mask,
        log_probs=log_probs,
        turns=[Turn(**{name: value for name, value in turn.items() if name != "content_key"}) for turn in row["turns"]],
        success=row["success"],
        truncated=row["truncated"],
        failure=None if row["failure_cause"] is None else failure_of(row["failure_cause"], row["failure_detail"] or ""),
        worker=row["worker"],
        bootstrap_last_state=row["bootstrap_last_state"],
        version_spans=None if spans is None else tuple(VersionSpan(**span) for span in spans),
        pictures=tuple(Picture(**picture) for picture in row["pictures"] or ()),
        segments=tuple(Segment(**segment) for segment in row["segments"] or ()),
    )
