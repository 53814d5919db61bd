"""Which file holds a step's rows. A part holds one step; the parts of a finished block are merged into one file.

    groups/step-000012.parquet                  the rows of step 12
    groups/steps-000100-000199.parquet          the rows of steps 100 to 199, in order, each row group of one step
    scores/steps-000100-000198-MASK.parquet     of some of them: MASK is hexadecimal, its bit i stands for step 100 + i

`STEPS_PER_BLOCK` steps are a block, and a merged file never reaches into another: a run of 10,000 steps has about 100
merged files in each folder, and the parts of the newest steps.

    writes      the run's one writer (`kit.archive.writer`), in the thread that has written a later step's part: the
                training step does not wait for it. Each call merges `PARTS_AT_ONCE` parts (`kit.archive.merging`)
    merge       rows -> hidden partial file -> synced -> renamed -> the files that it replaces are deleted
    truncate    parts after the step are deleted; the merged file that holds it is written again, up to it, under its
                new name, then the old one is deleted

Invariants:

- Whatever happens at whatever moment, each row of an archived step is in a file with a final name, because a file is
  deleted only after the file that replaces it has its name. So a step may be in several files; their rows of it are
  equal, unless the step was written again: then its part is the newest. A reader takes a step from its part, or else
  from the merged file with the last name, so that no row is read twice.
- A reader lists the parts first and the merged files afterwards. A part that is missing from the first listing was
  deleted after its merged file had got its name, so that the second listing has that. A file that is deleted between
  the listing and the reading is looked up again (`opened`); one that is open stays readable.
- After a kill, a finished block may consist of more than one file. The next writer merges all of them again, so that
  nothing has to be known about the process before it.

Imports neither Ray nor torch, and Arrow only to read.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, BinaryIO

from squelch.kit.archive.store import Store, reading

if TYPE_CHECKING:
    import pyarrow.parquet as pq

GROUPS, SCORES = "groups", "scores"
"""The folders of a run whose files hold rows of steps."""
STEPS_PER_BLOCK = 100
_NAME = re.compile(r"(?:.*/)?step-([0-9]{1,9})\.parquet")
_MERGED = re.compile(r"(?:.*/)?steps-([0-9]{1,9})-([0-9]{1,9})(?:-([0-9a-f]{1,64}))?\.parquet")


@dataclass(frozen=True)
class Part:
    """A file, and the steps whose rows it holds, ascending."""

    key: str
    steps: tuple[int, ...]
    merged: bool = False


def block_of(step: int) -> int:
    """The first step of the block that contains `step`."""
    return step // STEPS_PER_BLOCK * STEPS_PER_BLOCK


def part_key(folder: str, step: int) -> str:
    """The key of the file of one step, e.g. `groups/step-000012.parquet`."""
    return f"{_inside(folder)}step-{step:06d}.parquet"


def merged_key(folder: str, steps: Sequence[int]) -> str:
    """The key of the file of several steps, ascending, of one block."""
    first, last = steps[0], steps[-1]
    mask = "" if len(steps) == last - first + 1 else f"-{sum(1 << (step - first) for step in steps):x}"
    return f"{folder}/steps-{first:06d}-{last:06d}{mask}.parquet"


def _inside(folder: str) -> str:
    return f"{folder}/" if folder else ""


def parts_in(store: Store, folder: str) -> list[Part]:
    """All files of rows in a folder of a run (empty: the store is that folder), merged ones first, in order of their
    names."""
    with reading(store.where(folder)):
        single = [(_NAME.fullmatch(key), key) for key in store.list(f"{_inside(folder)}step-")]
        merged = [_merged(key) for key in store.list(f"{_inside(folder)}steps-")]  # after the parts, as said above
    return [*(part for part in merged if part), *(Part(key, (int(match[1]),)) for match, key in single if match)]


def _merged(key: str) -> Part | None:
    match = _MERGED.fullmatch(key)
    if match is None or block_of(first := int(match[1])) != block_of(last := int(match[2])):
        return None
    mask = int(match[3], 16) if match[3] else -1
    steps = tuple(step for step in range(first, last + 1) if mask >> (step - first) & 1)
    return Part(key, steps, merged=True) if steps else None


def by_step(parts: Sequence[Part]) -> dict[int, Part]:
    """The file from which each step is read, ascending; `parts`: as `parts_in` lists them."""
    return dict(sorted({step: part for part in parts for step in part.steps}.items()))


def opened(store: Store, folder: str, steps: Sequence[int]) -> Generator[tuple[Part, Sequence[int], BinaryIO]]:
    """The files that hold these steps, in their order, each open, with the wanted steps that are read from it.

    Raises FileNotFoundError for a step that no file holds (any more).
    """
    found, left = by_step(parts_in(store, folder)), list(steps)
    while left:
        part = found.get(left[0])
        if part is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), store.where(part_key(folder, left[0])))
        run = list(takewhile(lambda step, found=found, part=part: found.get(step) == part, left))
        try:
            raw = store.get(part.key)
        except FileNotFoundError:
            found = by_step(parts_in(store, folder))
            if found.get(left[0]) == part:
                raise
            continue
        with raw:
            yield part, run, raw
        del left[: len(run)]


def row_groups_of(file: pq.ParquetFile, where: str, part: Part, steps: Sequence[int]) -> list[int] | None:
    """The row groups of a file that hold these of its steps; None for all. Those of a merged file are in order of
    step, each of one step."""
    if len(steps) == len(part.steps):
        return None

    @cache
    def step_of(number: int) -> int:
        return _step_of(file, where, number)

    every = range(file.num_row_groups)
    ends = ((bisect_left(every, step, key=step_of), bisect_right(every, step, key=step_of)) for step in steps)
    return [number for start, end in ends for number in every[start:end]]


def _step_of(file: pq.ParquetFile, where: str, number: int) -> int:
    import pyarrow.compute as pc

    from squelch.kit.untrusted.files import decoding
    from squelch.kit.untrusted.parquet import read_row_group

    column = read_row_group(file, where, number, ["step"])["step"]
    with decoding(where, "has a row group without a step"):
        return int(pc.min(column).as_py())
