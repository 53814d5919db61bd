"""What a command says to the person at the terminal."""

import sys
from collections.abc import Sequence


def say(text: str) -> None:
    """A line, at once."""
    print(text, flush=True)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, each column padded to its widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def remark(text: str) -> None:
    """A line beside what a command prints as its result, on stderr."""
    print(text, file=sys.stderr, flush=True)
