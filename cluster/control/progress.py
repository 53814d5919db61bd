"""Decides whether learner ranks still make progress while a call to them is under way. Pure.

A call is hung if it shows no sign of progress for `hung_after_s`, or for `FACTOR` times the median interval between two
marks, whichever is longer. A sign is

    a new mark of any rank   in every call. A mark is a micro-batch (`learner.progress`).
    an answer of every rank  if the call has no micro-batches, or before the first micro-batch of the group's life,
                             which may compile or load kernels. An answer proves that the processes run.

Ranks that wait for one another in a collective answer but make no marks; a frozen process, or one behind a cut link,
does not even answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from learner.progress import RankProgress

FACTOR = 10.0


class ProgressWatch:
    """The signs of one call, which began at `now`. `answers_count`: whether an answer of every rank is a sign. All
    times are seconds of one clock."""

    def __init__(self, hung_after_s: float, now: float, answers_count: bool) -> None:
        self.hung_after_s, self.answers_count = hung_after_s, answers_count
        self._since = now
        self._known: dict[int, RankProgress] = {}
        self._silent: list[int] = []

    @property
    def limit_s(self) -> float:
        """Seconds without a sign after which the call counts as hung."""
        slowest = max((progress.median_s for progress in self._known.values()), default=0.0)
        return max(self.hung_after_s, FACTOR * slowest)

    def see(self, found: Sequence[RankProgress | None], now: float) -> None:
        """Takes the progress of each rank; None for a rank that did not answer."""
        answers = {rank: progress for rank, progress in enumerate(found) if progress is not None}
        advanced = any(rank not in self._known or p.marks > self._known[rank].marks for rank, p in answers.items())
        self._known |= answers
        self._silent = [rank for rank, progress in enumerate(found) if progress is None]
        if advanced or (not self._silent and (self.answers_count or self._unmarked())):
            self._since = now

    def _unmarked(self) -> bool:
        """Whether no rank has finished a micro-batch since its start."""
        return all(progress.marks == 0 for progress in self._known.values())

    def hung(self, now: float) -> str | None:
        """The message that names the ranks that hold the call up; None while it makes progress."""
        elapsed = now - self._since
        if elapsed < self.limit_s:
            return None
        late = self._silent or self._slowest()
        what = "did not answer" if self._silent else "finished no micro-batch"
        return f"learner rank {', '.join(map(str, late))} {what} for {elapsed:.0f} s (learner.hung_after_s)"

    def _slowest(self) -> list[int]:
        fewest = min(progress.marks for progress in self._known.values())
        return [rank for rank, progress in self._known.items() if progress.marks == fewest]
