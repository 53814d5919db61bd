"""Decides whether a push may replace a dashboard of the server, and lists how two dashboards differ. Pure.

Grafana rewrites a dashboard that somebody saves in its editor (it fills in defaults), so that contents alone do not
show who changed it. The message of the newest version does: a push leaves its own, with the digest of what it pushed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from squelch.cluster.grafana.boards import Tree
from squelch.kit.untrusted.files import brief

MESSAGE = "squelch dashboards push "
OWN = ("id", "version")
"""Keys that Grafana assigns: the dashboard's number on this server, and the number of its saves."""
NAMED_BY = ("title", "name", "refId", "id")
"""Keys by which the entries of a list are recognised, in this order."""
MOST = 20
"""Differences that are listed."""
_ABSENT = object()


@dataclass(frozen=True)
class Found:
    """A dashboard of the server. `message`: that of its newest version; `provisioned`: it comes from a file."""

    board: Tree
    version: int
    message: str
    folder: str
    provisioned: bool


class Verdict(StrEnum):
    """The server's dashboard, as a push finds it."""

    MISSING = "missing"
    SAME = "same"
    OLDER = "older"
    """An earlier push wrote it, and nobody has changed it since."""
    CHANGED = "changed by hand"
    PROVISIONED = "provisioned"


def verdict(ours: Tree, found: Found | None) -> Verdict:
    """The verdict on the server's dashboard, compared with ours."""
    if found is None:
        return Verdict.MISSING
    if found.message == message(ours) or _canonical(found.board) == _canonical(ours):
        return Verdict.SAME
    if found.provisioned:
        return Verdict.PROVISIONED
    return Verdict.OLDER if found.message.startswith(MESSAGE) else Verdict.CHANGED


def message(board: Tree) -> str:
    """The message of a push of this dashboard, with the digest of its content."""
    return MESSAGE + hashlib.sha256(_canonical(board).encode()).hexdigest()[:16]


def _canonical(board: Tree) -> str:
    return json.dumps({key: value for key, value in board.items() if key not in OWN}, sort_keys=True)


def differences(theirs: Tree, ours: Tree) -> list[str]:
    """One line for each value that differs, at most `MOST`: what the server has, and what we have. Values that only the
    server has, which may be defaults that Grafana filled in, come last."""
    own = dict.fromkeys(OWN)
    found = sorted(_differences("", {**theirs, **own}, {**ours, **own}), key=lambda pair: pair[1] is _ABSENT)
    lines = [line for line, _ in found]
    more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return [*lines[:MOST], *more]


def _differences(place: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any]]:
    """Lines, each with our value."""
    left, right = _entries(theirs), _entries(ours)
    if left is None or right is None or isinstance(theirs, Mapping) is not isinstance(ours, Mapping):
        if theirs != ours:
            yield f"{place}: {_shown(theirs)} on the server, {_shown(ours)} here", ours
        return
    if left.keys() == right.keys() and isinstance(ours, Sequence) and list(left) != list(right):
        yield f"{place}: in another order on the server", ours
    for name in dict.fromkeys([*right, *left]):
        inside = f"{place}{'.' if place and not name.startswith('[') else ''}{name}"
        yield from _differences(inside, left.get(name, _ABSENT), right.get(name, _ABSENT))


def _entries(value: Any) -> Mapping[str, Any] | None:
    """The parts of a block by key, and of a list of blocks by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, Mapping) for item in value):
        return _by_name(value)
    return None


def _by_name(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The items under their names; a name that several have is numbered."""
    found: dict[str, Any] = {}
    for index, item in enumerate(items):
        name = next((str(item[key]) for key in NAMED_BY if item.get(key) not in (None, "")), str(index))
        label = f'["{name}"]'
        while label in found:
            label += "'"
        found[label] = item
    return found


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, Mapping) or (isinstance(value, list) and len(value) > 3):
        return "a block" if isinstance(value, Mapping) else f"{len(value)} entries"
    return brief(value)
