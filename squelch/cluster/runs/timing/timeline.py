"""The spans of a run's actors: the busy part of a step, and the actors that worked while the learner waited. Pure.

`Timeline` follows `events.jsonl` and holds the spans as columns (25 bytes a span). `window` cuts out an interval:

- a *lane* is one actor's spans; spans that would be drawn on top of each other are joined;
- of a long run the newest spans are held; times still count from the run's first span;
- a *bubble* is an interval in which the learner neither trained nor published nor saved, between two of its spans; it
  is filled by the actors that worked in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.cluster.runs.following import LineFollower
from squelch.cluster.runs.shapes import checked_event
from squelch.cluster.runs.timing.intervals import clip_intervals, union_seconds
from squelch.kit.archive.reader import EVENTS
from squelch.kit.archive.store import Store
from squelch.kit.base.errors import bad_files_are_the_users
from squelch.kit.untrusted.files import Unreadable

LEARNER, ENVELOPE = "learner", "call"
"""The actor whose waiting is a bubble, and its span that only encloses the others: from the call to its answer."""
NEWEST_BYTES = 12 * 2**20
"""Bytes of a longer file of spans that are read: about 100,000 spans, which take a second."""
MOST_SPANS = 1_000_000
"""Newest spans that are held."""
MOST_TOLD = 1_000
MOST_NAMES = 10_000
"""Actors and kinds of spans of one run, together."""
PIXELS = 3_000
"""Spans closer than this part of a window are joined."""
MOST_BUBBLES = 200
Interval = tuple[float, float]


@dataclass(frozen=True)
class Lane:
    """One actor's spans in a window: (start, end, name, step or None), seconds. `busy`: share of the window."""

    actor: str
    spans: list[tuple[float, float, str, int | None]]
    busy: float


@dataclass(frozen=True)
class Bubble:
    """An interval in which the learner waited. `filled`: (actor, share of the bubble) of the actors that worked."""

    start: float
    end: float
    filled: list[tuple[str, float]]


@dataclass(frozen=True)
class Window:
    """The spans from `start` to `end`, unix seconds."""

    start: float
    end: float
    lanes: list[Lane]
    bubbles: list[Bubble]

    @property
    def waiting(self) -> float:
        """Share of the window in bubbles."""
        return union_seconds((bubble.start, bubble.end) for bubble in self.bubbles) / max(self.end - self.start, 1e-9)


class Timeline:
    """The spans of a live or finished run. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._follower = LineFollower(store, EVENTS, NEWEST_BYTES)
        self._where, self._store = store.where(EVENTS), store
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self._rows = np.zeros(0, _ROW)
        self._origin: float | None = None
        """The start of the file's first span, which need not be held."""
        self.told: list[dict[str, Any]] = []
        """The newest events that say something in words, such as alarms."""

    def refresh(self) -> None:
        """Reads the new spans. UserError for a damaged line."""
        with self._lock, bad_files_are_the_users():
            void, lines = self._follower.news()
            if void:
                self._clear()
            rows: list[tuple[int, int, float, float, int]] = []
            try:
                for line in lines:
                    rows.append(self._row(checked_event(line, self._where)))
                    if isinstance(line.get("text"), str):
                        self.told = [*self.told[1 - MOST_TOLD :], line]
            finally:  # those before a damaged line are held
                if rows:
                    self._rows = np.concatenate([self._rows, np.array(rows, _ROW)])[-MOST_SPANS:]
                    self._origin = self._origin or self._first_start()

    def _first_start(self) -> float:
        first = next(LineFollower(self._store, EVENTS).news()[1])
        return min(checked_event(first, self._where)["start"], float(self._rows["start"].min()))

    def _row(self, event: dict[str, Any]) -> tuple[int, int, float, float, int]:
        step = event.get("step")
        number = step if isinstance(step, int) and 0 <= step < 2**31 else -1
        return self._code(event["actor"]), self._code(event["name"]), event["start"], event["end"], number

    def _code(self, name: str) -> int:
        if name not in self._codes:
            if len(self.names) == MOST_NAMES:
                raise Unreadable(
                    f"{self._where}: more than {MOST_NAMES:,} names of actors and spans; no run has so many"
                )
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]

    @property
    def extent(self) -> Interval | None:
        """From the run's first start to its last end, unix seconds; None without a span."""
        rows = self._rows
        return None if self._origin is None else (self._origin, float(rows["end"].max()))

    def window(self, start: float, end: float) -> Window:
        """The spans that touch [start, end]."""
        with self._lock:
            rows, names = self._rows, list(self.names)
        rows = rows[(rows["end"] >= start) & (rows["start"] <= end)]
        rows = rows[np.argsort(rows["start"], kind="stable")]
        least = (end - start) / PIXELS
        actors = sorted({names[code] for code in np.unique(rows["actor"])}, key=_lane_order)
        codes = {name: code for code, name in enumerate(names)}
        work = {actor: _intervals(rows[rows["actor"] == codes[actor]], codes, start, end) for actor in actors}
        lanes = [
            Lane(
                actor,
                _joined(rows[rows["actor"] == codes[actor]], names, least),
                union_seconds(work[actor]) / max(end - start, 1e-9),
            )
            for actor in actors
        ]
        return Window(start, end, lanes, _bubbles(work, least))

    def spans(self) -> Iterable[tuple[str, str, float, float, int | None]]:
        """(actor, name, start, end, step) of every span that is held, in order of the file."""
        for actor, name, start, end, step in self._rows.tolist():
            yield self.names[actor], self.names[name], start, end, None if step < 0 else step


