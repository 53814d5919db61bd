"""The watcher of steps in which no trajectory counts (`cluster.control.nothing_counts`). Waits for nobody.

It ends the run where the filter's policy for steps without signal does (`filter.on_no_signal`, `no_signal_limit`), and
with the last step if no step before it counted either.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.nothing_counts import why_nothing_counts
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending


class CountingNothing(Watcher):
    """Says the commonest reason at once, and keeps how many steps there were and why the last of them was one."""

    name = "nothing_counts"

    def __init__(self, config: RunConfig, run_log: RunLog) -> None:
        self.config, self.run_log = config, run_log
        self.steps, self.last, self.why = 0, 0, ""

    async def after_train(self, step: Step) -> Ending | None:
        """Reports a step in which nothing counts; returns why the run ends with it, or None."""
        why = why_nothing_counts(step.decision, step.window.summaries())
        if not why:
            return None
        self.steps, self.last, self.why = self.steps + 1, step.number, why
        now = time.time()
        self.run_log.event("filter", "nothing_counts", now, now, step=step.number, text=why)
        others = f"squelch inspect {shlex.quote(str(self.config.run_dir))} shows each"
        self.run_log.say(f"step {step.number:4d}  WARNING: {why}; no update. {others}")
        if step.decision.action == "abort":
            return Ending(EndCause.NOTHING_COUNTS, f"{self.config.filter.limit_reached}; {why}")
        if step.number == self.config.loop.steps == self.steps:
            return Ending(EndCause.NOTHING_COUNTS, f"in every step; {why}")
        return None

    def verdict(self) -> str:
        """How many steps there were, and why the last of them was one."""
        if not self.why:
            return ""
        return f"steps of which nothing counted: {self.steps}, the last of them step {self.last}: {self.why}"

    def state(self) -> dict[str, Any]:
        """What the verdict tells."""
        return {"steps": self.steps, "last": self.last, "why": self.why}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Takes it."""
        self.steps, self.last, self.why = state["steps"], state["last"], state["why"]
