"""The budget of restarts: how often an actor may be replaced, and how long its next replacement waits. Pure.

Each actor has its own budget of `max_restarts` within any `window_s` seconds, so that a run of weeks survives rare
faults while an actor that dies again and again ends the run. The first replacement within a window begins at once; the
second waits `backoff_s`, and each further one twice as long as the one before, at most `LONGEST_BACKOFF_S`. Its
settings: `ClusterConfig` in `cluster.loop_config`.
"""

from __future__ import annotations

from collections import defaultdict

LONGEST_BACKOFF_S = 60.0


class RestartBudget:
    """The restarts of every actor by name. All times are seconds of one clock."""

    def __init__(self, max_restarts: int, window_s: float, backoff_s: float) -> None:
        self.max_restarts, self.window_s, self.backoff_s = max_restarts, window_s, backoff_s
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def spend(self, name: str, cause: str, now: float) -> float:
        """Counts a restart of the actor `name`; returns the seconds to wait before it.

        Raises:
            RuntimeError: no restart is left; the message holds the cause of this death.
        """
        times = self._recent(name, now)
        times.append(now)
        if len(times) > self.max_restarts:
            raise RuntimeError(
                f"{name} died {len(times)} times within {self.window_s:g} s (cluster.max_restarts="
                f"{self.max_restarts}); last cause: {cause}"
            )
        return 0.0 if len(times) == 1 else min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** (len(times) - 2))

    def left(self, name: str, now: float) -> int:
        """Number of restarts that are left to the actor at `now`."""
        return max(0, self.max_restarts - len(self._recent(name, now)))

    def _recent(self, name: str, now: float) -> list[float]:
        times = self._times[name] = [time for time in self._times[name] if now - time < self.window_s]
        return times
