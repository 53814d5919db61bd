"""The kept share within a run: every `filter.kept_share.every` steps q is measured, before the learner updates the
weights, and with `filter.kept_share.steer` the controller may move rho for the steps that follow.

Only groups of the step that the current version sampled are measured, dropped ones included; nothing further is played.
The measurement of a step counts at the step's end (`settle`), whether the step had an update or not: a step whose
groups are lost before, and are played again, is measured again. So a resumed run measures and moves as the
uninterrupted one; the controller's state is in the checkpoint. A resumed run whose settings no longer fit that state
begins anew at `filter.rho`, and says so. The loss scale stays that of `filter.rho`, wherever the controller moves.

    waits for         unblocked by          on time-out
    every rank        learner               step_timeout_s per group; the run ends and names the late rank
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from squelch.actors.filter.measure import GroupStatistics
from squelch.actors.filter.metrics import RHO_PLACES
from squelch.cluster.config import RunConfig
from squelch.cluster.control.candidates import Alignment, alignment
from squelch.cluster.control.kept_share import Interval, KeptShare, Move, grid_of
from squelch.cluster.loop.learner_side.decomposing import comparable
from squelch.cluster.loop.learner_side.learning import Learning
from squelch.cluster.loop.persistence.journal import Journal
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.learner.decomposition.statistics import MIN_SPLIT

log = logging.getLogger(__name__)
CHOOSING = {"statistic", "rule", "keep", "include_zero", "epsilon", "compat", "min_groups"}
"""Settings of the filter on which the groups that a rho keeps depend."""
FEWEST_GROUPS = 2
"""Fewest groups that a measurement needs; with one there is nothing to choose."""


class Steering:
    """Measures the steps that are due, and holds the rho in use; see the module's head."""

    def __init__(
        self,
        config: RunConfig,
        learning: Learning,
        journal: Journal,
        state: dict[str, Any] | None,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.settings = config.filter, config.filter.kept_share
        self.objective = config.learner.objective
        self.learning, self.journal, self.say = learning, journal, say
        grid = grid_of(config.filter.rho, self.settings.low, self.settings.high, RHO_PLACES)
        self._controller = KeptShare(config.filter.rho, grid, self.settings.error, self.settings.steer)
        self._restore(state)
        self._measured: Alignment | None = None
        """The measurement of the step that has not ended yet."""

    @property
    def rho(self) -> float:
        """The rho that the filter's rule uses for the next step to be decided on."""
        return self._controller.rho

    async def measure(self, step: int, version: int, window: list[PlayedGroup]) -> dict[str, float]:
        """The step's flat figures of q; empty if none are due. `version`: the version of the learner's weights."""
        self._measured = None
        if not self.settings.every or step % self.settings.every:
            return {}
        started = time.time()
        own = (g for g in window if g.summary.version_min == g.summary.version_max == version)
        groups = [g for g in own if comparable(g.summary) and len(g.summary.indices) >= MIN_SPLIT]
        if len(groups) < FEWEST_GROUPS:
            log.warning(
                "step %d: %d of %d groups have %d usable trajectories of the current version; q needs %d groups",
                *(step, len(groups), len(window), MIN_SPLIT, FEWEST_GROUPS),
            )
            return {"seconds/kept_share": time.time() - started}
        gram = await self.learning.half_gram([g.table for g in groups], [g.ticket.ticket_id for g in groups])
        statistics = [GroupStatistics.of(g.summary) for g in groups if g.summary.group_id in gram.group_ids]
        found = self._measured = alignment(gram, statistics, self.config, self._controller.grid)
        flat = {f"kept_share/q/{rho:g}": value for rho, value in found.q.items()}
        flat |= {f"kept_share/groups/{rho:g}": value for rho, value in found.kept.items()}
        return flat | {"kept_share/measured": float(found.num_groups), "seconds/kept_share": time.time() - started}

    def settle(self, step: int) -> dict[str, float]:
        """Counts the measurement of a step that has ended; the controller's flat figures."""
        if not self.settings.every:
            return {}
        flat, measured, self._measured = {"kept_share/rho": self.rho}, self._measured, None
        if measured is not None and (move := self._controller.observe(measured.q)):
            self._tell(step, move)
        controller = self._controller
        for name, interval in (controller.differences() if measured is None else controller.seen).items():
            flat |= _figures(f"kept_share/{name}", interval)
        return flat

    def state(self) -> dict[str, Any] | None:
        """For the checkpoint; plain JSON. None if q is not measured."""
        return {**self._frame(), **self._controller.state()} if self.settings.every else None

    def _frame(self) -> dict[str, Any]:
        """What the controller's evidence is about: which groups a rho keeps, and the step that is made on them. With
        another it says nothing."""
        return {
            "start": self.config.rho,
            "grid": list(self._controller.grid),
            "chosen": self.config.model_dump(mode="json", include=CHOOSING),
            "objective": self.objective.model_dump(mode="json"),
        }

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        start, used = self.config.rho, state["rho"]
        same = all(state.get(name, value) == value for name, value in self._frame().items())  # older ones have less
        if same and (used == start or self.settings.steer):
            self._controller.restore(state)
        elif self.settings.every or used != start:
            self.say(
                f"the kept share begins anew at filter.rho={start:g}: its settings have changed since the checkpoint, "
                f"whose steps used {used:g}"
            )

    def _tell(self, step: int, move: Move) -> None:
        now, text = time.time(), f"rho {move.before:g} -> {move.after:g}: {move.reason}"
        self.journal.event(
            "filter", "kept_share_moved", now, now, step=step, before=move.before, after=move.after, text=text
        )
        self.say(f"step {step:4d}  {text}")


def _figures(name: str, interval: Interval) -> dict[str, float]:
    return {
        f"{name}/difference": interval.mean,
        f"{name}/difference_low": _known(interval.low),
        f"{name}/difference_high": _known(interval.high),
        f"{name}/measurements": float(interval.count),
    }


def _known(bound: float) -> float:
    """A bound, NaN if it is infinite."""
    return bound if math.isfinite(bound) else math.nan
