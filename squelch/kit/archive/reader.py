"""Reads the files of a live or finished run, and trajectory files of any trainer.

Every function takes a place: a run folder (or, for groups, its `groups` folder or one Parquet file), or a store with a
run. `kit.archive.parts` says which file a step is read from. A file has a schema of `kit.archive.version.READ` or
states none, and is read as the present one. Errors are ArchiveErrors that name the file and say what would be right.
Files may be hostile (`kit.untrusted`): what is read fits the schema, also inside lists, or it is refused. Imports
neither Ray nor torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from squelch.kit.archive.parts import GROUPS, Part, by_step, opened, part_key, parts_in, row_groups_of
from squelch.kit.archive.store import ArchiveError, LocalStore, Store, as_store, reading
from squelch.kit.archive.version import READ_BY, VERSION, check_version, version_of
from squelch.kit.untrusted.files import MIB, brief, is_folder, require_regular, state
from squelch.kit.untrusted.text import MAX_LINE, lines_of, parse_object

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    Place = Path | str | Store

METRICS, METRICS_TABLE, EVENTS = "metrics.jsonl", "metrics.parquet", "events.jsonl"
CONFIG, TOKENIZER, FORMAT = "config.yaml", "tokenizer.json", "format.json"
MOST_ROWS = 2**18
"""Trajectories of a step, and groups of a block of the index, that are read at once."""
MOST_OF_A_BLOCK, MOST_OF_AN_INDEX, MOST_GROUPS = 256 * MIB, 1024 * MIB, 10_000_000
"""Bytes of a block, decoded, and of a step's columns from which its rows are computed; bytes and rows of an index."""
_BLOCK = re.compile(r"groups/index-([0-9]{1,9})\.parquet")


def block_key(first_step: int) -> str:
    """The key of an index file, e.g. `groups/index-000100.parquet`."""
    return f"{GROUPS}/index-{first_step:06d}.parquet"


def group_parts(store: Store) -> dict[int, Part]:
    """The files from which the groups of each archived step are read, by step, ascending."""
    return by_step(parts_in(store, GROUPS))


def block_keys(store: Store) -> dict[int, str]:
    """The index files of a run by their first step, ascending."""
    with reading(store.where()):
        found = [(_BLOCK.fullmatch(key), key) for key in store.list(f"{GROUPS}/index-")]
    return dict(sorted((int(match[1]), key) for match, key in found if match))


