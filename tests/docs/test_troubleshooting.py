"""Troubleshooting quotes what the product says, and names findings and settings that exist."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from squelch.cluster.settings_reference import of_run
from squelch.kit.findings.catalogue import catalogue
from tests.docs.test_pages import ROOT

PAGE = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
SEEN = "what you see"
FIELD = "\0"


def tables(text: str, head: str) -> Iterator[str]:
    """The first cells of the tables whose first column has this head."""
    for table in re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)*)", text, flags=re.MULTILINE):
        yield from (row.split(" | ")[0].removeprefix("| ") for row in table.splitlines())


def quotes(text: str) -> list[str]:
    """What the page says that somebody sees: texts in backticks in first columns or on a line of their own."""
    alone = re.findall(r"^`([^`]+)`$", text, flags=re.MULTILINE)
    return alone + [quote for cell in tables(text, SEEN) for quote in re.findall(r"`([^`]+)`", cell)]


@cache
def said() -> tuple[str, ...]:
    """Every text of the product's code, with one sign for each field."""
    return tuple(text for file in (ROOT / "squelch").rglob("*.py") for text in _texts(file))


def _texts(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(one.value) if isinstance(one, ast.Constant) else FIELD for one in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
            yield node.value


def is_said(quote: str, by: Iterable[str]) -> bool:
    """Whether one of the texts has the quote, in which `...` stands for fields and what is between them."""
    parts = [part for part in quote.split("...") if part]
    asked, longest = re.compile(".*".join(map(re.escape, parts))), max(parts, key=len)
    return any(longest in text and asked.search(text) for text in by)


def test_what_somebody_sees_is_what_the_product_says() -> None:
    assert len(quotes(PAGE)) > 30
    assert [quote for quote in quotes(PAGE) if not is_said(quote, said())] == []


def test_a_quote_that_nothing_says_is_noticed() -> None:
    by = [f"{FIELD} died {FIELD} times within {FIELD} s", f"port {FIELD} is taken"]
    assert is_said("... died ... times", by) and not is_said("... died ... is taken", by)
    assert quotes(f"| {SEEN} | why |\n|---|---|\n| `a ...`, `b` (400) | `c` |\n\n`d` is\n\n`e`\n") == [
        "e",
        "a ...",
        "b",
    ]


@pytest.mark.parametrize("name", re.findall(r"`(\w+)`", " ".join(tables(PAGE, "finding"))))
def test_each_finding_exists(name: str) -> None:
    assert name in catalogue()


def test_each_setting_exists() -> None:
    known = {one.key for block in of_run() for one in block.settings}
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = {key for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)[=`]", PAGE) if key.partition(".")[0] in sections}
    assert len(named) > 20 and named <= known, named - known
