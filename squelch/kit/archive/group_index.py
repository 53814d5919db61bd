"""The group index: one small row per group, so that a run's groups can be listed without reading their tokens.

    groups/index-000100.parquet     the groups of steps 100 to 199, `INDEX_SCHEMA`, in order of step

A block of steps (`kit.archive.parts`) shares a file, which is rewritten after each of its steps: 100,000 groups at 8
per step make 125 files. All index rows can be computed from the parts; a step whose rows are missing (after a crash
between the part and the index) is read from its part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squelch.kit.archive.rows import list_column
from squelch.kit.archive.schema import INDEX_SCHEMA

NEEDED = (
    *("group_id", "trajectory", "step", "environment", "label", "split", "task_seed"),
    *(
        "task_key",
        "task_kind",
        "loss_mask",
        "turns",
        "episode_return",
        "success",
        "truncated",
        "failure_cause",
        "worker",
    ),
    *("score", "decision", "reason"),
)
"""Columns of the archive from which a group's row is computed."""
_LISTS = ("loss_mask", "turns")
"""The needed columns that hold lists."""
_SAME = ("step", "split", "task_seed", "task_key", "task_kind", "decision", "reason", "score", "worker")
"""Columns that all trajectories of a group share."""


def index_rows(table: pa.Table) -> pa.Table:
    """One row per group, in order of first appearance.

    Args:
        table: trajectories with at least the columns `NEEDED` of the archive.
    Returns:
        A table of `INDEX_SCHEMA`.
    """
    masks = list_column(table, "loss_mask")
    small = table.select([name for name in NEEDED if name not in _LISTS]).to_pylist()
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row, mask, versions in zip(small, masks, _versions(table["turns"]), strict=True):
        row |= {"sampled": int(np.count_nonzero(mask)), "tokens": len(mask), "versions": versions}
        groups.setdefault((row["step"], row["group_id"]), []).append(row)
    ordered = [sorted(rows, key=lambda row: row["trajectory"]) for rows in groups.values()]
    return pa.Table.from_pylist([_row(rows) for rows in ordered], schema=INDEX_SCHEMA)


def _versions(turns: pa.ChunkedArray) -> list[list[tuple[int, int]]]:
    """The oldest and newest policy version of each turn of each trajectory, without a Python object per other field."""
    flat, lengths = turns.combine_chunks().flatten(), turns.combine_chunks().value_lengths().to_pylist()
    pairs = iter(zip(flat.field("version_min").to_pylist(), flat.field("version_max").to_pylist(), strict=True))
    return [list(itertools.islice(pairs, length)) for length in lengths]


def _row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of one group; `rows`: its trajectories in order."""
    alive = [row for row in rows if row["failure_cause"] is None]
    returns = np.array([row["episode_return"] for row in alive], dtype=np.float64)
    versions = [pair for row in rows for pair in row["versions"]]
    return {
        "group_id": rows[0]["group_id"],
        **{name: rows[0][name] for name in _SAME},
        "environment": rows[0]["label"] or rows[0]["environment"],
        "reward_variance": float(np.var(returns, ddof=1)) if len(returns) > 1 else None,
        "mean_return": float(np.mean(returns)) if len(returns) else None,
        "returns": [_if_alive(row, "episode_return") for row in rows],
        "successes": [_if_alive(row, "success") for row in rows],
        "lengths": [row["sampled"] for row in rows],
        "num_turns": [len(row["versions"]) for row in rows],
        "failure_causes": [row["failure_cause"] for row in rows if row["failure_cause"] is not None],
        "num_trajectories": len(rows),
        "num_failures": len(rows) - len(alive),
        "num_truncated": sum(bool(row["truncated"]) for row in rows),
        "num_tokens": sum(row["tokens"] for row in rows),
        "version_min": min((oldest for oldest, _ in versions), default=None),
        "version_max": max((newest for _, newest in versions), default=None),
    }


def _if_alive(row: dict[str, Any], name: str) -> Any:
    return row[name] if row["failure_cause"] is None else None


def replaced(block: pa.Table, step: int, rows: pa.Table) -> pa.Table:
    """The block, in order of step, with its rows of `step` replaced by `rows`."""
    steps = block["step"]
    return pa.concat_tables([block.filter(pc.less(steps, step)), rows, block.filter(pc.greater(steps, step))])
