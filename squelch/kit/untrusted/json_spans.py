"""Where the rows of a memory-mapped JSON file begin and end: JSON Lines, or one array of objects. Nothing is parsed."""

from __future__ import annotations

import mmap
import re
from array import array
from pathlib import Path

import numpy as np

from squelch.kit.untrusted.files import Unreadable, brief
from squelch.kit.untrusted.text import MAX_LINE

MAX_ROWS = 2**25
"""Rows of one JSON file; where they begin and end takes 24 bytes a row."""
_SCAN_BYTES = 2**22
_WHITE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))
"""Whether a byte is white space, (256,) bool."""
_JSON_PARTS = re.compile(rb'"(?>[^"\\]*(?:\\.[^"\\]*)*)(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string, also one that the end of the file cuts short, or a bracket. Every byte is looked at once."""


def line_spans(data: mmap.mmap, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of each line that is not blank, shape (num_rows, 2), and its number in the file, from 1."""
    spans, numbers = list[np.ndarray](), list[np.ndarray]()
    begin, lines, rows = 0, 0, 0
    characters = np.frombuffer(data, np.uint8)
    for start in range(0, len(data), _SCAN_BYTES):
        end = min(start + _SCAN_BYTES, len(data))
        ends = np.flatnonzero(characters[start:end] == ord("\n")) + start
        ends = np.append(ends, end) if end == len(data) else ends
        if not len(ends):
            continue
        found = np.stack([np.append(begin, ends[:-1] + 1), ends], axis=1)
        is_row = ~_blank(characters, found)
        spans.append(found[is_row])
        numbers.append(lines + 1 + np.flatnonzero(is_row))
        begin, lines, rows = int(ends[-1]) + 1, lines + len(ends), rows + len(spans[-1])
        _bound_rows(rows, path)
    if not rows:
        raise Unreadable(f"{path}: empty; need JSON Lines or an array of objects")
    return np.concatenate(spans), np.concatenate(numbers)


def _blank(characters: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Which spans, (num_spans, 2), hold at most two characters that are all white space; (num_spans,) bool."""
    lengths = spans[:, 1] - spans[:, 0]
    last = len(characters) - 1
    first, second = (_WHITE[characters[np.minimum(spans[:, 0] + place, last)]] for place in (0, 1))
    return (lengths <= 2) & (first | (lengths < 1)) & (second | (lengths < 2))


def array_spans(data: mmap.mmap, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of each object of the array, shape (num_rows, 2), found by its brackets; no line numbers."""
    spans, depth, begin, last = array("q"), 0, 0, 0
    for part in _JSON_PARTS.finditer(data):
        mark = data[part.start()]
        if mark in b"[{":
            depth += 1
            if depth == 2:
                begin = part.start()
                _only_separators(data, last, begin, path, len(spans) // 2)
        elif mark in b"]}":
            depth -= 1
            if depth == 1:
                last = part.end()
                spans.extend((begin, last))
                _bound_rows(len(spans) // 2, path)
    if depth:
        row = len(spans) // 2
        raise Unreadable(f"{path}: the array does not end (cut short after row {row}?); fetch the file again")
    _only_separators(data, last, len(data), path, len(spans) // 2)
    return np.array(spans, np.int64).reshape(-1, 2), np.zeros(0, np.int64)


def _bound_rows(rows: int, path: Path) -> None:
    if rows > MAX_ROWS:
        raise Unreadable(f"{path}: more than {MAX_ROWS} rows; use Parquet, or several files")


def _only_separators(data: mmap.mmap, start: int, end: int, path: Path, row: int) -> None:
    between = data[start : min(end, start + MAX_LINE)].strip(b"\xef\xbb\xbf \t\r\n[],")
    if between or end - start > MAX_LINE:
        where = f"{path}, row {row + 1}"
        got = brief(between[:80].decode(errors="replace"))
        raise Unreadable(f"{where}: an object of columns is needed (got {got})")
