"""What a run leaves behind: every group in Parquet, metrics and spans as JSON lines.

    runs/<name>/groups/step-000012.parquet       every group of step 12, kept or not, `ARCHIVE_SCHEMA`, zstd
    runs/<name>/metrics.jsonl                    one object a line and step; `metrics.parquet` is its copy at the end
    runs/<name>/events.jsonl                     one span a line: actor, name, start, end (unix seconds), facts

Invariants:

- A Parquet part is written beside its place, synced, and renamed: a file of that name is whole. A step written again
  (after a resume) replaces its own part.
- A line is appended whole or not at all; a line that a crash tore is dropped when the archive is opened again.
- When a write fails (disk full, quota) nothing half-written stays and an ArchiveError names the file.
- JSON has no NaN: non-finite numbers are null in `metrics.jsonl`.

One process owns a run's archive. Nothing waits, and nothing imports Ray.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from actors.process.disk import sync
from actors.records import ARCHIVE_SCHEMA, DECISION_FIELDS, OPTIONAL_COLUMNS, TRAJECTORY_SCHEMA

GROUPS = "groups"
METRICS, METRICS_TABLE, EVENTS = "metrics.jsonl", "metrics.parquet", "events.jsonl"
TEXT_COLUMNS = [f.name for f in ARCHIVE_SCHEMA if f.type == pa.string()]


class ArchiveError(ValueError):
    """The archive cannot be written or read; the message names the file and what would be right."""


class DecisionLike(Protocol):
    """What the filter decided about one group."""

    @property
    def score(self) -> float | None: ...

    @property
    def decision(self) -> str: ...

    @property
    def reason(self) -> str: ...


class Archive:
    """Writer of one run's folder; see the module's head for the files and what holds of them."""

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        with _named(self.run_dir):
            (self.run_dir / GROUPS).mkdir(parents=True, exist_ok=True)
        self._metrics = _LineFile(self.run_dir / METRICS)
        self._events = _LineFile(self.run_dir / EVENTS)

    def write_groups(
        self,
        step: int,
        tables: Sequence[pa.Table],
        decisions: Mapping[str, DecisionLike],
        filter_text: str = "",
    ) -> Path:
        """Writes every group of a training step; a step's part written again replaces the first.

        Args:
            tables: one table of `TRAJECTORY_SCHEMA` a group.
            decisions: by group id; each group needs one.
            filter_text: the rule and its settings, kept in the column `filter`.
        """
        rows = [_with_decision(table, decisions, filter_text) for table in tables]
        whole = pa.concat_tables(rows) if rows else ARCHIVE_SCHEMA.empty_table()
        return self._write(part_path(self.run_dir / GROUPS, step), whole)

    def _write(self, path: Path, table: pa.Table) -> Path:
        text = [name for name in TEXT_COLUMNS if name in table.column_names]
        with _whole_file(path) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=text)
        return path

    def metrics(self, step: int, values: Mapping[str, Any], at: float | None = None) -> None:
        """Appends one line: `step`, `time` (unix seconds, now unless `at` says), and the step's flat figures."""
        when = time.time() if at is None else at
        self._metrics.append({"step": step, "time": when, **_without_stamp(values)})

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Appends one span: what `actor` did, or what it waited for, from `start` to `end` (unix seconds)."""
        if end < start:
            raise RuntimeError(f"event {name} of {actor} ends at {end}, before it starts at {start}")
        self._events.append({"actor": actor, "name": name, "start": start, "end": end, **facts})

    def truncate_after(self, step: int) -> None:
        """Forgets what lies after `step`: the run is resumed there and those steps are made again."""
        kept = [line for line in read_metrics(self.run_dir) if line["step"] <= step]
        self._metrics.close()
        with _whole_file(self.run_dir / METRICS) as file:
            file.writelines(_line(record) for record in kept)
        self._metrics = _LineFile(self.run_dir / METRICS)
        for path in (self.run_dir / GROUPS).glob("step-*.parquet"):
            if step_of(path) > step:
                path.unlink()

    def finish(self) -> Path | None:
        """Writes `metrics.parquet` from the lines; None when there are none. The lines stay, for a resume."""
        self.close()
        records = read_metrics(self.run_dir)
        if not records:
            return None
        path = self.run_dir / METRICS_TABLE
        with _whole_file(path) as file:
            pq.write_table(_metrics_table(records), file, compression="zstd")
        return path

    def close(self) -> None:
        self._metrics.close()
        self._events.close()


class _LineFile:
    """JSON lines, appended unbuffered: a line is in the file whole, or the file is as it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _named(path):
            _drop_torn_line(path)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (stays open as long as the archive)

    def append(self, record: Mapping[str, Any]) -> None:
        line, size = _line(record), self._file.tell()
        with _named(self._path):
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
        self._file.close()


