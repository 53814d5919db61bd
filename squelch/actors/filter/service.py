"""The filter service, in a process of its own; delegates each call to `kit.filter.windows`.

Calls carry lists of group summaries; the groups themselves stay with their owner. The filter waits for nobody. The
coordinator calls `admit` with the groups that have arrived, and `close` once all tickets of a step have ended.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from squelch.kit.filter.decisions import StepDecision
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import make_window
from squelch.kit.process.progress_marks import IDLE, Progress
from squelch.kit.records.records import GroupSummary


class FilterService:
    """Central filter of a run; see `kit.filter.windows.FilterWindow` for the meaning of each call."""

    def __init__(self, config: FilterConfig) -> None:
        self._window = make_window(config)

    def admit(self, summaries: list[GroupSummary]) -> None:
        """Adds groups, in their order; `close` returns the decisions on them, those made on arrival too."""
        for summary in summaries:
            self._window.admit(summary)

    def close(self, step: int, final: bool = False, target: int | None = None) -> tuple[StepDecision, dict[str, Any]]:
        """Ranks a step once all its tickets have ended; the decision, and the state after it without other open
        steps."""
        return self._window.close(step, final, target), self.state([step])

    def progress(self) -> Progress:
        """An answer is the only sign of progress: every call is short."""
        return IDLE

    def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return self._window.state(steps)

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._window.restore(state)
