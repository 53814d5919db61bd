"""Writes a run's files: every group in Parquet, metrics and spans as JSON lines.

    runs/<name>/groups/step-000012.parquet       every group of step 12, kept or not, `ARCHIVE_SCHEMA`, zstd; the parts
                                                 of finished blocks of steps are merged (`kit.archive.parts`)
    runs/<name>/groups/index-000000.parquet      one row per group of steps 0 to 99 (`kit.archive.group_index`)
    runs/<name>/scores/step-000012.parquet       step 12's matrices, if it was scored (`kit.archive.score_matrices`)
    runs/<name>/tokenizer.json                   the policy's tokenizer, with which the groups' ids are read
    runs/<name>/format.json                      the files with which they are parsed, if turns are in its own format
    runs/<name>/metrics.jsonl                    one object per line and step; copied to `metrics.parquet` at the end
    runs/<name>/events.jsonl                     one span per line: actor, name, start, end (Unix seconds), facts

Invariants:

- A Parquet file is complete or absent (`kit.base.disk.whole_file`). A step that is written again (after a resume)
  replaces its own part. Its rows in the index are written after the part; a step without index rows is read from its
  part.
- A line is appended completely or not at all; an incomplete line after a crash is removed when the archive is opened.
- If a write fails (disk full, quota), no partly written file remains, and an ArchiveError names the file.
- JSON has no NaN: non-finite numbers are null in `metrics.jsonl`.

One process owns a run's archive. Nothing waits, and nothing imports Ray.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squelch.kit.archive.group_index import index_rows, replaced
from squelch.kit.archive.merging import Merging
from squelch.kit.archive.parts import GROUPS, SCORES, block_of, part_key
from squelch.kit.archive.reader import (
    EVENTS,
    FORMAT,
    METRICS,
    METRICS_TABLE,
    TOKENIZER,
    block_key,
    block_keys,
    group_parts,
    read_block,
    read_groups,
    read_metrics,
    stream_groups,
)
from squelch.kit.archive.schema import ARCHIVE_SCHEMA, DECISION, INDEX_SCHEMA, TRAJECTORY_SCHEMA, text_columns
from squelch.kit.archive.score_matrices import DICTIONARY, MERGED_SCHEMA, encoded, rows_to_merge
from squelch.kit.archive.store import ArchiveError, LocalStore, Store, writing
from squelch.kit.archive.version import VERSION, VERSION_KEY
from squelch.kit.base.disk import whole_file
from squelch.kit.untrusted.files import MIB, open_own, read_bytes

ROWS_PER_ROW_GROUP = 256
"""Trajectories in one row group of a part: a reader of one group decodes a few of them, not the whole step."""
MAX_TOKENIZER_BYTES = 64 * MIB
_TAIL = 2**16
"""Bytes in which the last line break is looked for at once."""


class DecisionLike(Protocol):
    """The filter's decision on one group, as the archive stores it."""

    @property
    def score(self) -> float | None:
        """The filter's statistic; None if the group was refused."""

    @property
    def decision(self) -> str:
        """`kept`, `dropped` or `refused`."""

    @property
    def reason(self) -> str:
        """The decision's reason in words."""


