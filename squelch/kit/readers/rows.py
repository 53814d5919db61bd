"""The one reader of the files that trainers write: the rows of a file or folder, one after another.

    files of the path ──format of each──▶ records.py ──Format.rows──▶ Read: the row, its step, where it stands

| for | keeps of each row |
|---|---|
| `squelch filter` (`reward_tables.py`) | rewards and a digest of its group |
| `squelch score`, `squelch monitor` (`score_files.py`) | of one step, what is scored |
| following a folder (`steps_in`) | its step |

Invariants:

- One record is in memory at a time. What is said of a row's tokens is not copied until somebody asks for it (`whole`).
- Records and rows that do not count are counted by reason, failed rows too; the caller decides what a failure means.
- In a folder, a file of no known format, or of another one than the files before it, is left out with a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import known_id
from squelch.kit.readers.format import Format
from squelch.kit.readers.format_rows import LeftOut, Row, fits_columns, step_of
from squelch.kit.readers.formats import files_of, recognised
from squelch.kit.readers.records import Record, columns_of, records
from squelch.kit.untrusted.files import is_folder, shortened

MOST_STEPS = 10**9
"""A number from which on it counts no steps; a time in seconds is above it."""
LATE = 16
"""Steps by which a row may come after later ones: prime-rl gives up rollouts that are 8 versions behind."""
MOST_REASONS = 20
"""Reasons that are counted each for itself; they may be texts of files."""
OTHERS = "another reason"


class Read(NamedTuple):
    """A row with its record. `row`: its `step` is a number, or None; `number`: of the record through all files, from 1;
    `where`: the same in words."""

    row: Row
    record: Record
    file: Path
    number: int
    where: str


class Rows:
    """The rows of a file, or of all files in a folder, once.

    Args:
        path: the file or folder.
        named: the format; None recognises that of each file.
        also: columns of a table beside those that the format reads; None for all.
        step: the only step whose rows are wanted; None for all. `steps` has the others too.
        fits: whether a table with these columns, of no trainer's format, is read as `columns`.
        evaluations: whether rows of evaluations are wanted too; else they are counted as left out.
    """

    def __init__(
        self,
        path: Path,
        named: Format | None = None,
        *,
        also: Collection[str] | None = (),
        step: int | None = None,
        fits: Callable[[Collection[str]], bool] = fits_columns,
        evaluations: bool = False,
    ) -> None:
        self._evaluations = evaluations
        self._path, self._named, self._also, self._step, self._fits = path, named, also, step, fits
        self._in_folder = is_folder(path)
        self.format: Format | None = None
        """Of the files; None before the first."""
        self.steps = set[int]()
        """Those of the rows so far, wanted or not, and of files that were not opened because their names say another
        step than the wanted one."""
        self.holds_rows = False
        self.left_out: Counter[str] = Counter()
        """Records and rows that do not count, by reason."""
        self.notes: list[str] = []
        """What a reader should know of the files."""

    def __iter__(self) -> Iterator[Read]:
        before = 0
        for file in files_of(self._path, self._named):
            if (found := self._format_of(file)) is None:
                continue
            named = self._step_named(file, found)
            number, beside = 0, found.beside(file) if found.beside is not None else {}
            for number, record in records(file, self._columns(found), self.notes):
                where, record = f"{file}, row {number}", record | beside
                for row in found.rows(record, where):
                    if (read := self._counted(row, record, named, where)) is not None:
                        yield Read(read, record, file, before + number, where)
            before += number

    def leave_out(self, reason: str) -> None:
        """Counts a record or row that does not count."""
        reason = shortened(str(reason), 80)
        self.left_out[reason if reason in self.left_out or len(self.left_out) < MOST_REASONS else OTHERS] += 1

    def notes_on_left_out(self) -> list[str]:
        """How many records and rows do not count, and why."""
        return [f"left out, {reason}: {count}" for reason, count in sorted(self.left_out.items())]

    def _format_of(self, file: Path) -> Format | None:
        """The format of a file; None if it is left out of its folder. One whose name says another step than the wanted
        one is not opened, once the format is known."""
        if self.format is not None and self._is_elsewhere(file, self.format):
            return None
        found = self._named or self._recognised(file)
        if found is None:
            return None
        self.format = found
        return None if self._is_elsewhere(file, found) else found

    def _recognised(self, file: Path) -> Format | None:
        columns = columns_of(file)
        try:
            found = recognised(file, columns, self._fits)
        except UserError:
            if not self._in_folder:
                raise
            self.notes.append(f"{file} is left out: its columns are of no known format")
            return None
        if self.format is None or found is self.format:
            return found if columns or not self._in_folder else None  # an empty file shows none
        if columns:
            others = self.format.name
            self.notes.append(f"{file} is left out: its format is {found.name}, and that of others here {others}")
        return None

    def _step_named(self, file: Path, found: Format) -> int | None:
        return found.step_of(file.relative_to(self._path.parent) if self._in_folder else file)

    def _is_elsewhere(self, file: Path, found: Format) -> bool:
        """Whether the name of a file in a folder says another step than the wanted one."""
        if not self._in_folder or self._step is None:
            return False
        named = self._step_named(file, found)
        if named in (None, self._step):
            return False
        self._see(named)
        return True

    def _columns(self, found: Format) -> Collection[str] | None:
        return None if found.columns is None or self._also is None else found.columns.union(self._also)

    def _counted(self, row: Row | LeftOut, record: Record, named: int | None, where: str) -> Row | None:
        """The row with its step, if it is wanted; `named`: the step in the file's name."""
        if isinstance(row, LeftOut):
            self.leave_out(row.reason)
            return None
        if row.get("evaluation") is not None and not self._evaluations:
            self.leave_out(row["evaluation"])
            return None
        step = step_of(row, record, where)
        row["step"] = named if step is None else step
        self._see(row["step"])
        if self._step not in (None, row["step"]):
            return None
        if row.get("failed") is not None:
            self.leave_out(row["failed"])
        return row

    def _see(self, step: int | None) -> None:
        self.holds_rows = True
        if step is not None:
            self.steps.add(step)


