"""When a step is scored, and what is said of a scorer that is behind, late or dead. Imports neither torch nor Ray.

The coordinator decides with it (`cluster.loop.scoring`): a scorer that is busy is skipped, one that is late is reported
once, one that died is an alarm. None of them stops training.
"""

from __future__ import annotations

from collections import Counter


class ScoringPace:
    """When a step is scored, and what is said of a scorer that is behind, late or dead. Pure; times are seconds of one
    clock. At most one scoring is under way; `outcomes` counts done, skipped, refused, late and failed ones."""

    def __init__(self, every: int, timeout_s: float) -> None:
        self.every, self.timeout_s = every, timeout_s
        self.outcomes: Counter[str] = Counter()
        self._step: int | None = None
        self._started = 0.0
        self._late_said = False

    @property
    def busy(self) -> bool:
        return self._step is not None

    def due(self, step: int) -> bool:
        """Step 1 and every `every`-th."""
        return step == 1 or step % self.every == 0

    def begin(self, step: int, now: float) -> bool:
        """True when this step is to be scored now; a due step that meets a busy scorer is skipped and counted."""
        if not self.due(step):
            return False
        if self.busy:
            self.outcomes["skipped"] += 1
            return False
        self._step, self._started, self._late_said = step, now, False
        return True

    def check(self, now: float) -> str | None:
        """The alarm of a scoring that is past its time, once for each."""
        if not self.busy or self._late_said or now - self._started <= self.timeout_s:
            return None
        self._late_said = True
        self.outcomes["late"] += 1
        return f"the scorer is late with step {self._step}: over {self.timeout_s:g} s (scorer.timeout_s)"

    def end(self, outcome: str, cause: str = "") -> str | None:
        """Ends the scoring under way as `done`, `refused` or `failed`; the alarm unless it is done. Never raises for a
        scorer's failure: training goes on unscored."""
        if outcome not in ("done", "refused", "failed"):
            raise ValueError(f"outcome={outcome!r} is none of done, refused, failed")
        if self._step is None:
            raise RuntimeError(f"no scoring is under way to end as {outcome}")
        step, self._step = self._step, None
        self.outcomes[outcome] += 1
        return None if outcome == "done" else f"scoring of step {step} {outcome}: {cause}"
