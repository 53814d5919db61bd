"""The watcher of steps in which no trajectory counts (`cluster.control.nothing_counts`). Waits for nobody.

It ends the run where the filter's policy for steps without signal does (`filter.on_no_signal`, `no_signal_limit`), and
with the last step if no step before it counted either. The findings say why.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.nothing_counts import why_nothing_counts
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending


class CountingNothing(Watcher):
    """Keeps how many steps there were."""

    name = "nothing_counts"

    def __init__(self, config: RunConfig) -> None:
        self.config, self.steps = config, 0

    async def after_train(self, step: Step) -> Ending | None:
        """Returns why the run ends with a step in which nothing counts, or None."""
        why = why_nothing_counts(step.decision, step.window.summaries())
        if not why:
            return None
        self.steps += 1
        if step.decision.action == "abort":
            return Ending(EndCause.NOTHING_COUNTS, f"{self.config.filter.limit_reached}; {why}")
        if step.number == self.config.loop.steps == self.steps:
            return Ending(EndCause.NOTHING_COUNTS, f"in every step; {why}")
        return None

    def state(self) -> dict[str, Any]:
        """The number."""
        return {"steps": self.steps}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Takes it."""
        self.steps = state["steps"]
