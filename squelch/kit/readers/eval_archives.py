"""The records of an `.eval` file, in which inspect_ai keeps a log as a zip archive: a record for each sample, in the
form of inspect_ai's JSON logs, which hold them all in one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from squelch.kit.untrusted.archives import member_names, members
from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.text import parse_object

_HEADERS = ("header.json", "_journal/start.json")
"""Of a log that is complete, and of one that is being written."""
_SAMPLE = re.compile(r"samples/.+_epoch_\d+\.json", re.DOTALL)
_PIECE = re.compile(r"(samples/.+_epoch_\d+)/.+\.json", re.DOTALL)


def log_records(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, record) of each sample, from 1. `notes`: takes what a reader should know. Raises Unreadable for a file
    that is no such archive, or damaged."""
    names = member_names(path)
    header = next((name for name in _HEADERS if name in names), None)
    if header is None:
        raise Unreadable(f"{path} is an archive without `{_HEADERS[0]}`; it is no log of inspect_ai's")
    [(_, data)] = members(path, [header])
    head = parse_object(data, f"{path}, {header}").get("eval")
    if pieces := {found[1] for found in map(_PIECE.fullmatch, names) if found}:
        notes.append(f"{path}: samples that are kept in pieces are left out: {len(pieces)}")
    samples = [name for name in names if _SAMPLE.fullmatch(name)]
    for number, (name, data) in enumerate(members(path, samples), 1):
        yield number, {"eval": head, "samples": [parse_object(data, f"{path}, {name}")]}
