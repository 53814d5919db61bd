"""Published Countdown puzzles, in the form of the data set Jiayi-Pan/Countdown-Tasks-3to4: `nums`, the given numbers,
and `target`.

Invariants: puzzles with the same numbers, in any order, are in the same split. Consecutive seeds of a run use the rows
of a split in a fixed shuffled order, each row once before any is repeated. Numbers and target have at most three
digits, so that the tiny policy's vocabulary covers them. A row that is no puzzle raises a ValueError that names file,
row and column. A published puzzle need not have a solution.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field

from squelch.envs.data.rows import Part, shuffled, split_rows
from squelch.kit.records.splits import Split
from squelch.kit.untrusted.files import brief

MOST = 999
"""Largest number, and largest target."""
MIN_NUMBERS, MAX_NUMBERS = 2, 6
Whole = Annotated[int, Field(strict=True, ge=1, le=MOST)]


class PublishedPuzzle(BaseModel):
    """A row, with the published names of its columns."""

    nums: list[Whole] = Field(min_length=MIN_NUMBERS, max_length=MAX_NUMBERS)
    target: Whole


@lru_cache(maxsize=4)
def published(data: str, split: Split) -> Part[PublishedPuzzle]:
    """The split's rows, opened once per process."""
    return split_rows(data, split, PublishedPuzzle, group_by="nums", text_of=numbers_text)


def published_puzzle(rows: Part[PublishedPuzzle], seed: int) -> tuple[tuple[int, ...], int]:
    """(numbers, target) of the row of `seed`; the numbers ascend. Raises ValueError with file, row and column."""
    row = rows[shuffled(seed, len(rows))]
    return tuple(sorted(row.nums)), row.target


def numbers_text(value: Any) -> str:
    """The numbers of a row as text, in ascending order, by which puzzles are grouped. ValueError for anything else."""
    if not isinstance(value, list) or not MIN_NUMBERS <= len(value) <= MAX_NUMBERS or not all(map(_whole, value)):
        raise ValueError(
            f"{MIN_NUMBERS} to {MAX_NUMBERS} whole numbers from 1 to {MOST} are needed (got {brief(value)})"
        )
    return " ".join(map(str, sorted(value)))


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST
