"""Writes the table of the ways of weights in docs/guide/hosts.md: `python -m docs.writers.weight_ways`."""

from __future__ import annotations

from pathlib import Path

from docs.writers.tables import replaced, table
from squelch.actors.weight_ways import WAYS

PAGE = Path(__file__).resolve().parents[1] / "guide" / "hosts.md"


def with_table(page: str) -> str:
    """The page with an up-to-date table. ValueError if the page lacks its marks."""
    rows = ((f"`{way.name}`", way.words, way.terms) for way in WAYS.values())
    return replaced(page, "ways", table(("value", "weights travel", "the way"), rows))


def main() -> None:
    """Writes the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