def _line(record: Mapping[str, Any]) -> bytes:
    finite = {key: _finite(value) for key, value in record.items()}
    return (json.dumps(finite, allow_nan=False, default=_plain) + "\n").encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own number."""
    if hasattr(value, "item"):
        return _finite(value.item())
    raise TypeError(f"{value!r} has no place in a JSON line; give a number, a text, a list or a dict")


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _without_stamp(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("step", "time")}


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
    plain = table.select(TRAJECTORY_SCHEMA.names).cast(TRAJECTORY_SCHEMA)
    for fld in DECISION_FIELDS:
        plain = plain.append_column(fld, pa.array(columns[fld.name], type=fld.type))
    return plain


def _metrics_table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row a step, one float64 column a key (null where a step lacks it); texts stay texts."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = {key: [record.get(key) for record in records] for key in keys}
    return pa.table({key: _column(key, values) for key, values in columns.items()})


def _column(key: str, values: Sequence[Any]) -> pa.Array:
    if any(isinstance(value, (str, list, dict)) for value in values):
        return pa.array(
            [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values], pa.string()
        )
    if key == "step":
        return pa.array(values, pa.int64())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def part_path(folder: Path, step: int) -> Path:
    """`folder/step-000012.parquet`."""
    return folder / f"step-{step:06d}.parquet"


def step_of(path: Path) -> int:
    """The training step of a part, from its name."""
    return int(path.stem.removeprefix("step-"))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns an OSError into an ArchiveError that names the path and, for a full disk, what to do."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(_explain(path, error)) from error


def _explain(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"cannot write {path}: no space is left there ({error.strerror or error}). Nothing half-written was kept. "
            "Free some space or point `runs_dir` at another disk, then resume the run."
        )
    return f"cannot write {path}: {error.strerror or error}. `runs_dir` must be a folder that this user may write to."


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place only when it was written and synced; on any error nothing stays."""
    partial = path.with_name(f".{path.name}.partial")
    with _named(path):
        try:
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def read_groups(path: Path | str, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Groups of a run's folder, of its `groups` folder, or of one file that any trainer may have written.

    Args:
        steps: only these training steps; a file is read whole.
        columns: only these columns of the schema; counting groups needs no tokens.
    Returns:
        A table of `ARCHIVE_SCHEMA`, or of those columns; decision and optional columns that a file lacks are null.
    Raises:
        ArchiveError: nothing there, damaged, or columns missing; the message names the file.
    """
    files = group_files(Path(path), steps)
    wanted = ARCHIVE_SCHEMA if columns is None else pa.schema([ARCHIVE_SCHEMA.field(name) for name in columns])
    return pa.concat_tables([_read_part(file, wanted) for file in files])


def group_files(path: Path, steps: Sequence[int] | None = None) -> list[Path]:
    """The Parquet files that `read_groups` would read, in order of their steps."""
    if path.is_file():
        return [path]
    folder = path / GROUPS if (path / GROUPS).is_dir() else path
    files = sorted(folder.glob("step-*.parquet"))
    found = [file for file in files if steps is None or step_of(file) in steps]
    if not found:
        wanted = "" if steps is None else f" of steps {list(steps)}"
        if (path / "config.yaml").is_file() and not files:
            raise ArchiveError(f"{path}: no step of this run is archived yet")
        raise ArchiveError(f"{path} holds no groups{wanted}: give a run's folder, or a Parquet file of trajectories")
    return found


def _read_part(path: Path, wanted: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            table = file.read(columns=[name for name in wanted.names if name in there])
    except (pa.ArrowInvalid, OSError) as error:
        raise ArchiveError(f"{path} is not a whole Parquet file: {error}. Write it again, or leave it out.") from error
    optional = {field.name for field in DECISION_FIELDS} | OPTIONAL_COLUMNS
    missing = [name for name in wanted.names if name not in there and name not in optional]
    if missing:
        raise ArchiveError(f"{path} lacks the columns {missing} of the trajectory schema (docs/architecture.md)")
    for name in (name for name in wanted.names if name not in there):
        table = table.append_column(wanted.field(name), pa.nulls(len(table), wanted.field(name).type))
    try:
        return table.select(wanted.names).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ArchiveError(f"{path} does not fit the trajectory schema: {error}") from error


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, in order; a last line that is being written or was torn is left out."""
    return _read_lines(Path(run_dir) / METRICS)


def read_events(run_dir: Path | str) -> list[dict[str, Any]]:
    """The spans of `events.jsonl`, in order of their end."""
    return _read_lines(Path(run_dir) / EVENTS)


def last_event(run_dir: Path | str, tail_bytes: int = 8192) -> dict[str, Any] | None:
    """The span that ended last, read from the file's tail; None when there is none."""
    path = Path(run_dir) / EVENTS
    if not path.exists():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - tail_bytes))
        whole = file.read().split(b"\n")[:-1]
    return _parse(path, "last line", whole[-1]) if whole else None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return [_parse(path, f"line {number}", line) for number, line in enumerate(whole.splitlines(), start=1) if line]


def _parse(path: Path, where: str, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ArchiveError(f"{path} {where} is not JSON: {error}. Delete that line to read the rest.") from error