class Archive:
    """Writer of one run's files; see the module's head. Parquet files are written to `store`, by default the run
    folder; lines are always appended to files in the run folder."""

    def __init__(self, run_dir: Path | str, store: Store | None = None) -> None:
        self.run_dir = Path(run_dir)
        self.store = store or LocalStore(self.run_dir)
        with writing(self.run_dir):
            (self.run_dir / GROUPS).mkdir(parents=True, exist_ok=True)
        self._metrics = _LineFile(self.run_dir / METRICS)
        self._events = _LineFile(self.run_dir / EVENTS)
        self._groups = Merging(self.store, GROUPS, ARCHIVE_SCHEMA, text_columns(ARCHIVE_SCHEMA), stream_groups)
        self._scores = Merging(self.store, SCORES, MERGED_SCHEMA, DICTIONARY, rows_to_merge)

    def write_groups(
        self, step: int, tables: Sequence[pa.Table], decisions: Mapping[str, DecisionLike], filter_text: str = ""
    ) -> None:
        """Writes all groups of a training step, then their rows in the index; both replace an earlier write of the
        step. Then merges a few older parts.

        Args:
            tables: one table of `TRAJECTORY_SCHEMA` per group.
            decisions: by group id; each group needs one.
            filter_text: the rule and its settings, stored in the column `filter`.
        """
        plain = [_plain_rows(table) for table in tables] or [TRAJECTORY_SCHEMA.empty_table()]
        whole = _with_decision(pa.concat_tables(plain).combine_chunks(), decisions, filter_text)
        self._groups.written_again(step)
        self._write(part_key(GROUPS, step), whole, ROWS_PER_ROW_GROUP)
        key = block_key(block_of(step))
        with writing(self.store.where(key)):
            known = self.store.stat(key) is not None
        block = read_block(self.store, key) if known else INDEX_SCHEMA.empty_table()
        self._write(key, replaced(block, step, index_rows(whole)))
        self._groups.advance()

    def keep_tokenizer(self, model_dir: Path) -> None:
        """Copies the policy's tokenizer into the run, because groups hold token ids."""
        data = read_bytes(model_dir / TOKENIZER, MAX_TOKENIZER_BYTES)
        with writing(self.store.where(TOKENIZER)), self.store.put(TOKENIZER) as file:
            file.write(data)

    def keep_format(self, files: Mapping[str, str]) -> None:
        """Writes the files with which the groups' ids are parsed beside the tokenizer (`actors.formats.portable`)."""
        with writing(self.store.where(FORMAT)), self.store.put(FORMAT) as file:
            file.write(json.dumps(files).encode())

    def write_scores(self, step: int, table: pa.Table) -> None:
        """Writes the score matrices of a step (`kit.archive.score_matrices`). Then merges a few older ones."""
        key = part_key(SCORES, step)
        self._scores.written_again(step)
        with writing(self.store.where(key)), self.store.put(key) as file:
            file.write(encoded(table))
        self._scores.advance()

    def groups(self, step: int, ids: Sequence[str]) -> list[pa.Table]:
        """The rows of these groups of a written step, one table of `TRAJECTORY_SCHEMA` each, in the order of `ids`.
        ArchiveError if the part cannot be read or lacks a group."""
        rows = read_groups(self.store, [step]).select(TRAJECTORY_SCHEMA.names)
        found = [rows.filter(pc.equal(rows["group_id"], group_id)) for group_id in ids]
        lacking = [group_id for group_id, table in zip(ids, found, strict=True) if not len(table)]
        if lacking:
            where = self.store.where(group_parts(self.store)[step].key)
            raise ArchiveError(f"{where} lacks the groups {lacking}, which were written to it")
        return found

    def _write(self, key: str, table: pa.Table, row_group_size: int | None = None) -> None:
        text = text_columns(table.schema)
        with writing(self.store.where(key)), self.store.put(key) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=text, row_group_size=row_group_size)

    def metrics(self, step: int, values: Mapping[str, Any], at: float | None = None) -> None:
        """Appends one line: `step`, `time` (Unix seconds, `at` or now), and the step's metrics by flat key."""
        when = time.time() if at is None else at
        stamp = {"step": step, "time": when}
        self._metrics.append(stamp | dict(values) | stamp)

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Appends one span: the work, or the wait, `name` of `actor` from `start` to `end` (Unix seconds). It has no
        length if its host's clock was set back meanwhile, so that `end` is before `start`."""
        self._events.append({"actor": actor, "name": name, "start": start, "end": max(start, end), **facts})

    def truncate_after(self, step: int) -> None:
        """Deletes all groups, scores and metrics after `step`, because a resumed run repeats those steps."""
        lines = read_metrics(self.run_dir)
        kept = [line for line in lines if line["step"] <= step]
        if len(kept) < len(lines):
            self._rewrite_metrics(kept)
        self._groups.truncate_after(step)
        self._scores.truncate_after(step)
        self._truncate_index(step)

    def _rewrite_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._metrics.close()
        with writing(self.run_dir / METRICS), whole_file(self.run_dir / METRICS) as file:
            file.writelines(_line(record) for record in lines)
        self._metrics = _LineFile(self.run_dir / METRICS)

    def _truncate_index(self, step: int) -> None:
        with writing(self.store.where(GROUPS)):
            blocks = block_keys(self.store)
            for first, key in blocks.items():
                if first > step:
                    self.store.delete(key)
        if (key := blocks.get(block_of(step))) is not None:
            block = read_block(self.store, key)
            self._write(key, block.filter(pc.less_equal(block["step"], step)))

    def finish(self) -> bool:
        """Writes `metrics.parquet` from the lines; returns False if there are none. The lines stay, for a resume. A
        merge in progress is given up."""
        self.close()
        self._groups.drop()
        self._scores.drop()
        records = read_metrics(self.run_dir)
        if records:
            self._write(METRICS_TABLE, _metrics_table(records))
        return bool(records)

    def close(self) -> None:
        """Closes the files of lines."""
        self._metrics.close()
        self._events.close()


