"""Decides whether an actor still makes progress: whether it is merely slow, or hung. Pure.

An actor is hung if it shows no sign of progress for `hung_after_s`, or for `FACTOR` times the median interval between
two of its marks, whichever is longer; time for which it waited for a processor of a loaded machine does not count
(`kit.process.processor_wait`). It may be one process, or several that work together, such as the learner's
ranks. A sign is

    a new mark of any process    always (`kit.process.progress_marks` lists what marks are)
    an answer of every process   if one of them is idle, if the call has no marks, or before the first mark of the
                                 actor's life, which may compile or load kernels. An answer proves that the processes
                                 run

Ranks that wait for one another in a collective answer but make no marks; a frozen process, or one behind a cut link,
does not even answer. A new process may take `start_s` until its first answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squelch.kit.process.progress_marks import Progress

FACTOR = 10.0
LONGEST_POLL_S = 5.0
POLLS = 4
"""Times that an actor is asked within the shortest limit."""


def poll_s(hung_after_s: float) -> float:
    """Seconds between two questions to an actor."""
    return min(LONGEST_POLL_S, hung_after_s / POLLS)


@dataclass(frozen=True)
class Patience:
    """The limit of one kind of actor. `mark`: what it should finish, in words; `setting`: the setting of
    `hung_after_s`; `start_s`: seconds until the first answer if the process may just have been created, else None."""

    hung_after_s: float
    mark: str
    setting: str
    start_s: float | None = None


class ProgressWatch:
    """The signs of one actor from `now` on. `names`: its processes, for messages. `answers_count`: whether an answer of
    every process is a sign in any case. All times are seconds of one clock."""

    def __init__(self, names: Sequence[str], patience: Patience, now: float, answers_count: bool = False) -> None:
        self.names, self.patience, self.answers_count = list(names), patience, answers_count
        self._since, self._waited_s = now, 0.0
        self._known: dict[int, Progress] = {}
        self._silent: list[int] = []

    @property
    def marks(self) -> int:
        """The marks of the process that has made most."""
        return max((progress.marks for progress in self._known.values()), default=0)

    @property
    def limit_s(self) -> float:
        """Seconds without a sign after which the actor counts as hung."""
        if self.patience.start_s is not None and not self._known:
            return self.patience.start_s
        slowest = max((progress.median_s for progress in self._known.values()), default=0.0)
        return max(self.patience.hung_after_s, FACTOR * slowest)

    @property
    def late_s(self) -> float:
        """Seconds without a sign after which the actor is reported: a fifth of the limit, or a half where the limit
        follows the actor's own marks, whose intervals vary."""
        return max(self.patience.hung_after_s / 5, self.limit_s / 2 if self.limit_s > self.patience.hung_after_s else 0)

    def see(self, found: Sequence[Progress | None], now: float) -> None:
        """Takes the progress of each process; None for one that did not answer."""
        answers = {index: progress for index, progress in enumerate(found) if progress is not None}
        advanced = any(index not in self._known or p.marks > self._known[index].marks for index, p in answers.items())
        waits = [p.waited_s - self._known[index].waited_s for index, p in answers.items() if index in self._known]
        self._waited_s += max([0.0, *waits])
        self._known |= answers
        self._silent = [index for index, progress in enumerate(found) if progress is None]
        if advanced or (not self._silent and self._need_only_answer()):
            self._since, self._waited_s = now, 0.0

    def _need_only_answer(self) -> bool:
        unmarked = all(progress.marks == 0 for progress in self._known.values())
        return self.answers_count or unmarked or any(not progress.busy for progress in self._known.values())

    def silence_s(self, now: float) -> float:
        """Seconds since the last sign for which none of the processes waited for a processor."""
        return max(0.0, now - self._since - self._waited_s)

    def hung(self, now: float) -> str | None:
        """The message that names the processes that hold the actor up; None while it makes progress."""
        return self.words(now) if self.silence_s(now) >= self.limit_s else None

    def words(self, now: float) -> str:
        """The processes without progress, for how long, and the setting of the limit."""
        late = self._silent or self._slowest()
        what = f"finished no {self.patience.mark}" if not self._silent else "did not answer"
        names = ", ".join(self.names[index] for index in late)
        return f"{names} {what} for {self.silence_s(now):.0f} s ({self.patience.setting})"

    def _slowest(self) -> list[int]:
        if not self._known:
            return list(range(len(self.names)))
        fewest = min(progress.marks for progress in self._known.values())
        return [index for index, progress in self._known.items() if progress.marks == fewest]
