"""Searches what the policy wrote, newest step first.

The texts of a long run fill gigabytes, so a search reads steps until it has a page of hits or has used its time, and
says where the next search goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.archive.rows import list_column

MOST_HITS = 50
BUDGET_S = 1.0
AROUND = 70
"""Characters shown on either side of a hit."""
COLUMNS = ("group_id", "trajectory", "token_ids", "loss_mask")


@dataclass(frozen=True)
class Hit:
    """A trajectory whose sampled text contains the words: the text around the first place, and the number of places."""

    step: int
    group_id: str
    trajectory: int
    before: str
    match: str
    after: str
    count: int


@dataclass(frozen=True)
class Found:
    """Hits in the steps `first` to `last`; `rest`: the newest step that was not searched, None if all were."""

    hits: list[Hit]
    first: int
    last: int
    rest: int | None


def search(
    folder: RunFolder, pieces: Pieces, text: str, newest: int | None = None, clock: Callable[[], float] = time.monotonic
) -> Found:
    """The trajectories whose sampled text contains `text`, in any case, from step `newest` downwards."""
    steps = [step for step in reversed(folder.steps()) if newest is None or step <= newest]
    hits, until = list[Hit](), clock() + BUDGET_S
    for number, step in enumerate(steps):
        if number and (clock() > until or len(hits) >= MOST_HITS):
            return Found(hits, steps[number - 1], steps[0], step)
        hits += _in_step(folder.groups([step], COLUMNS), step, pieces, text)
    return Found(hits, steps[-1] if steps else 0, steps[0] if steps else 0, None)


def _in_step(table: pa.Table, step: int, pieces: Pieces, text: str) -> Iterator[Hit]:
    names, numbers = table["group_id"].to_pylist(), table["trajectory"].to_pylist()
    rows = zip(names, numbers, list_column(table, "token_ids"), list_column(table, "loss_mask"), strict=True)
    for name, number, ids, mask in rows:
        found = hit_in(pieces.text(ids[mask]), text)
        if found is not None:
            yield Hit(step, name, number, *found)


def hit_in(written: str, text: str) -> tuple[str, str, str, int] | None:
    """(before, match, after, number of places) of a text in another, in any case; None if it is not there."""
    folded, wanted = written.lower(), text.lower()
    at = folded.find(wanted)
    if at < 0 or not wanted:
        return None
    if len(folded) != len(written):  # a few characters have no lower case of one character: quote the folded text
        written = folded
    end = at + len(wanted)
    return written[max(0, at - AROUND) : at], written[at:end], written[end : end + AROUND], folded.count(wanted)
