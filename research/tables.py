"""The results of a study: a Parquet file that holds every condensed run, or a folder with a file for each; a row for
each number and each text.

    cell, part, recipe, arm, seed   the run (`research.cells.StudyCell`)
    table                           `run` for what describes the whole run, else a table by step (`research.kept`)
    step                            the training step; null in the table `run`
    key                             what it is, mostly a key of metrics.jsonl; `.` leads into a nested value
    value, text                     the number, or the text; the other is null

In memory a run is its *content*: a dictionary with the labels, the tables (a list for each key, None where a step lacks
it) and whatever else describes the run. One process at a time writes a file, and a reader sees the old or the new one.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from squelch.kit.base.errors import UserError
from squelch.kit.base.file_lock import held

T = TypeVar("T")
Content = Mapping[str, Any]
FOLDER = Path(__file__).parent / "results"
LABELS = ("part", "recipe", "arm", "seed")
WHOLE = "run"
LISTS = ("set", "changed")
"""Entries of a content that are lists of texts: what the caller, and what the cell, changed of the recipe."""
_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    {
        **{name: _WORD for name in ("cell", "part", "recipe", "arm")},
        **{"seed": pa.int32(), "table": _WORD, "step": pa.int32(), "key": _WORD},
        **{"value": pa.float64(), "text": pa.string()},
    }
)
WAIT_S = 60.0
"""Longest wait for another process that writes the same file."""


def add(file: Path, contents: Iterable[Content]) -> None:
    """Writes runs into a study's file, or into a file each if it is a folder, in place of those of the same names.

    Raises:
        UserError: the runs would be of several commits.
        ValueError: another process holds the file for longer than `WAIT_S`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with held(file.with_suffix(".lock"), "writing the results of this study", WAIT_S):
        new = {one["name"]: one for one in contents}
        by_name = {one["name"]: one for one in read(file)} | new
        of_one_commit(file, [one.get("commit") for one in by_name.values()])
        if file.suffix:
            return _write(file, [by_name[name] for name in sorted(by_name)])
        file.mkdir(exist_ok=True)
        for name, one in new.items():
            _write(file / f"{name}.parquet", [one])


def _write(file: Path, contents: Iterable[Content]) -> None:
    rows = [row for one in contents for row in _rows(one)]
    partial = file.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), partial, compression="zstd", compression_level=19)
    os.replace(partial, file)


def of_one_commit(file: Path, commits: Iterable[str | None]) -> None:
    """Raises UserError if a study's runs are not all of one commit; None: not recorded."""
    if len(found := {commit or "not recorded" for commit in commits}) > 1:
        raise UserError(
            f"{file.name}: its runs would be of several commits ({', '.join(sorted(found))}); run all cells of a study "
            "at one, in a worktree of it"
        )


def read(file: Path) -> list[dict[str, Any]]:
    """The content of every run in a study's file or folder, by name; nothing if there is none. UserError if a file is
    damaged."""
    if file.is_dir():
        return [one for own in sorted(file.glob("*.parquet")) for one in read(own)]
    if not file.is_file():
        return []
    try:
        columns = pq.read_table(file, schema=SCHEMA).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is no table of condensed runs ({error})") from error
    rows = zip(*(columns[name] for name in SCHEMA.names), strict=True)
    return [_content(name, own) for name, own in groupby(rows, key=lambda row: row[0])]


def read_as(file: Path, parse: Callable[[Content], T]) -> list[T]:
    """What `parse` makes of the content of every run in a file. UserError if a run lacks something that it needs."""
    return [parsed(one, parse, f"{file}: {one['name']}") for one in read(file)]


def parsed(content: Content, parse: Callable[[Content], T], where: str) -> T:
    """What `parse` makes of a run's content. UserError, which begins with `where`, if it cannot."""
    try:
        return parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{where} is no condensed run ({error}); remove it and run its cell again") from error


def _rows(content: Content) -> Iterator[dict[str, Any]]:
    label = {"cell": content["name"], **{name: content[name] for name in LABELS}}
    whole = {key: value for key, value in content.items() if key not in ("name", "tables", *LABELS)}
    for key, value in _leaves(whole, ""):
        yield {**label, "table": WHOLE, "key": key, **_entry(value)}
    for table, columns in content.get("tables", {}).items():
        for key, values in columns.items():
            at = zip(columns["step"], values, strict=True) if key != "step" else ()
            for step, value in at:
                if value is not None:
                    yield {**label, "table": table, "step": step, "key": key, **_entry(value)}


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The values below a key with their dotted keys; those of a list have the same one. None is left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield key, inner
    elif value is not None:
        yield key, value


def _entry(value: float | str) -> dict[str, Any]:
    return {"text": value} if isinstance(value, str) else {"value": float(value)}


def _content(name: str, rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    content: dict[str, Any] = {"name": name, "set": []}
    tables: dict[str, dict[str, dict[int, Any]]] = {}
    for _, part, recipe, arm, seed, table, step, key, value, text in rows:
        content |= {"part": part, "recipe": recipe, "arm": arm, "seed": seed}
        found = text if value is None else value
        if table != WHOLE:
            tables.setdefault(table, {}).setdefault(key, {})[step] = found
        elif key in LISTS:
            content.setdefault(key, []).append(found)
        else:
            _put(content, key.split("."), int(value) if value is not None and value.is_integer() else found)
    return {"groups": {}, **content, "tables": {table: _columns(own) for table, own in tables.items()}}


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    *folders, last = path
    for name in folders:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _columns(series: Mapping[str, Mapping[int, Any]]) -> dict[str, list[Any]]:
    steps = sorted({step for own in series.values() for step in own})
    return {"step": [*steps], **{key: [own.get(step) for step in steps] for key, own in series.items()}}


def read_csv(file: Path) -> list[dict[str, str]]:
    """The rows of a small table in one piece."""
    with file.open(newline="") as lines:
        return [*csv.DictReader(lines)]


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes such a table; the columns are those of the first row."""
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