def read_groups(place: Place, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Groups of a run, or of one file of any trainer.

    Args:
        steps: only these training steps; ignored if `place` is a file.
        columns: only these columns of the schema, e.g. none with tokens.
    Returns:
        A table of `ARCHIVE_SCHEMA`, or of those columns; a missing nullable column is null.
    Raises:
        ArchiveError: there are no groups, or a file is damaged, has a newer schema or lacks a column.
    """
    import pyarrow as pa

    return pa.concat_tables(stream_groups(place, steps, columns))


def stream_groups(
    place: Place, steps: Sequence[int] | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """As `read_groups`, one table at a time, of the rows of at most one row group: a run may be larger than memory."""
    from squelch.kit.archive.schema import ARCHIVE_SCHEMA

    names = ARCHIVE_SCHEMA.names if columns is None else list(columns)
    if (one := _only_file(place)) is not None:
        with reading(one), LocalStore(one.parent).get(one.name) as raw:
            yield from _tables(raw, str(one), names)
        return
    store = as_store(place)
    parts, folder = group_parts(store), GROUPS
    if not parts:
        parts, folder = by_step(parts_in(store, "")), ""  # the place may be the `groups` folder itself
    wanted = [step for step in parts if steps is None or step in steps]
    if not wanted:
        raise ArchiveError(_nothing(store, steps, any_part=bool(parts)))
    with reading(store.where(folder)), closing(opened(store, folder, wanted)) as files:
        for part, found, raw in files:
            where = store.where(part.key)
            with reading(where):
                yield from _tables(raw, where, names, part, found)


def read_group(place: Place, step: int, group_id: str) -> pa.Table:
    """The trajectories of one group of a run, in order; only the row groups that hold them are decoded.

    Raises:
        ArchiveError: the step or the group is not archived, or the step's file is damaged or has a newer schema.
    """
    import pyarrow.compute as pc

    from squelch.kit.archive.schema import ARCHIVE_SCHEMA
    from squelch.kit.untrusted.parquet import MOST_BYTES, in_one

    with _step(place, step, ARCHIVE_SCHEMA.names, only=group_id) as (where, tables):
        found = (table.filter(pc.equal(table["group_id"], group_id)) for table in tables)
        whole = in_one(chain([ARCHIVE_SCHEMA.empty_table()], found), where, MOST_BYTES, MOST_ROWS)
    if not len(whole):
        raise ArchiveError(f"{where} holds no group {brief(group_id)}")
    return whole.sort_by("trajectory")


def read_index_of(place: Place, step: int) -> pa.Table:
    """The rows of one step in the index, computed from the step's groups."""
    from squelch.kit.archive.group_index import NEEDED, index_rows
    from squelch.kit.untrusted.parquet import in_one

    with _step(place, step, NEEDED) as (where, tables):
        return index_rows(in_one(chain([_empty(NEEDED)], tables), where, MOST_OF_A_BLOCK, MOST_ROWS))


@contextmanager
def _step(
    place: Place, step: int, names: Sequence[str], only: str | None = None
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """The name of the file from which the groups of a step are read, and their rows, a row group at a time."""
    store = as_store(place)
    with reading(store.where(part_key(GROUPS, step))), closing(opened(store, GROUPS, [step])) as files:
        part, steps, raw = next(files)
        where = store.where(part.key)
        with reading(where):
            yield where, _tables(raw, where, names, part, steps, only)


def group_steps(place: Place) -> list[int]:
    """The archived steps of a run, ascending. Raises ArchiveError if there is none."""
    store = as_store(place)
    steps = list(group_parts(store))
    if not steps:
        raise ArchiveError(_nothing(store, None, any_part=False))
    return steps


def _only_file(place: Place) -> Path | None:
    """The file at a place; None for a folder, a store, or nothing."""
    if not isinstance(place, (Path, str)):
        return None
    path = Path(place)
    with reading(path):
        if state(path) is None or is_folder(path):
            return None
        require_regular(path)
    return path


def _nothing(store: Store, steps: Sequence[int] | None, any_part: bool) -> str:
    if store.stat(CONFIG) is not None and not any_part:
        return f"{store.where()}: no step of this run is archived yet"
    wanted = "" if steps is None else f" of steps {list(steps)}"
    return f"{store.where()} holds no groups{wanted}: give a run's folder, or a Parquet file of trajectories"


def _tables(
    raw: BinaryIO,
    where: str,
    names: Sequence[str],
    part: Part | None = None,
    steps: Sequence[int] = (),
    only: str | None = None,
) -> Iterator[pa.Table]:
    """These columns of an open file, as the schema has them, a row group at a time; with `part`, of the row groups of
    these of its steps; with `only`, of the row groups that hold a row of that group."""
    from squelch.kit.archive.schema import OPTIONAL
    from squelch.kit.untrusted.parquet import open_parquet, row_groups

    file = open_parquet(raw, where)
    there, stated = file.schema_arrow.names, version_of(file.schema_arrow.metadata)
    check_version(stated, where)
    if missing := [name for name in names if name not in there and name not in OPTIONAL]:
        raise ArchiveError(_lacks(where, missing, stated is None))
    numbers = None if part is None else row_groups_of(file, where, part, steps)
    if only is not None:
        numbers = _holding(file, where, only, range(file.num_row_groups) if numbers is None else numbers)
    for table in row_groups(file, where, [name for name in names if name in there], numbers):
        yield _in_schema(table, names, where)


def _holding(file: pq.ParquetFile, where: str, group_id: str, numbers: Sequence[int]) -> list[int]:
    """Those of these row groups of a file that hold a row of the group."""
    import pyarrow.compute as pc

    from squelch.kit.untrusted.parquet import read_row_group

    ids = ((number, read_row_group(file, where, number, ["group_id"])["group_id"]) for number in numbers)
    return [number for number, column in ids if pc.any(pc.equal(column, group_id)).as_py()]


def _in_schema(table: pa.Table, names: Sequence[str], where: str) -> pa.Table:
    """The columns `names` of the schema. Raises Unreadable for values that the schema does not allow."""
    from squelch.kit.archive.checks import check_rows
    from squelch.kit.untrusted.files import decoding

    fields = _empty(names).schema
    with decoding(where, f"does not fit schema {VERSION}", "docs/reference/schema.md lists it"):
        found = _with_nulls(table, fields).cast(fields)
    check_rows(found, where)
    return found


def _empty(names: Sequence[str]) -> pa.Table:
    """No rows, with these columns of the archive."""
    import pyarrow as pa

    from squelch.kit.archive.schema import ARCHIVE_SCHEMA

    return pa.schema([ARCHIVE_SCHEMA.field(name) for name in names], ARCHIVE_SCHEMA.metadata).empty_table()


def _with_nulls(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The wanted columns; a missing nullable column is null."""
    import pyarrow as pa

    for field in wanted:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(wanted.names)


def _lacks(where: str, missing: Sequence[str], states_none: bool) -> str:
    text = f"{where} lacks the columns {list(missing)} of schema {VERSION} (docs/reference/schema.md)."
    return f"{text} Commit {READ_BY} of Squelch reads files from before that schema." if states_none else text


def read_index(place: Place) -> pa.Table:
    """One row per group of a run, in order of step (`INDEX_SCHEMA`); a step that is in no index is read from its
    part."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from squelch.kit.archive.schema import INDEX_SCHEMA

    store = as_store(place)
    blocks = (read_block(store, key) for key in block_keys(store).values())
    table = index_of(store, [INDEX_SCHEMA.empty_table()], blocks)
    parts = group_parts(store)
    held = set(pc.unique(table["step"]).to_pylist())
    late = [step for step in parts if step not in held]
    known = table.filter(pc.is_in(table["step"], pa.array(list(parts), pa.int32())))
    whole = index_of(store, [known], (read_index_of(store, step) for step in late))
    return whole.take(np.argsort(whole["step"].to_numpy(), kind="stable")) if late else whole


def index_of(store: Store, *tables: Iterable[pa.Table]) -> pa.Table:
    """The rows of a run's index in one table. ArchiveError if they are more than a run can have."""
    from squelch.kit.untrusted.parquet import in_one

    with reading(store.where()):
        return in_one(chain(*tables), f"the index of {store.where()}", MOST_OF_AN_INDEX, MOST_GROUPS)


def read_block(store: Store, key: str) -> pa.Table:
    """One file of the index."""
    from squelch.kit.archive.checks import check_index
    from squelch.kit.archive.schema import INDEX_SCHEMA
    from squelch.kit.untrusted.files import decoding
    from squelch.kit.untrusted.parquet import in_one, open_parquet, row_groups

    where = store.where(key)
    remedy = "delete it: it is rebuilt from the parts"
    with reading(where), store.get(key) as raw:
        file = open_parquet(raw, where, remedy)
        check_version(version_of(file.schema_arrow.metadata), where)
        with decoding(where, "is no group index", remedy):
            missing = sorted(set(INDEX_SCHEMA.names) - set(file.schema_arrow.names))
            if missing:
                raise KeyError(f"it lacks the columns {missing}")
            rows = row_groups(file, where, INDEX_SCHEMA.names)
            table = in_one(rows, where, MOST_OF_A_BLOCK, MOST_ROWS).cast(INDEX_SCHEMA)
        check_index(table, where, remedy)
    return table


def read_metrics(place: Place) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, in order, without an incomplete last line."""
    return _read_lines(as_store(place), METRICS)


def is_of_step(line: Mapping[str, Any]) -> bool:
    """Whether a line of `metrics.jsonl` is the record of a whole step: neither the one before step 1 nor one that holds
    a scorer step alone, as they stand before the last step's."""
    return line["step"] > 0 and "seconds/step" in line


def read_events(place: Place) -> list[dict[str, Any]]:
    """The spans of `events.jsonl`, in order of their end."""
    return _read_lines(as_store(place), EVENTS)


def last_event(place: Place, tail_bytes: int = 8192) -> dict[str, Any] | None:
    """The span that ended last, read from the last `tail_bytes` of the file, or more if it is longer; None if there is
    none."""
    store = as_store(place)
    with reading(store.where(EVENTS)):
        found = store.stat(EVENTS)
        if found is None:
            return None
        with store.get(EVENTS) as file:
            whole: list[bytes] = []
            start = found.size
            while not whole and start > 0 and found.size - start < MAX_LINE:
                start = max(0, found.size - tail_bytes)
                file.seek(start)
                lines = file.read(found.size - start).split(b"\n")  # the first one may have begun before
                whole, tail_bytes = lines[:-1] if start == 0 else lines[1:-1], 8 * tail_bytes
        return parse_object(whole[-1], f"{store.where(EVENTS)} last line") if whole else None


def _read_lines(store: Store, key: str) -> list[dict[str, Any]]:
    where = store.where(key)
    with reading(where):
        if store.stat(key) is None:
            return []
        with store.get(key) as file:
            whole = ((number, line) for number, line in lines_of(file, where) if line.endswith(b"\n"))
            return [parse_object(line, f"{where} line {number}") for number, line in whole if line.strip()]
