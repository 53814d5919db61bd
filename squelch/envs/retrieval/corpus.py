"""Reads a user's corpus as passages: Parquet, JSON or JSON Lines with the columns id, title and text, or with
Search-R1's `contents` (the title in quotes, a line break, the text) instead of the last two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from squelch.envs.data.files import find_files
from squelch.envs.data.rows import read_rows
from squelch.envs.retrieval.index import Index, Passage, file_identity, open_index

CORPUS_SPLIT = "train"
"""Name of the only split of data sets without splits."""


class CorpusRow(BaseModel):
    """One row; `text` or `contents` is required."""

    id: str | int = ""
    title: str = ""
    text: str | None = None
    contents: str | None = None


def open_corpus(source: str, cache: str | None = None) -> Index:
    """The index of a file, a folder or a data set of the hub. Raises ValueError with file, row and column for bad data.

    Rows are checked when the index is built, once per state of the files.
    """
    files = find_files(source, CORPUS_SPLIT)
    return open_index("corpus", file_identity(files), lambda: _passages(files), cache)


def _passages(files: list[Path]) -> Iterator[Passage]:
    rows = read_rows(files, CORPUS_SPLIT, CorpusRow)
    for index, row in enumerate(rows):
        title, text = row.title, row.text
        if text is None and row.contents is not None:
            title, _, text = row.contents.partition("\n")
            title = title.strip().strip('"')
        if text is None or not f"{title}{text}".strip():
            raise ValueError(f"{rows.location(index)}, column text: a passage needs text, here or in column contents")
        yield Passage(str(row.id), title, text)
