"""Looks up names in tables; an unknown name raises a ValueError with the nearest valid name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
MAX_COMPARED = 100
"""Characters of an unknown word that are compared with the known ones, where it is a user's."""


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """The text `; did you mean X?`, or an empty string if no valid name is similar."""
    found = difflib.get_close_matches(wrong, list(valid), n=1, cutoff=0.5)
    return f"; did you mean `{found[0]}`?" if found else ""


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry `name`. Raises ValueError for an unknown name; `what` is the kind of entry in its message, e.g.
    `rule`."""
    if name not in table:
        raise ValueError(f"unknown {what} `{name}`{nearest(name, table)} (known: {', '.join(map(repr, table))})")
    return table[name]
