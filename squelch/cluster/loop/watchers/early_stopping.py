"""Ends a run that no longer learns, by the rules of `cluster.control.early_stop`. Waits for nobody."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.early_stop import EarlyStop
from squelch.cluster.loop.watchers.validation import Validated
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending


class EarlyStopping(Watcher):
    """Follows the spread of rewards step by step, and success at each validation."""

    name = "early_stop"

    def __init__(self, config: RunConfig) -> None:
        self.rules = EarlyStop(config.validation.early_stop, config.validation.collapse_threshold)

    async def after_train(self, step: Step) -> Ending | None:
        """Rule (i), on the step's groups."""
        return _ending(self.rules.step(self.rules.spread(step.decision, step.window.summaries())))

    def validated(self, found: Validated) -> Ending | None:
        """Rule (ii), on a validation."""
        return _ending(self.rules.validation(found.success))

    def metrics(self, step: Step) -> dict[str, float]:
        """Metrics of rule (i)."""
        return self.rules.metrics()

    def state(self) -> dict[str, Any]:
        """The counters of both rules."""
        return self.rules.state()

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Validations on other tasks do not count."""
        self.rules.restore(state | {"low_validations": 0} if "validation" in anew else state)


def _ending(reason: str | None) -> Ending | None:
    return Ending(EndCause.EARLY_STOP, reason) if reason else None
