"""The watcher that says when a run learns nothing, and why (`cluster.control.fruitless`). Waits for nobody."""

from __future__ import annotations

import time

from squelch.cluster.config import RunConfig
from squelch.cluster.control.fruitless import Fruitless
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending


class FruitlessWarning(Watcher):
    """Follows format validity, success and reward variance step by step. A resumed run begins anew."""

    def __init__(self, config: RunConfig, run_log: RunLog) -> None:
        self.run_log, self.fruitless = run_log, Fruitless(config)

    async def after_train(self, step: Step) -> Ending | None:
        """Takes the step's metrics, and reports the warning if it is raised."""
        if text := self.fruitless.step(dict(step.metrics)):
            now = time.time()
            self.run_log.event("filter", "learns_nothing", now, now, step=step.number, text=text)
            self.run_log.say(f"step {step.number:4d}  WARNING: {text}")
        return None

    def verdict(self) -> str:
        """Why the last steps learned nothing."""
        return self.fruitless.verdict()
