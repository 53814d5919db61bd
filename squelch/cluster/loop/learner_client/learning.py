"""The coordinator's client of the learner: every call to it, its recovery, and the limit on refused steps.

All ranks together count as one actor. Their client (`cluster.control.rank_client`) bounds and watches each call. If a
rank is dead, failed or hung, the call rebuilds the weights (`recovery`) and is then repeated, so that its caller only
sees a longer call. While groups are played, `beside` notices a dead rank at once; a frozen rank is noticed at the next
call.

    call         the coordinator waits for        a rank is lost                       bad input
    train        every rank, the groups' rows     recovery, then again                 the run ends
    publish      rank 0, every rollout worker     recovery, then again                 the run ends
    decompose    every rank                       recovery, then again                 the run ends
    write        nothing: it is written beside    recovery, then again                 the run ends
                 the play (`saving`)
    beside       the work that it is given        recovery, beside that work
    move         a new group, between two steps   recovery again                       the run ends

A call that fails twice in a row with the same error, without a dead rank, has a cause that new ranks do not remove: the
run ends with that error. A rollout worker that loads weights late, or fails the checks on them, is replaced, unless the
weights were lost on the way because rank 0 died. If its successors fail too, the run ends once no restart is left.

Which tickets are retried (`RetrySteps`)
----------------------------------------

Two losses concern groups that were not trained on yet: rebuilt weights that are not bit-identical to the published ones
(they have diverged, and lost weights sampled the groups), and rows in the object store of a lost host. The call that
notices raises `RetrySteps`; after a divergence so does every further call except `publish_diverged`. Only
`Coordinator._retrying` catches it: it cancels all plays, calls `publish_diverged`, and retries the tickets of every
open step. Two rules follow:

- One version number stands for one set of weights, and versions only increase: weights that diverged get the version
  after the highest published one.
- No group that is trained on later was sampled from lost weights. Proof: `Recovery.run` sets `diverged` if the rebuilt
  weights are not bit-identical to those published last. Only `_recover` calls it, and then raises, so no call, `train`
  in particular, reaches the new ranks. `_retrying` cancels every play, loads the new weights into every worker, and
  only then retries all open steps: every group of these steps that exists at the next call was sampled after the loss.
  If weights are lost during that, the call raises again, and the same holds. Every other step was trained on before the
  loss and stays: it is replayed with the same groups, once in the history from which the learner's state follows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from squelch.actors.messages import StepReport, StepTerms, WeightBundle
from squelch.actors.rollout.metrics import update_metrics
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Died, Failed, Refused
from squelch.cluster.control.calls import PUBLISH, TRAIN_STEP, WRITE, Call, Payload
from squelch.cluster.control.ledger import RetrySteps
from squelch.cluster.control.rank_client import LEARNER
from squelch.cluster.daemon_thread import answered
from squelch.cluster.fleet.delivery import SenderLost
from squelch.cluster.fleet.fleet import Fleet, UpdateFailed
from squelch.cluster.fleet.supervision import Watchdog
from squelch.cluster.loop.learner_client.recovery import LOST, Recovery, TrainedStep
from squelch.cluster.loop.learner_client.saving import Saving
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.run_log import Counted, RunLog
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.tickets.playing import FETCH_TIMEOUT_S, PlayedGroup
from squelch.learner.checkpoint.seal import seal
from squelch.learner.metrics import publication_metrics

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
CHECK_S = 5.0
"""Seconds within which ranks that are up say so."""


class Learning:
    """All calls to the learner. `refused_in_a_row`: steps refused since the last update."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        run_log: RunLog,
        archiving: Archiving,
        state: LoopState,
        watchdog: Watchdog,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.fleet, self.run_log, self.say = config, fleet, run_log, say
        self.refused_in_a_row = state.bad_steps
        self._published: dict[str, float] = {}
        """The metrics of the last weight sync."""
        self.saving = Saving()
        self._watchdog = watchdog
        self._recovering = asyncio.Lock()
        """Held by whoever recovers: `beside` and a checkpoint may both notice a loss."""
        self.recovery = Recovery(config, fleet, watchdog, archiving, run_log, say, state.clock)

    @property
    def version(self) -> int:
        """The version that was published last; RuntimeError before the first."""
        if self.recovery.published is None:
            raise RuntimeError("no version was published yet")
        return self.recovery.published.version

    # -- training ----------------------------------------------------------------------------------------------------

    async def train(self, step: int, groups: list[PlayedGroup], terms: StepTerms) -> StepReport:
        """Trains on the groups. If the report has `refused` set, the weights have not changed."""
        started = time.time()
        ids, payloads = [group.ticket.ticket_id for group in groups], [group.table for group in groups]
        report = await self.call(TRAIN_STEP, step, payloads, ids, terms)
        if report.updated:
            self.recovery.note_trained(TrainedStep(step, ids, terms))
        ended = time.time()
        self.run_log.event("learner", "call", started, ended, step=step)
        self.run_log.efficiency.trained(report.operations, report.gpus)
        worked = sum(seconds for part, seconds in report.seconds.items() if part != "fetch")
        self.run_log.worked("learner", ended - worked, ended)
        self.refused_in_a_row = self.refused_in_a_row + 1 if report.refused else 0
        if report.refused:
            self.say(f"step {step}: the learner refused the update: {report.refused}")
        return report

    def passes(self) -> Counted:
        """The passes of micro-batches that the learner has made since this call."""
        marks, before = self._watchdog.marks, self._watchdog.marks.get(LEARNER, 0)
        return lambda: (max(0, marks.get(LEARNER, 0) - before), 0, "passes")

    def too_many_refused(self, report: StepReport | None) -> str | None:
        """The reason to end the run if `learner.max_bad_steps` steps in a row were refused; else None."""
        if report is None or self.refused_in_a_row < self.config.learner.max_bad_steps:
            return None
        return f"{self.refused_in_a_row} steps in a row refused (learner.max_bad_steps); last: {report.refused}"

    async def save(self, path: Path, step: int, loop: Mapping[str, Any]) -> dict[str, float]:
        """Writes the checkpoint of a step, which includes the loop's state; the seconds of each part. Only for the task
        of `saving`."""
        path = path.resolve()
        seconds = await self.call(WRITE, path, dict(loop))
        if "seal" not in seconds:
            self.saving.note_files()
            seconds |= {"seal": await self._sealed(path)}
        self.recovery.note_saved(step)
        return seconds

    async def _sealed(self, path: Path) -> float:
        """Seals the checkpoint whose files are complete; the seconds. Refused, as by the ranks, if the disk does."""
        started, bound_s = time.time(), self.config.learner.checkpoint_timeout_s
        late = (
            f"checkpoint {path} was written, but its disk has not taken it within {bound_s:g} s "
            "(learner.checkpoint_timeout_s); is it still there?"
        )
        try:
            await answered(bound_s, late, seal, path)
        except ValueError as error:
            raise Refused(str(error), error) from error
        return time.time() - started

    # -- weights -----------------------------------------------------------------------------------------------------

    async def publish_trained(self) -> dict[str, float]:
        """Publishes the weights of the step that was trained on last under the next version, unless `publish_diverged`
        has done so meanwhile; the flat metrics of that weight sync."""
        return self._published if self.recovery.newest_is_published else await self.publish(self.version + 1)

    async def publish(self, version: int) -> dict[str, float]:
        """Publishes the current weights as `version` and loads them into every rollout worker; the flat metrics."""
        while True:
            started = time.time()
            bundle = await self.call(PUBLISH, version, self.config.rollout.dtype)
            try:
                return await self._deliver(bundle, started)
            except SenderLost as error:
                self.recovery.mark_dead(error.cause)
            except UpdateFailed as failed:
                if not await self._rank_died():
                    self.fleet.replace_late(failed, bundle.version)

    async def publish_diverged(self) -> None:
        """Publishes rebuilt weights that diverged, if there are any, under the next higher version. RetrySteps if they
        were lost and diverged once more meanwhile."""
        if self.recovery.diverged:
            await self.saving.wait()  # first: a checkpoint under way sees the divergence, and is dropped
            self.recovery.diverged = False  # the next loss decides anew
            await self.publish(self.version + 1)

    async def _deliver(self, bundle: WeightBundle, started: float) -> dict[str, float]:
        self.recovery.note_published(bundle)
        reports = await self.fleet.update_workers(bundle)
        self.run_log.efficiency.updated(report.gpu for report in reports)
        ways = dict(Counter(report.way for report in reports))
        facts = {"version": bundle.version, "checksum": bundle.checksum, "ways": ways}
        self.run_log.event("rollout", "weights", started, time.time(), **facts)
        self._published = publication_metrics(bundle) | update_metrics(reports)
        return self._published

    async def _rank_died(self) -> bool:
        """Whether a rank is dead, so that the weights may have been lost during their delivery."""
        try:
            await self.recovery.learner.progress(CHECK_S)
        except Died as error:
            self.recovery.mark_dead(error)
        return self.recovery.cause is not None

    async def fits_elsewhere(self) -> bool:
        """Whether the ranks that are up fit on nodes that will not be taken away; no if the cluster does not say."""
        return (await self.recovery.ranks_that_fit() or 0) >= self.recovery.learner.ranks

    async def move(self) -> None:
        """Ends the ranks and restarts them on nodes that stay; nothing is lost. RetrySteps if the weights diverged."""
        await self.saving.wait()
        self.recovery.plan_move("its node will be taken away")
        await self._recover()

    # -- recovery ----------------------------------------------------------------------------------------------------

    async def beside(self, work: Awaitable[T]) -> T:
        """Awaits `work`; ranks that die meanwhile are recovered while it continues. Cancels it if the recovery
        raises."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self._until_lost(task, *self.saving.under_way)
                if any(saved.done() for saved in self.saving.under_way):
                    await self.saving.wait()
                await self._recover()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _until_lost(self, *tasks: asyncio.Future[Any]) -> None:
        """Returns once one of the tasks is done or a rank is dead."""
        learner = self.recovery.learner
        lost = asyncio.ensure_future(learner.lost())
        try:
            await asyncio.wait({*tasks, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await lost
        except Died as error:
            self.recovery.mark_dead(error, learner)
        finally:
            lost.cancel()

    async def _recover(self) -> None:
        """Rebuilds the weights if the ranks are lost; RetrySteps if the rebuilt weights diverged."""
        async with self._recovering:
            if self.recovery.cause is not None:
                await self.saving.wait_for_disk()  # a checkpoint that the lost ranks completed spares their steps
                await self.recovery.run()
        if self.recovery.diverged:
            raise RetrySteps

    async def close(self) -> None:
        """Before the run fails: a checkpoint under way ends first, if the ranks are well."""
        await self.saving.close(lambda: self.recovery.cause is not None, self._until_lost)

    async def _check_rows(self, payloads: Sequence[Payload]) -> None:
        """Raises RetrySteps if rows that a new group of ranks is about to train on are lost."""
        try:
            await self.fleet.actors.payloads.fetch(list(payloads), FETCH_TIMEOUT_S)
        except (Failed, TimeoutError) as error:
            self.say(f"rows of the groups to train on are lost: {error}")
            raise RetrySteps from error

    async def call(self, row: Call[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """One call, repeated with each new group of ranks."""
        failure: tuple[type, str] | None = None
        if row is not WRITE:
            await self.saving.wait_for_files()
        while True:
            lost = self.recovery.cause is not None
            await self._recover()
            if lost and row.payloads is not None:
                await self._check_rows(cast("Sequence[Payload]", arguments[row.payloads]))
            learner = self.recovery.learner
            try:
                return await learner.call(row, *arguments, **named)
            except Refused:
                raise
            except LOST as error:
                self.recovery.mark_dead(error, learner)
                if isinstance(error, Failed):
                    if _kind(error) == failure:
                        raise
                    failure = _kind(error)


def _kind(error: Failed) -> tuple[type, str]:
    """What a repeated error has in common: what follows the colon holds figures and addresses."""
    return type(error.cause), str(error.cause).partition(": ")[0]


def learner_metrics(report: StepReport | None, num_groups: int) -> dict[str, float]:
    """Flat metrics of a training step on `num_groups` groups; `report` is None for a step without an update."""
    if report is None:
        nothing = dict.fromkeys(("optimizer_steps", "tokens/trained", "trajectories/trained", "groups/trained"), 0.0)
        return nothing | {"updates_skipped": 1.0}
    flat = {f"learner/{key}": value for key, value in report.metrics.items()}
    flat |= {f"learner_seconds/{part}": seconds for part, seconds in report.seconds.items()}
    return flat | {
        "optimizer_steps": float(report.optimizer_steps),
        "tokens/trained": float(report.num_tokens),
        "trajectories/trained": float(report.num_trajectories),
        "groups/trained": float(num_groups),
        "updates_skipped": 0.0,
    }
