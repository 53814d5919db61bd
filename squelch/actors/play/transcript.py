"""Segments of a trajectory in progress, and the arrays of the trajectory that they become. Pure.

Invariants:

- A segment is append-only: ids that are fed and ids that are sampled, each added once, never decoded and encoded again.
- Positions of a segment's turns and version spans count from its own start; those of `Joined` count in the whole
  trajectory.
- One segment is joined as it is: the same ids, and the same `Turn` objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from squelch.actors.messages import Completion
from squelch.kit.records.content import Picture, PlacedPictures, moved
from squelch.kit.records.records import Segment, Turn, Untrained, VersionSpan

VersionSpans = tuple[VersionSpan, ...] | None
"""Runs of sampled tokens by version, in order; None if they are not known."""


@dataclass
class Transcript:
    """One segment in progress: its ids, in the order in which they are fed and sampled."""

    parts: list[np.ndarray] = field(default_factory=list)
    log_probs: list[np.ndarray | None] = field(default_factory=list)
    """Of each part: the log-probabilities (nats) of sampled ids, None for fed ones."""
    turns: list[Turn] = field(default_factory=list)
    version_spans: VersionSpans = ()
    length: int = 0
    pictures: PlacedPictures = ()
    """Those that fed ids stand for; sampled ids never do."""

    def add(self, ids: np.ndarray, log_probs: np.ndarray | None = None, pictures: PlacedPictures = ()) -> int:
        """Append fed ids and the pictures among them, or sampled ids with their log-probabilities; returns the position
        of the first."""
        start = self.length
        self.pictures += moved(pictures, start)
        self.parts.append(ids)
        self.log_probs.append(log_probs)
        self.length += len(ids)
        return start

    def add_sampled(self, completion: Completion) -> int:
        """Append the ids of a sampled turn; returns the position of the first."""
        spans = completion.spans_from(self.length)
        before = self.version_spans
        self.version_spans = None if spans is None or before is None else (*before, *spans)
        return self.add(completion.token_ids, completion.log_probs)

    def add_turn(
        self,
        completion: Completion,
        reasoning: tuple[int, int],
        format_valid: bool,
        num_actions: int,
        reward: float = 0.0,
        format_penalty: float = 0.0,
    ) -> Turn:
        """Record the turn whose ids `add_sampled` appended last. `reasoning`: (start, end) among those ids."""
        start = self.length - len(completion.token_ids)
        turn = Turn(
            sample_start=start,
            sample_end=self.length,
            reasoning_start=start + reasoning[0],
            reasoning_end=start + reasoning[1],
            reward=reward,
            format_penalty=format_penalty,
            format_valid=format_valid,
            hit_token_limit=completion.finish_reason == "length",
            num_actions=num_actions,
            version_min=completion.version_min,
            version_max=completion.version_max,
        )
        self.turns.append(turn)
        return turn

    def token_ids(self) -> np.ndarray:
        """All ids so far, (num_tokens,) int32."""
        return np.concatenate(self.parts).astype(np.int32, copy=False) if self.parts else np.zeros(0, np.int32)

    def last_ids(self) -> np.ndarray:
        """The sampled ids of the last turn."""
        turn = self.turns[-1]
        return self.token_ids()[turn.sample_start : turn.sample_end]


@dataclass(frozen=True)
class Joined:
    """The fields of a `records.Trajectory` that its segments determine; see there."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    log_probs: np.ndarray
    turns: list[Turn]
    version_spans: VersionSpans
    segments: tuple[Segment, ...]
    pictures: tuple[Picture, ...]


def joined(segments: Sequence[Transcript], causes: Sequence[str]) -> Joined:
    """One or more segments, one after another. `causes`: why each was begun (`records.Segment`); that of the first,
    which is empty, is not read."""
    starts = np.cumsum([0, *(segment.length for segment in segments)]).tolist()
    mask, log_probs = np.zeros(starts[-1], dtype=bool), np.zeros(starts[-1], dtype=np.float32)
    turns: list[Turn] = []
    spans: VersionSpans = ()
    for segment, start in zip(segments, starts[:-1], strict=True):
        position = start
        for part, sampled in zip(segment.parts, segment.log_probs, strict=True):
            if sampled is not None:
                mask[position : position + len(part)] = True
                log_probs[position : position + len(part)] = sampled
            position += len(part)
        turns += [_moved(turn, start) for turn in segment.turns]
        own = segment.version_spans
        spans = None if own is None or spans is None else (*spans, *(_shifted(one, start) for one in own))
    ids = [segment.token_ids() for segment in segments]
    later = zip(starts[1:-1], causes[1:], strict=True)
    return Joined(
        ids[0] if len(ids) == 1 else np.concatenate(ids),
        mask,
        log_probs,
        turns,
        spans,
        tuple(Segment(start, cause) for start, cause in later),
        tuple(
            Picture.of(start + position, picture)
            for segment, start in zip(segments, starts[:-1], strict=True)
            for position, picture in segment.pictures
        ),
    )


def untrained_of(segment: Transcript, rule: str) -> Untrained:
    """A conversation that is not trained on, of at least one turn. `rule`: why not."""
    one = joined([segment], [""])
    versions = [(turn.version_min, turn.version_max) for turn in one.turns]
    oldest, newest = min(first for first, _ in versions), max(last for _, last in versions)
    return Untrained(rule, one.token_ids, one.loss_mask, one.log_probs, oldest, newest)


def _moved(turn: Turn, by: int) -> Turn:
    """The turn, its positions counted from `by` positions earlier."""
    if not by:
        return turn
    return replace(
        turn,
        sample_start=turn.sample_start + by,
        sample_end=turn.sample_end + by,
        reasoning_start=turn.reasoning_start + by,
        reasoning_end=turn.reasoning_end + by,
    )


def _shifted(span: VersionSpan, by: int) -> VersionSpan:
    return VersionSpan(span.start + by, span.end + by, span.version)