class FileSteps(NamedTuple):
    """The steps of a file's records. `steps`: ascending; `starts`: how often training started again within the file, as
    another run's row of an earlier step shows it, or a row whose step is further back than late rows are."""

    steps: list[int]
    starts: int


def steps_and_starts(path: Path, found: Format) -> FileSteps:
    """The steps of a file's records, and how often training started again within it."""
    reader, runs, starts, highest = Rows(path, found), set[str](), 0, -1
    for read in reader:
        step, run = read.row["step"], read.row.get("run")
        if step is None or step >= MOST_STEPS:
            continue
        is_other = known_id(run) and bool(runs) and str(run) not in runs
        runs |= {str(run)} if known_id(run) else set()
        if step < highest - LATE or (is_other and step <= highest):
            starts, highest = starts + 1, step
        highest = max(step, highest)
    return FileSteps(sorted(reader.steps), starts)


def steps_of_records(path: Path, found: Format) -> list[int]:
    """The steps that a file's records say, ascending."""
    return steps_and_starts(path, found).steps


def steps_in(
    folder: Path,
    found: Format,
    paths: Iterable[Path] | None = None,
    of_records: Callable[[Path, Format], list[int]] = steps_of_records,
) -> dict[int, list[Path]]:
    """The files of each step in a trainer's folder, by step, in order; by the files' names where these say the step,
    and otherwise by their records, which `of_records` reads. `paths`: the files, if not all are meant."""
    steps: dict[int, list[Path]] = {}
    for path in files_of(folder, found) if paths is None else paths:
        named = found.step_of(path.relative_to(folder)) if found.step_in_path else None
        for step in [named] if named is not None else of_records(path, found):
            steps.setdefault(step, []).append(path)
    return dict(sorted(steps.items()))
