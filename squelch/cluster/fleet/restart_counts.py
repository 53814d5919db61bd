"""The restarts of a run's actors: allowed by the budget, counted for `/metrics`, and reported in the events and the
log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection

from squelch.cluster.control.client import loop_time
from squelch.cluster.control.restart_budget import RestartBudget

log = logging.getLogger(__name__)


class Restarts:
    """The restarts of every actor by name. `exported`: actors whose counter the exporter has begun at 0."""

    def __init__(self, budget: RestartBudget, exported: Collection[str], on_event: Callable[..., None]) -> None:
        self._budget, self._exported, self._on_event = budget, set(exported), on_event
        self.counts: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def allow(self, name: str, cause: str) -> float:
        """Counts a restart of the actor `name`; returns the seconds to wait before it. RuntimeError with the cause if
        no restart is left."""
        self.counts[name] += 1
        self._on_event(name, "restart", time.time(), time.time(), cause=cause, count=self.counts[name])
        log.warning("%s died and is replaced (%d): %s", name, self.counts[name], cause)
        return self._budget.spend(name, cause, loop_time())

    def left(self, name: str) -> int:
        """Number of restarts that the actor `name` has left."""
        return self._budget.left(name, loop_time())

    def take(self, names: Collection[str]) -> dict[str, int]:
        """Restarts by actor since the last call. An actor that came later is in `names` and is reported once with 0, so
        that its Prometheus counter starts at 0."""
        news, new = self.counts - self._taken, set(names) - self._exported
        self._taken, self._exported = Counter(self.counts), self._exported | new
        return {**dict.fromkeys(sorted(new), 0), **news}
