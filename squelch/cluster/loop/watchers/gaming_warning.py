"""The watcher of a criterion that may be gamed (`cluster.control.gaming`). Waits for nobody; the findings say it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.gaming import Gaming, kept_variance, prefers_variance
from squelch.cluster.loop.watchers.validation import Validated
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending


class GamingWarning(Watcher):
    """Follows the kept variance step by step, and the solved tasks at each validation."""

    name = "gaming"

    def __init__(self, config: RunConfig) -> None:
        self.config, self.gaming = config.filter, Gaming()

    async def after_train(self, step: Step) -> Ending | None:
        """Takes the step's kept variance, if the filter prefers variance."""
        chosen, decision = self.config, step.decision
        if not prefers_variance(chosen):
            return None
        by = f"{decision.filter} min_groups={chosen.min_groups} kind_floor={chosen.kind_floor:g}"
        passed = any(one.code == "passthrough" for one in decision.kept)
        self.gaming.step(step.number, math.nan if passed else kept_variance(decision.metrics), by)
        return None

    def validated(self, found: Validated) -> Ending | None:
        """Takes a validation."""
        self.gaming.validation(found.step, found.solved)
        return None

    def metrics(self, step: Step) -> dict[str, float]:
        """Metrics of the warning."""
        return self.gaming.metrics()

    def state(self) -> dict[str, Any]:
        """State of the warning."""
        return self.gaming.state()

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Gains are paired by task; with other tasks they start over."""
        if "validation" not in anew:
            self.gaming.restore(state)
