"""Output of a command to the terminal."""

import sys
from collections.abc import Sequence


def say(text: str) -> None:
    """Prints a line to stdout and flushes it."""
    print(text, flush=True)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; each column is padded to its widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def remark(text: str) -> None:
    """Prints a line to stderr that is not part of the command's result, and flushes it."""
    print(text, file=sys.stderr, flush=True)
