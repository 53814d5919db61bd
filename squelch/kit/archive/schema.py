"""Schema 2 of the archive. `schema.csv` beside this module has every column with its type, unit and meaning, and
docs/reference/schema.md is generated from it.

A file of another version is refused (`kit.archive.version`). A change of a column's name, type or meaning needs a
new version; the schema has nullable columns for data that other trainers need not record.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from squelch.kit.archive.version import VERSION, VERSION_KEY


@dataclass(frozen=True)
class Column:
    """One column. `nullable`: the column may be null, with the meaning stated in `meaning`; other columns never are."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        """Arrow's field. It always allows nulls, so that the reader rather than Arrow refuses a file of another
        trainer."""
        return pa.field(self.name, self.type)


def _tables() -> dict[str, tuple[Column, ...]]:
    """The columns of each table of the file, in which a table stands before those whose entries it describes."""
    found: dict[str, tuple[Column, ...]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table, kind = row["table"], _type(row["type"], found)
            column = Column(row["column"], kind, row["meaning"], row["unit"], bool(row["nullable"]))
            found[table] = (*found.get(table, ()), column)
    return found


def _type(name: str, tables: Mapping[str, tuple[Column, ...]]) -> pa.DataType:
    """Arrow's type: `list of TYPE`, a struct of a table's columns, or one of Arrow's own names."""
    if name.startswith("list of "):
        return pa.list_(_type(name.removeprefix("list of "), tables))
    return pa.struct([column.field for column in tables[name]]) if name in tables else pa.type_for_alias(name)


TABLES = _tables()
TRAJECTORY, DECISION, INDEX, SCORE = (TABLES[name] for name in ("trajectory", "decision", "index", "score"))


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([column.field for column in columns], metadata={VERSION_KEY: str(VERSION)})


TRAJECTORY_SCHEMA = _schema(TRAJECTORY)
"""One row per trajectory: the form in which actors pass groups to each other."""
ARCHIVE_SCHEMA = _schema((*TRAJECTORY, *DECISION))
"""One row per trajectory with the filter's decision on its group: the form in which groups are archived."""
OPTIONAL = frozenset(column.name for column in (*TRAJECTORY, *DECISION) if column.nullable)
"""Columns that may be missing from a file of the archive; they are then read as null."""
INDEX_SCHEMA = _schema(INDEX)
"""One row per group, without tokens."""
SCORES_SCHEMA = _schema(SCORE)
"""One row per scored pair of a reasoning and a prompt (`kit.archive.score_matrices`)."""


def text_columns(schema: pa.Schema) -> list[str]:
    """The columns of text, whose values repeat."""
    return [field.name for field in schema if field.type == pa.string()]
