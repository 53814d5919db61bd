"""Whether torch compiles code in this process at the moment.

A compilation takes minutes and makes no mark of progress, and may come at any call: for new shapes, or for the first
backward pass. While one is under way, an answer suffices as a sign that the process is not hung
(`cluster.control.progress`). Pure: `kit.process.compiled` hears of them from torch.
"""

from __future__ import annotations

_under_way = [False]


def note(begins: bool) -> None:
    """A compilation begins, or the last one that was under way has ended."""
    _under_way[0] = begins


def under_way() -> bool:
    """Whether a compilation is under way."""
    return _under_way[0]
