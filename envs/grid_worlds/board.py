"""The board of a grid world as text in each prompt style, and read back from text.

A board is rows of symbols, one string per row. Its plain text separates cells by spaces and rows by newlines; the
text `row` of a wording's `shown` says how one row is shown, such as `Row 2: P _ _ G`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from envs.wording import Wording


def shown(plain: str, wording: Wording) -> str:
    """A board's plain text in a wording."""
    rows = enumerate(plain.split("\n"))
    return "\n".join(wording.shown["row"].format(row=row, cells=cells) for row, cells in rows)


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