_ROW = np.dtype([("actor", "i2"), ("name", "i2"), ("start", "f8"), ("end", "f8"), ("step", "i4")])


def _lane_order(actor: str) -> tuple[int, str]:
    """The learner first, then the actors that feed it, then the others."""
    kinds = ("learner", "rollout", "env", "filter", "scorer", "archive")
    return next((number for number, kind in enumerate(kinds) if actor.startswith(kind)), len(kinds)), actor


def _intervals(rows: np.ndarray, codes: dict[str, int], start: float, end: float) -> list[Interval]:
    """The intervals in which an actor worked, inside the window and without the enclosing calls."""
    worked = rows[rows["name"] != codes.get(ENVELOPE, -1)]
    return clip_intervals(zip(worked["start"].tolist(), worked["end"].tolist(), strict=True), start, end)


def _joined(rows: np.ndarray, names: Sequence[str], least: float) -> list[tuple[float, float, str, int | None]]:
    """The spans of a lane; a span that begins less than `least` seconds after one of the same name and step ended is
    joined to it."""
    found: list[tuple[float, float, str, int | None]] = []
    last: dict[str, int] = {}
    for _, code, start, end, step in rows.tolist():
        name, number = names[code], None if step < 0 else step
        before = last.get(name)
        if before is not None and start - found[before][1] < least and found[before][3] == number:
            found[before] = (found[before][0], max(found[before][1], end), name, number)
        else:
            last[name] = len(found)
            found.append((start, end, name, number))
    return found


def _bubbles(work: dict[str, list[Interval]], least: float) -> list[Bubble]:
    """The longest gaps between the learner's intervals, in order, each with the actors that worked in it."""
    own = sorted(work.get(LEARNER, []))
    reach, gaps = (own[0][1] if own else 0.0), list[Interval]()
    for start, end in own[1:]:
        if start - reach > least:
            gaps.append((reach, start))
        reach = max(reach, end)
    longest = sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST_BUBBLES])
    return [Bubble(start, end, _filled(work, start, end)) for start, end in longest]


def _filled(work: dict[str, list[Interval]], start: float, end: float) -> list[tuple[str, float]]:
    """(actor, share of [start, end]) of the other actors that worked there, the busiest first."""
    shares = (
        (actor, union_seconds(clip_intervals(intervals, start, end)) / (end - start))
        for actor, intervals in work.items()
        if actor != LEARNER
    )
    return sorted((pair for pair in shares if pair[1] > 0), key=lambda pair: -pair[1])
