"""Writes the table of formats in docs/guide/use-with-other-trainers.md: `python -m docs.writers.formats`."""

from __future__ import annotations

from pathlib import Path

from docs.writers.tables import replaced, table
from squelch.kit.readers.format import Format
from squelch.kit.readers.formats import FORMATS

PAGE = Path(__file__).resolve().parents[1] / "guide" / "use-with-other-trainers.md"
HEAD = ("program, release", "`--format`", "its setting", "file", "known", "sampled step N", "tested files")


def with_table(page: str) -> str:
    """The page with an up-to-date table. ValueError if the page lacks its marks."""
    return replaced(page, "formats", table(HEAD, (_row(one) for one in FORMATS.values() if one.origin is not None)))


def _row(one: Format) -> tuple[str, ...]:
    found = one.origin
    assert found is not None, "the caller leaves out files of any origin"
    tested = "by hand" if found.by_hand else "its writer"
    name = f"`{one.name}`"
    return (found.program, name, found.setting, found.file, found.known, _sampled_by(one) + found.remark, tested)


def _sampled_by(one: Format) -> str:
    """The checkpoint that sampled step N, by the format's rule of weights."""
    if one.weights is None:
        return ""
    number = {0: "N", -1: "(N-1)"}[one.weights.offset]
    before, _, after = one.weights.folder.partition("{")
    return f"`{before}{number}{after.partition('}')[2]}`"


def main() -> None:
    """Writes the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