class _LineFile:
    """A file of JSON lines, appended unbuffered; after a failed write the file is unchanged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file = open_own(path)
            _drop_torn_line(self._file)

    def append(self, record: Mapping[str, Any]) -> None:
        """Appends one line. Raises ArchiveError if the write fails."""
        line, size = _line(record), os.fstat(self._file.fileno()).st_size  # tell() would be behind a truncated line
        with writing(self._path):
            try:
                self._write_all(line)
            except OSError:
                self._file.truncate(size)
                raise

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(record: Mapping[str, Any]) -> bytes:
    finite = {key: _finite(value) for key, value in record.items()}
    return (json.dumps(finite, allow_nan=False, default=_plain) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python number."""
    if hasattr(value, "item"):
        return _finite(value.item())
    raise TypeError(f"{value!r} has no place in a JSON line; give a number, a text, a list or a dict")


def _drop_torn_line(file: BinaryIO) -> None:
    end = size = file.seek(0, os.SEEK_END)
    found = -1
    while end > 0 and found < 0:
        start = max(0, end - _TAIL)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        end = start + found + 1
    if end < size:
        file.truncate(end)


def _plain_rows(table: pa.Table) -> pa.Table:
    """The columns of `TRAJECTORY_SCHEMA`, in its order and types."""
    if table.schema.equals(TRAJECTORY_SCHEMA):
        return table
    return table.select(TRAJECTORY_SCHEMA.names).cast(TRAJECTORY_SCHEMA)


def _with_decision(table: pa.Table, decisions: Mapping[str, DecisionLike], filter_text: str) -> pa.Table:
    ids = table.column("group_id").to_pylist()
    missing = sorted({group_id for group_id in ids if group_id not in decisions})
    if missing:
        raise RuntimeError(f"groups without a decision: {missing}; {len(decisions)} decisions were given")
    found = [decisions[group_id] for group_id in ids]
    columns = {
        "score": [None if d.score is None else float(d.score) for d in found],
        "decision": [d.decision for d in found],
        "reason": [d.reason for d in found],
        "filter": [filter_text] * len(ids),
    }
    for column in DECISION:
        table = table.append_column(column.field, pa.array(columns[column.name], type=column.type))
    return table


def _metrics_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row per step and one float64 column per key (null if a step lacks the key); text columns remain text."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = {key: [record.get(key) for record in records] for key in keys}
    table = pa.table({key: _column(key, values) for key, values in columns.items()})
    return table.replace_schema_metadata({VERSION_KEY: str(VERSION)})


def _column(key: str, values: Sequence[Any]) -> pa.Array:
    if any(isinstance(value, (str, list, dict)) for value in values):
        return pa.array(
            [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values], pa.string()
        )
    if key == "step":
        return pa.array(values, pa.int64())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())
