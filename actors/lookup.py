"""Names looked up in a table; an unknown one is a ValueError that names the nearest. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no valid name is near."""
    found = difflib.get_close_matches(wrong, list(valid), n=1, cutoff=0.5)
    return f"; did you mean `{found[0]}`?" if found else ""


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of that name; `what` says in the error what the table holds, e.g. `rule`."""
    if name not in table:
        raise ValueError(f"unknown {what} `{name}`{nearest(name, table)} (known: {', '.join(map(repr, table))})")
    return table[name]
