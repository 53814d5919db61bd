"""Rebuilds the learner's weights inside the run after ranks were lost; workers and environment actors continue.

A lost rank's shards are gone, and the other ranks may wait for it, so all ranks are ended. The learner's state after
the newest checkpoint is a function of the steps since then, which `Recovery` keeps as `history`: the groups that each
step was trained on (the driver or the archive has their rows), and the factor on its loss. A recovery has these parts:

    part              waits for                          unblocked by             on time-out
    end the ranks     -
    back-off          the clock                          -                        at most a minute; none if no rank was
                                                                                  lost, because a node will be
    resources         room for all `learner.ranks`; to   the cluster's scheduler  `learner.regroup_timeout_s`; then as
                      move, for those that are up                                 many as fit; none: the run ends.
                                                                                  An answer: 30 s, then asked again
    start             every rank of the new group        the ranks                `learner.start_timeout_s`; again
    load              every rank, disk                   the ranks                `learner.checkpoint_timeout_s`; again
    rows              the archive's part                 disk                     the run ends and names the path
    train, publish    every rank                         the ranks                as in a step; again

"Again" is another recovery: each counts against the budget of restarts (`cluster.control.restart_budget`), and without
one left the run ends with the cause of the last loss. Ranks that are moved because their node will be taken away
(`plan_move`) count as no restart. Bad input (`Refused`) ends the run at once.

The version that was published last is gathered again and its checksum compared. If the two are equal, the loss cost
only time: workers that join later get the same version. If they differ (fewer ranks add up in another order, or a
kernel is not deterministic), the weights that workers sampled from exist nowhere; `diverged` is then set until the new
weights are published under a higher version (`learning`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from squelch.actors.messages import StepTerms, WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Failed, Refused
from squelch.cluster.control.calls import LOAD, PUBLISH, TRAIN_STEP
from squelch.cluster.control.rank_client import LEARNER, LearnerClient
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import Watchdog
from squelch.cluster.fleet.waiting import bounded
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.run_log import Counted, RunLog

log = logging.getLogger(__name__)
LOST = (Died, Failed, TimeoutError)
"""Errors after which the ranks must be restarted, except `Refused`."""
ROOM_POLL_S = 1.0
ROOM_S = 30.0
"""Seconds within which the cluster must say what is free."""


@dataclass(frozen=True)
class TrainedStep:
    """A step that changed the weights. `Archiving` has the rows of its groups, `ids`."""

    step: int
    ids: list[str]
    terms: StepTerms


@dataclass(frozen=True)
class PublishedVersion:
    """The version that was published last, and the last step that it was trained on."""

    version: int
    checksum: str
    step: int


class Recovery:
    """The steps trained on since the newest checkpoint, and the recovery from it. `clock`: the completed steps of the
    checkpoint from which this process started."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        watchdog: Watchdog,
        archiving: Archiving,
        run_log: RunLog,
        say: Callable[[str], None],
        clock: int,
    ) -> None:
        self.config, self.fleet, self.watchdog, self.archiving = config, fleet, watchdog, archiving
        self.run_log, self.say = run_log, say
        self.history: list[TrainedStep] = []
        self.published: PublishedVersion | None = None
        self.cause: str | None = None
        """The cause of a loss that is not recovered yet."""
        self._planned = False
        """Whether the ranks are moved on purpose, so that no rank is lost."""
        self.diverged = False
        """Whether the rebuilt weights differ from those published under the same version."""
        self._trained = clock
        self._began = 0.0
        """When the recovery under way began, unix seconds."""

    @property
    def learner(self) -> LearnerClient:
        """The fleet's learner, watched; RuntimeError if it was not started."""
        learner = self.fleet.learner
        if learner is None:
            raise RuntimeError("the learner was not started")
        learner.watch = self.watchdog
        return learner

    async def ranks_that_fit(self) -> int | None:
        """Number of ranks for which the cluster has room, see `Actors.ranks_that_fit`; None if it does not say."""
        try:
            return await bounded(self.fleet.actors.ranks_that_fit(), ROOM_S)
        except (ActorError, TimeoutError) as error:
            log.warning("the cluster did not say where learner ranks have room: %s", error)
            return None

    # -- what the recovery needs to know ---------------------------------------------------------------------------

    def note_trained(self, step: TrainedStep) -> None:
        """Adds a step that changed the weights."""
        self.history.append(step)
        self._trained = step.step

    def note_published(self, bundle: WeightBundle) -> None:
        """Notes that a version is about to be delivered to the rollout workers."""
        self.published, self.diverged = PublishedVersion(bundle.version, bundle.checksum, self._trained), False

    @property
    def newest_is_published(self) -> bool:
        """Whether the weights of the last step that changed them are published."""
        return self.published is not None and self.published.step == self._trained

    def note_saved(self, step: int) -> None:
        """Forgets the history up to this step: a complete checkpoint contains it now."""
        self.history = [own for own in self.history if own.step > step]

    def mark_dead(self, error: BaseException, learner: LearnerClient | None = None) -> None:
        """Marks the ranks as dead; the next call recovers them. `learner`: the ranks that the error is of, unless they
        are surely the present ones: others may have been started since."""
        if learner is None or learner is self.fleet.learner:
            self.cause, self._planned = str(error) or repr(error), False

    def plan_move(self, cause: str) -> None:
        """Plans to restart the ranks on other nodes, although none is lost."""
        self.cause, self._planned = cause, True

    # -- the recovery ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns once a new group of ranks holds the learner's state; sets `diverged` if it is not bit-identical.

        Raises:
            RuntimeError: no restart is left, or no rank fits on the cluster; the message holds the cause.
        """
        started, cause = time.time(), self.cause
        assert cause is not None, "only ranks that are lost, or to be moved, are restarted"
        self.say(f"the learner is {'moved' if self._planned else 'lost and rebuilt'}: {_line(cause)}")
        self.fleet.published.there.clear()
        self._began = started
        with self.run_log.meanwhile():
            self._shown("waiting for the archive")
            await self.archiving.finish()
            while (made := await self._attempt()) is None:
                pass
        if not self.diverged:  # weights that diverged are available once they are published
            self.fleet.published.there.set()
        self._record(started, cause, *made)

    def _shown(self, part: str, counted: Counted | None = None) -> None:
        self.run_log.doing(f"rebuilding the learner: {part}", counted, self._began)

    async def _attempt(self) -> tuple[int, int] | None:
        """Starts one new group. Returns its number of ranks and the number of replayed steps; None if it is lost
        too."""
        try:
            count, saved = await self._regroup()
            made = count, await self._restore(*saved)
        except Refused:
            raise
        except LOST as error:
            self.mark_dead(error)
            return None
        self.cause = None
        return made

    async def _regroup(self) -> tuple[int, tuple[int, Path | None]]:
        """Ends the ranks and starts a new group; returns its number of ranks, and the checkpoint that it must load."""
        assert self.cause is not None
        self.learner.kill()
        self._shown("waiting for room")
        await asyncio.sleep(0.0 if self._planned else self.fleet.restarts.allow(LEARNER, self.cause))
        count = await self._room(self.learner.ranks if self._planned else self.config.learner.ranks)
        if count < self.config.learner.ranks:
            log.warning("the learner goes on with %d of %d ranks", count, self.config.learner.ranks)
        self.fleet.replace_learner(count)
        saved = self._checkpoint()
        self._shown(f"starting {count} rank{'s' if count > 1 else ''}")
        await self.learner.start(resumes=saved[1] is not None)
        return count, saved

    async def _room(self, enough: int) -> int:
        """Number of ranks that fit on the cluster: at least `enough`, or after `learner.regroup_timeout_s` those that
        do."""
        wanted, now = self.config.learner, asyncio.get_running_loop().time
        deadline = now() + wanted.regroup_timeout_s
        while ((room := await self.ranks_that_fit()) or 0) < enough and now() < deadline:
            await asyncio.sleep(ROOM_POLL_S)
        if not room:
            lacks = "does not say whether it has" if room is None else "has no"
            raise RuntimeError(
                f"the learner is lost ({self.cause}), and after {wanted.regroup_timeout_s:g} s "
                f"(learner.regroup_timeout_s) the cluster {lacks} room for one rank of {wanted.num_cpus:g} CPU and "
                f"{wanted.num_gpus:g} GPU"
            )
        return min(room, wanted.ranks)

    async def _restore(self, base: int, folder: Path | None) -> int:
        """Loads the checkpoint of step `base` and replays the steps after it; returns their number. Sets `diverged`."""
        if folder is not None:
            self._shown("loading the checkpoint")
            await self.learner.call(LOAD, folder.resolve())
        steps = [step for step in self.history if step.step > base]
        replayed = iter(range(len(steps)))
        published = [step for step in steps if self.published is not None and step.step <= self.published.step]
        for step in published:
            await self._replay(step, next(replayed), len(steps))
        self.diverged = self.published is not None and not await self._same(self.published)
        for step in steps[len(published) :]:
            await self._replay(step, next(replayed), len(steps))
        return len(steps)

    def _checkpoint(self) -> tuple[int, Path | None]:
        """The newest complete checkpoint, even if the ranks were lost just after they wrote it; before the first, the
        model that the run started from."""
        saved = checkpoints(self.config.run_dir)
        return saved[-1] if saved else (0, None)

    async def _replay(self, step: TrainedStep, done: int, total: int) -> None:
        self._shown("training again", lambda: (done, total, "steps"))
        payloads = await self.archiving.stored(step.step, step.ids)
        report = await self.learner.call(TRAIN_STEP, step.step, payloads, step.ids, step.terms)
        if not report.updated:
            why = report.refused or "no gradient"
            raise RuntimeError(f"step {step.step} was trained on, but the recovered learner refuses it: {why}")

    async def _same(self, published: PublishedVersion) -> bool:
        """Whether the weights are those published last, by checksum. If so, their new copy replaces the one that was
        lost with its owner, rank 0."""
        bundle = await self.learner.call(PUBLISH, published.version, self.config.rollout.dtype)
        if bundle.checksum != published.checksum:
            return False
        self.fleet.published.bundle = bundle
        return True

    def _record(self, started: float, cause: str, ranks: int, steps: int) -> None:
        ended = time.time()
        outcome = "other weights than before" if self.diverged else "the same weights"
        self.say(f"the learner is back after {ended - started:.1f} s: {ranks} ranks, {steps} steps replayed, {outcome}")
        facts = {"cause": cause, "ranks": ranks, "steps": steps, "same": not self.diverged}
        self.run_log.event(LEARNER, "recovered", started, ended, **facts)
        self.run_log.carry({"seconds/recovery": ended - started, "recovery/steps": float(steps)})


def _line(text: str) -> str:
    """The text's first line, at most 200 characters."""
    return text.strip().partition("\n")[0][:200]
