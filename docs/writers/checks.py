"""Writes the tables and sections of docs/guide/check-a-run.md from the catalogue of checks and the table of formats:
`python -m docs.writers.checks`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs.writers.tables import replaced, table
from squelch.kit.checks.catalogue import PAGE as NAME
from squelch.kit.checks.catalogue import Check, checks
from squelch.kit.readers.formats import FORMATS

PAGE = Path(__file__).resolve().parents[2] / NAME
FROM_THE_FILES = "yes"
WITHOUT = ""


def with_parts(page: str) -> str:
    """The page with up-to-date parts. ValueError if it lacks their marks."""
    return replaced(replaced(page, "table", _table()), "checks", "\n".join(_sections()))


def _table() -> str:
    """Which fault is found in which form."""
    found = [one for one in checks().values() if one.formats]
    names = [name for name in FORMATS if any(name in one.formats for one in found)]
    rows = ((f"[{one.name}](#{one.name})", *(_cell(one, name) for name in names)) for one in found)
    return table(("fault", *(f"`{name}`" for name in names)), rows)


def _cell(one: Check, name: str) -> str:
    if name not in one.formats:
        return WITHOUT
    return f"`{one.needs[name]}`" if name in one.needs else FROM_THE_FILES


def _sections() -> Iterator[str]:
    for one in checks().values():
        yield f"### {one.name}\n"
        said = {
            "What it looks at": one.of,
            "Usual causes": one.causes,
            "What to do": one.change,
            "It cannot": one.cannot,
            "How often it is wrong about a healthy run": one.errs,
            "What it needs to see a fault": one.power,
        }
        yield "".join(f"- {name}{'' if name == 'It cannot' else ':'} {text}.\n" for name, text in said.items())


def main() -> None:
    """Writes the page."""
    PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
