"""Writes the list of commands of the pages that no walk runs, in results.md: `python -m docs.writers.never_run`."""

from __future__ import annotations

from pathlib import Path

from docs.writers.tables import replaced, table
from tests.walk.commands import commands, left_out
from tests.walk.pages import read_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "research" / "results.md"


def with_list(page: str) -> str:
    """The page with the up-to-date list. ValueError if the page lacks the marks of the list."""
    return replaced(page, "never walked", table(("page", "command", "why"), _rows()))


def _rows() -> list[tuple[str, str, str]]:
    rows = list[tuple[str, str, str]]()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for block in read_page(path.name, text).blocks if "<!-- walk: " in text else ():
            for _, command in commands(block.text) if block.kind == "commands" else ():
                if reason := left_out(command, block.not_run):
                    rows.append((path.name, f"`{command.splitlines()[0].partition('  #')[0].rstrip()}`", reason))
    return rows


def main() -> None:
    """Writes the list into the page."""
    PAGE.write_text(with_list(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
