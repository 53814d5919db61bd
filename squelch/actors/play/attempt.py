"""One trajectory while it is played: its segments, and what is known of its task and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from squelch.actors.play.transcript import Transcript, joined
from squelch.kit.records.content import PlacedPictures
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Trajectory, Untrained


class AttemptFailed(Exception):
    """Ends this trajectory with a failure."""

    def __init__(self, cause: FailureCause, detail: object = "") -> None:
        self.failure = Failure(cause, str(detail))
        super().__init__(str(self.failure))


@dataclass
class Attempt:
    """A trajectory in progress. `segments` has at least one; `causes`: why each was begun, that of the first empty."""

    segments: list[Transcript] = field(default_factory=lambda: [Transcript()])
    causes: list[str] = field(default_factory=lambda: [""])
    last_text: str = ""
    """Text of the last turn as the group's reward gets it."""
    group_rewarded: bool = False
    """Whether the environment rewards the group (`GroupRewarded`)."""
    failure: Failure | None = None
    task_key: str = ""
    task_kind: str | None = None
    success: bool = False
    truncated: bool = False
    bootstrap_last_state: bool = False
    seconds_environment: float = 0.0
    seconds_generation: float = 0.0
    untrained: tuple[Untrained, ...] = ()
    """An agent's calls that are not trained on."""
    failure_rewarded: str | None = None
    """How the agent failed, where that is rewarded."""
    endpoint_counts: Counter[str] = field(default_factory=Counter)
    """Of an agent's calls (`actors.endpoint.metrics`)."""

    def record(self, segments: Sequence[Transcript], causes: Sequence[str]) -> None:
        """Takes segments that somebody else wrote; without any, the trajectory has no token."""
        if segments:
            self.segments, self.causes = list(segments), list(causes)

    @property
    def segment(self) -> Transcript:
        """The segment that is continued."""
        return self.segments[-1]

    @property
    def num_turns(self) -> int:
        """Turns of all segments."""
        return sum(len(segment.turns) for segment in self.segments)

    @property
    def last_sampled(self) -> Transcript:
        """The last segment that has a turn."""
        return next(segment for segment in reversed(self.segments) if segment.turns)

    def feed(self, ids: np.ndarray, cause: str = "", pictures: PlacedPictures = ()) -> None:
        """Append fed ids and the pictures among them, to a new segment if there is a `cause` to begin one."""
        if cause:
            self.segments.append(Transcript())
            self.causes.append(cause)
        self.segment.add(ids, pictures=pictures)

    def trajectory(self, index: int, worker: str) -> Trajectory:
        """The trajectory; one that failed is neither a success nor truncated."""
        whole, ended = joined(self.segments, self.causes), self.failure is None
        return Trajectory(
            index,
            whole.token_ids,
            whole.loss_mask,
            whole.log_probs,
            whole.turns,
            success=ended and self.success,
            truncated=ended and self.truncated,
            failure=self.failure,
            worker=worker,
            bootstrap_last_state=ended and self.bootstrap_last_state,
            version_spans=whole.version_spans,
            segments=whole.segments,
            untrained=self.untrained,
            failure_rewarded=self.failure_rewarded if ended else None,
            pictures=whole.pictures,
        )
