"""Decides which steps are scored, and writes the messages about a late or failed scorer step.

Imports neither torch nor Ray.

`cluster.loop.watchers.scoring` uses it: a due step is skipped while the scorer is busy, a late scorer step is reported
once, and the scorer's death is reported. None of these stops training.
"""

from __future__ import annotations

from collections import Counter

ENDS = ("done", "refused", "failed", "withdrawn")
"""The outcomes that end a scorer step."""


class ScoringPace:
    """State of the present scorer step; at most one runs at a time. Pure; all times are seconds of the same clock.
    `outcomes` counts the scorer steps by outcome, one of `kit.scoring.metrics.OUTCOMES`."""

    def __init__(self, every: int, timeout_s: float) -> None:
        self.every, self.timeout_s = every, timeout_s
        self.outcomes: Counter[str] = Counter()
        self.step: int | None = None
        """The step that is being scored."""
        self._started = 0.0
        self._late_said = False

    @property
    def busy(self) -> bool:
        """Whether a scorer step is running."""
        return self.step is not None

    def due(self, step: int) -> bool:
        """Whether a step should be scored: step 1 and every multiple of `every`."""
        return step == 1 or step % self.every == 0

    def begin(self, step: int, now: float) -> bool:
        """Whether to score this step now. A due step is skipped, and counted, while the scorer is busy."""
        if not self.due(step):
            return False
        if self.busy:
            self.outcomes["skipped"] += 1
            return False
        self.step, self._started, self._late_said = step, now, False
        return True

    def check(self, now: float) -> str | None:
        """The message about a scorer step that exceeds `timeout_s`, once per scorer step; else None."""
        if not self.busy or self._late_said or now - self._started <= self.timeout_s:
            return None
        self._late_said = True
        self.outcomes["late"] += 1
        return f"the scorer is late with step {self.step}: over {self.timeout_s:g} s (scorer.timeout_s)"

    def end(self, outcome: str, cause: str = "") -> str | None:
        """Ends the present scorer step with an outcome of `ENDS`; returns the message about a failure. A failure of the
        scorer raises no error: training continues without scores."""
        if outcome not in ENDS:
            raise ValueError(f"outcome={outcome!r} is none of {', '.join(ENDS)}")
        if self.step is None:
            raise RuntimeError(f"no scorer step is under way to end as {outcome}")
        step, self.step = self.step, None
        self.outcomes[outcome] += 1
        return None if outcome in ("done", "withdrawn") else f"scoring of step {step} {outcome}: {cause}"

    def withdraw(self) -> None:
        """Counts the last finished scorer step as withdrawn instead of done."""
        self.outcomes["done"] -= 1
        self.outcomes["withdrawn"] += 1
