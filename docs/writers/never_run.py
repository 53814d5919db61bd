"""Lists the commands of the pages that no walk runs, counted in results.md: `python -m docs.writers.never_run`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from docs.writers.tables import replaced, table
from tests.walk.commands import commands, left_out
from tests.walk.pages import read_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "research" / "results.md"
DATA = ROOT / "research" / "results" / "never_walked.csv"


def listed() -> str:
    """The text of the list: a row for each command."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("page", "command", "why"), *_rows()])
    return text.getvalue()


def with_counts(page: str) -> str:
    """The page with the up-to-date table: for each reason, how many commands of which pages. ValueError if the page
    lacks the marks of the table."""
    rows = _rows()
    found = [(why, [of for of, _, other in rows if other == why]) for why in dict.fromkeys(row[2] for row in rows)]
    counts = [(why, str(len(of)), ", ".join(Path(name).stem for name in dict.fromkeys(of))) for why, of in found]
    return replaced(page, "never walked", table(("why", "commands", "of the pages"), counts))


def _rows() -> list[tuple[str, str, str]]:
    rows = list[tuple[str, str, str]]()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for block in read_page(path.name, text).blocks if "<!-- walk: " in text else ():
            for _, command in commands(block.text) if block.kind == "commands" else ():
                if reason := left_out(command, block.not_run):
                    rows.append((path.name, command.splitlines()[0].partition("  #")[0].rstrip(), reason))
    return rows


def main() -> None:
    """Writes the list, and the counts into the page."""
    DATA.write_text(listed(), encoding="utf-8")
    PAGE.write_text(with_counts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
