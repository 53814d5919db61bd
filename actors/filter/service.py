"""The filter as a Ray actor: a shell around `actors.filter.windows`, one line a method.

Calls carry lists, and summaries only: payloads stay with their owner. It waits for nobody. The coordinator calls
`admit` with what has arrived and `close` once each ticket of a step has ended.
"""

from __future__ import annotations

from typing import Any

import ray

from actors.config import FilterConfig
from actors.filter.decisions import Decision, StepDecision
from actors.filter.windows import make_window
from actors.records import GroupSummary


@ray.remote
class FilterService:
    """Central filter of a run; see `actors.filter.windows.FilterWindow` for what each call means."""

    def __init__(self, config: FilterConfig) -> None:
        self._window = make_window(config)

    def admit(self, summaries: list[GroupSummary]) -> list[Decision]:
        """Takes groups; returns what was decided at once (sliding window only)."""
        return [decision for summary in summaries for decision in self._window.admit(summary)]

    def close(self, step: int, final: bool = False, target: int | None = None) -> StepDecision:
        """Ranks a step whose tickets have all ended."""
        return self._window.close(step, final, target)

    def metrics(self) -> dict[str, float]:
        """Totals over the run."""
        return self._window.metrics()

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return self._window.state()

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._window.restore(state)
