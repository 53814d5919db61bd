"""The board of a grid world as text in each prompt style, and read back from text.

A board is rows of symbols, one string per row. Its plain text separates cells by spaces and rows by newlines; the
text `row` of a wording's `shown` says how one row is shown, such as `Row 2: P _ _ G`, and `place` how the cell of one
thing on it is, such as `goal: row 2, column 3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from squelch.envs.wording import Cell, Wording


def shown(plain: str, wording: Wording) -> str:
    """A board's plain text in a wording."""
    rows = enumerate(plain.split("\n"))
    return "\n".join(wording.shown["row"].format(row=row, cells=cells) for row, cells in rows)


def facts_of(rows: Sequence[str], legend: Mapping[str, str], names: Iterable[str]) -> dict[str, list[Cell]]:
    """Cells (row, column), from 0 and row by row, of each of the facts in a board."""
    cells = [((r, c), legend[glyph].split()) for r, row in enumerate(rows) for c, glyph in enumerate(row)]
    return {name: [at for at, found in cells if name in found] for name in names}


def places(facts: Mapping[str, Iterable[Cell]], wording: Wording) -> str:
    """Where each fact is, one line for each of its cells, in a wording that has words for it."""
    return "\n".join(
        wording.shown["place"].format(name=name, row=row, column=column)
        for name, cells in facts.items()
        for row, column in cells
    )


def last_board(text: str, glyphs: str, row_texts: Iterable[str]) -> list[str] | None:
    """The last square board in a text, one string per row; None if there is none. `row_texts`: how a row can be shown.

    The first row may follow a chat template's marker on the same line.
    """
    patterns = _patterns(glyphs, tuple(dict.fromkeys(row_texts)))
    boards = [
        ["".join(patterns.cells.findall(line)[-1].split()) for line in match[0].split("\n")]
        for match in patterns.board.finditer(text)
    ]
    square = [board for board in boards if all(len(row) == len(board) for row in board)]
    return square[-1] if square else None


def without_rows(text: str, glyphs: str, row_texts: Iterable[str]) -> str:
    """The text without the lines that are rows of a board."""
    row = _patterns(glyphs, tuple(dict.fromkeys(row_texts))).row
    return "\n".join(line for line in text.split("\n") if not row.fullmatch(line))


class _Patterns(NamedTuple):
    """`cells` of a row, a `row`, and a `board` of two or more rows that are shown in the same way."""

    cells: re.Pattern[str]
    row: re.Pattern[str]
    board: re.Pattern[str]


@lru_cache(maxsize=16)
def _patterns(glyphs: str, row_texts: tuple[str, ...]) -> _Patterns:
    cells = rf"[{re.escape(glyphs)}](?: [{re.escape(glyphs)}])+"
    rows = [
        re.escape(text).replace(r"\{row\}", r"\d{1,2}").replace(r"\{cells\}", cells)
        for text in sorted(row_texts, key=len, reverse=True)
    ]
    board = "|".join(rf"{row}(?:\n{row})+(?!\S)" for row in rows)
    return _Patterns(re.compile(cells), re.compile("|".join(rows)), re.compile(board))
