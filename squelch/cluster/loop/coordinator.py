"""The training loop: a step's groups are played and selected, the learner trains on them, the weights are published.

Everything that rides on a step, such as the validation, is a watcher (`cluster.loop.watchers.watcher`). The parts of
one step, in their order, and what the coordinator waits for in each (modules are named from `cluster.loop`):

    part          the coordinator waits for   unblocked by                on time-out
    groups        every ticket of the step    environment actors          retried, or fails (tickets.playing)
    filter        the decisions               filter service              it is ended and replaced (filtering)
    rows          rows of the step            object store                the step is retried; then the run ends
    before_train  each watcher                see its module              see there
    train         every learner rank          learner                     recovery, see learner_client.learning
    publish       every rollout worker        the worker's parity probe   the late worker is replaced
    archive       the previous step's part    disk                        reported; then the run ends, naming the folder
    issue         -                           -                           -
    after_train   each watcher                see its module              see there
    record        spans of players, workers   the same actors             the late actor's spans are missing
    checkpoint    -                           -                           -
    (written)     every learner rank:         learner                     recovery
                  before the next call to it
    (sealed)      the disk: before the next   disk                        a refusal, or `learner.checkpoint_timeout_s`,
                  checkpoint, at the end                                  ends the run and names the path

Nothing waits for the metrics endpoint. `stop()` may be called at any time: the step in training is finished, and
everything else is cancelled. With `max_staleness` > 0 later steps are played while this step is trained
(`tickets.open_steps`).

Lost learner ranks are recovered inside the calls to the learner. If the recovered weights differ from the lost ones, or
rows are lost too, such a call raises `RetrySteps`, which `_retrying` alone handles: the new weights are published, the
filter returns to its state after the last step that was trained on, the tickets of every later step are retried, and
the call is repeated. Four calls are made this way: a step up to its training, the weight sync, the checkpoint, and the
move of the learner. A step that was trained on is no longer open (`OpenSteps.trained`), so the last three calls
continue with the rebuilt weights and retry only later steps. A step whose rows are lost before the learner trains on it
raises `RetrySteps` too; the driver holds the rows that the learner trains on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from squelch.actors.messages import StepReport, StepTerms
from squelch.cluster.config import RunConfig
from squelch.cluster.control.ledger import DROPPED, FAILED, SPARED, TRAINED, TRAINING, RetrySteps
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import Supervisor
from squelch.cluster.loop.learner_client.learning import Learning, learner_metrics
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpointing import Checkpointing
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.persistence.state import ANEW, LoopState
from squelch.cluster.loop.scaling import Scaling
from squelch.cluster.loop.stopping import Stopped, Stopping
from squelch.cluster.loop.stopwatch import Stopwatch
from squelch.cluster.loop.tickets.open_steps import OpenSteps
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.summary import Outcome
from squelch.kit.filter.decisions import loss_scale

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class Selected:
    """A step on which the filter has decided. `tables`: the rows of its groups; `began`: unix seconds; `stopwatch`: its
    laps."""

    step: Step
    tables: list[pa.Table]
    began: float
    stopwatch: Stopwatch


@dataclass
class Coordinator:
    """The training loop over a started fleet; `cluster.loop.wiring` makes one."""

    config: RunConfig
    fleet: Fleet
    state: LoopState
    run_log: RunLog
    steps: OpenSteps
    learning: Learning
    archiving: Archiving
    checkpointing: Checkpointing
    watchers: list[Watcher]
    scaling: Scaling
    supervisor: Supervisor
    stopping: Stopping

    @property
    def ending(self) -> Ending | None:
        """The reason why the run ends before its last step; None as long as there is none."""
        return self.stopping.ending

    def stop(self, ending: Ending) -> None:
        """Asks the loop to end after the step in training. The first of several reasons is kept."""
        self.stopping.ask(ending)

    @property
    def is_ending(self) -> bool:
        """Whether the run ends without being asked to: no step follows, or it was asked already."""
        done = self.stopping.training is None and self.steps.admission.clock >= self.config.loop.steps
        return self.stopping.requested or done

    @property
    def last_work(self) -> str:
        """What is still done before the run ends if it is asked to stop now, in words."""
        if self.stopping.training is not None:
            return f"finishing step {self.stopping.training}, then a checkpoint"
        clock = self.steps.admission.clock
        if self.is_ending:
            return "the run is ending already"
        return f"leaving step {clock + 1}, which is not trained yet" + ("; writing a checkpoint" if clock else "")

    async def run(self) -> None:
        """Trains until the last step, an early stop, or `stop()`; leaves a balanced ledger and a checkpoint."""
        self._restore()
        await self.supervisor.beside(self._run())

    async def _run(self) -> None:
        try:
            await self._until_end()
            await self._end()
        except BaseException:
            await self.learning.close()
            raise

    async def _until_end(self) -> None:
        try:
            await self._begin()
            while self.steps.admission.clock < self.config.loop.steps and not self.stopping.requested:
                await self._step(self.steps.admission.clock + 1)
        except Stopped:
            log.info("stopping: %s", self.ending.text if self.ending else "")
        finally:
            await self.steps.cancel()

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, number: int) -> None:
        """Selects, trains, publishes and archives, and calls the watchers. A checkpoint follows the step's record."""
        selected, report = await self._retrying(lambda: self._select_and_train(number))
        step, stopwatch = selected.step, selected.stopwatch
        self.steps.trained(number)
        step.metrics["seconds/publish"] = 0.0
        self.run_log.doing(f"step {number}: publishing the weights")
        if report is not None and report.updated:
            step.metrics |= await self._retrying(self.learning.publish_trained)
            step.metrics["seconds/publish"] = stopwatch.lap()
        self.steps.complete(step.window, self.learning.version)
        stopwatch.lap()
        await self.archiving.begin(step.decision, selected.tables)
        step.metrics["seconds/archive"] = stopwatch.lap()
        self.steps.issue()
        step.metrics["policy_version"] = float(self.steps.admission.version)
        step.metrics |= learner_metrics(report, len(self._learned(step)))
        self.run_log.doing(f"step {number}: measuring after the training")
        for watcher in self.watchers:
            if (ending := await watcher.after_train(step)) is not None:
                self._end_with(step, ending)
        await self.run_log.collect_spans(self.fleet)
        self._record(selected)
        self.stopping.training = None
        await self._upkeep(step)

    async def _select_and_train(self, number: int) -> tuple[Selected, StepReport | None]:
        """The step with the filter's decision, and the learner's report. RetrySteps if its groups, or the weights that
        sampled them, are lost before it is trained on."""
        self.stopping.training = None
        selected = await self._select(number)
        step, stopwatch = selected.step, selected.stopwatch
        self.stopping.training, decided = number, stopwatch.last
        await self._held(self.learning.saving.wait_for_files)
        self.run_log.doing(f"step {number}: measuring before the training")
        for watcher in self.watchers:
            await watcher.before_train(step)
        stopwatch.lap()
        self.run_log.busy(decided, stopwatch.last)
        report = await self._train(step)
        step.metrics["seconds/train"] = stopwatch.lap()
        return selected, report

    async def _select(self, number: int) -> Selected:
        """Waits for the step's groups and the decision on them."""
        stopwatch = Stopwatch()
        self.run_log.doing(f"step {number}: playing", lambda: (*self.steps.played(number), "groups"))
        entered = stopwatch.last
        began = self.run_log.began(entered)
        found = await self.learning.beside(self.stopping.until(self.steps.decided(number)))
        if self.stopping.is_from_outside:  # asked for as it was decided, or while a rank recovered: `last_work` left it
            raise Stopped
        self.steps.note(found)  # only now: after a stop before this line a resumed run decides again
        stopwatch.lap()
        window, decision = found.window, found.decision
        is_last = number == self.stopping.last_step
        step = Step(number, window, decision, self.steps.admission.version, is_last, window.metrics(decision))
        rollout = stopwatch.last - max(entered, window.issued_at) - window.seconds_filter
        step.metrics |= {"seconds/filter": window.seconds_filter, "seconds/rollout": rollout}
        step.metrics |= {"loss_scale": self._terms(step).loss_scale} | self.steps.staleness(step.kept)
        ids = (group.ticket.ticket_id for group in step.groups)
        self.archiving.hold(number, dict(zip(ids, found.tables, strict=True)))
        return Selected(step, found.tables, began, stopwatch)

    async def _train(self, step: Step) -> StepReport | None:
        """Trains on the kept groups, or on all; None if the filter kept none. Ends the run if `filter.on_no_signal`,
        `filter.no_signal_limit` or `learner.max_bad_steps` say so."""
        kept, ledger = step.kept, self.steps.ledger
        if not kept:
            self._skip(step)
            return None
        ids = [group.ticket.ticket_id for group in kept]
        for ticket_id in ids:
            ledger.move(ticket_id, TRAINING)
        self.run_log.doing(f"step {step.number}: training on {len(kept)} groups", self.learning.passes())
        report = await self.learning.train(step.number, self._learned(step), self._terms(step))
        for ticket_id in ids:
            ledger.move(ticket_id, FAILED if report.refused else TRAINED, "refused_by_learner")
        if why := self.learning.too_many_refused(report):
            self._end_with(step, Ending(EndCause.REFUSED_STEPS, why))
        self.state.optimizer_steps += report.optimizer_steps
        return report

    def _skip(self, step: Step) -> None:
        if not step.valid:
            return  # `watchers.counting_nothing` says why
        found = f"{len(step.decision.decisions)} groups ({step.decision.why_nothing})"
        self.run_log.say(f"step {step.number}: no signal in {found}; no update")
        if step.decision.action == "abort":
            setting = self.config.filter.limit_reached
            self._end_with(step, Ending(EndCause.NO_SIGNAL, f"{setting}, nothing kept of {found}"))

    def _learned(self, step: Step) -> list[PlayedGroup]:
        """The groups that the learner gets: the kept ones, or all valid ones if only a term of the loss is filtered."""
        return step.kept if self.config.filter.target == "groups" else step.valid

    def _terms(self, step: Step) -> StepTerms:
        """What the filter's decision means for the loss of the step."""
        decision, target = step.decision, self.config.filter.target
        std = decision.window_std if self.config.learner.objective.divisor == "window" else None
        if target == "groups":
            kind = self.config.learner.objective.loss_scale
            return StepTerms(loss_scale(kind, decision, self.config.filter.rho), window_std=std)
        return StepTerms(spared=tuple(one.group_id for one in decision.dropped), without=target, window_std=std)

    def _end_with(self, step: Step, ending: Ending) -> None:
        """Makes this step the last and records why."""
        step.is_last = True
        self.stopping.end_with(step.number, ending)

    def _record(self, selected: Selected) -> None:
        step, ledger = selected.step, self.steps.ledger
        for watcher in self.watchers:
            step.metrics |= watcher.metrics(step)
        flat = step.metrics
        flat |= {f"ledger/{state}": float(n) for state, n in ledger.counts().items()}
        for state in (DROPPED, SPARED, FAILED):
            flat |= {f"ledger/{state}/{reason}": float(n) for reason, n in ledger.reasons(state).items()}
        flat |= {f"restarts/{name}": float(n) for name, n in self.fleet.take_restarts().items()}
        flat |= {f"up/{name}": float(up) for name, up in self.fleet.up().items()}
        self.run_log.step(step.number, flat, selected.began)

    # -- lost groups and weights, and checkpoints ----------------------------------------------------------------

    async def _retrying(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Whenever groups, or the weights that sampled them, are lost during `work`, the tickets
        of the open steps are retried, and `work` is called again."""
        lost = False
        while True:
            try:
                if lost:
                    await self._retry()
                lost = False
                return await work()
            except RetrySteps:
                lost = True

    async def _retry(self) -> None:
        """Publishes rebuilt weights that diverged, and retries every ticket that was not trained on. RetrySteps if
        weights are lost meanwhile; then plays are cancelled, and nothing else has changed."""
        await self.steps.cancel()
        await self.learning.publish_diverged()
        lost = await self.steps.reset(self.learning.version)
        for watcher in self.watchers:
            watcher.rewind(lost)
        if count := self.steps.retry():
            self.run_log.say(f"{count} groups are retried, from version {self.learning.version}")

    async def _upkeep(self, step: Step) -> None:
        """Writes a checkpoint if one is due, and moves the learner away from nodes that will be taken away. This
        happens after the step's record, so that a resumed run has the records of all its steps."""
        leaves = self.scaling.learner_leaves() and not step.is_last and not self.stopping.requested
        moves = leaves and await self.learning.fits_elsewhere()
        if self.checkpointing.due(step.number) or moves or (leaves and not self.checkpointing.is_before_a_move):
            self.run_log.doing(f"step {step.number}: writing a checkpoint")
            await self._held(self.learning.saving.wait)  # first: at most one is written, of the state after the wait
            await self._checkpoint(step.number, self.steps.open_tickets(), wait=leaves)
        self.checkpointing.is_before_a_move = leaves and not moves
        if moves:
            await self._retrying(self._move_learner)

    async def _move_learner(self) -> None:
        """Restarts the learner's ranks on nodes that stay, unless that has already happened."""
        if self.scaling.learner_leaves():
            await self.learning.move()

    async def _checkpoint(self, step: int, open_tickets: list[dict[str, Any]], wait: bool) -> None:
        """Begins the checkpoint of a step; with `wait`, returns once it is complete."""

        async def save() -> None:
            stopwatch, state, steps = Stopwatch(), self.state, self.steps
            state.clock, state.version = steps.admission.clock, steps.admission.version
            state.cursor, state.open_tickets = steps.source.cursor, open_tickets
            state.ledger, state.filter = steps.ledger.state(), steps.filter_state
            state.bad_steps = self.learning.refused_in_a_row
            vars(state).update(self._late_state())
            self.checkpointing.begin(step, state)
            self.run_log.carry({"seconds/checkpoint": stopwatch.lap()})
            if wait:
                await self._held(lambda: self.learning.saving.wait(needed=True))

        await self._retrying(save)

    async def _held(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Waits for a checkpoint under way; the step that is recorded next reports the seconds."""
        if self.learning.saving.under_way:
            stopwatch = Stopwatch()
            await wait()
            self.run_log.carry({"seconds/checkpoint": stopwatch.lap()})

    def _late_state(self) -> dict[str, Any]:
        """The part of the loop's state that may still change after the last step."""
        states = {watcher.name: watcher.state() for watcher in self.watchers}
        known = {name: state for name, state in states.items() if state is not None}
        return {"watchers": known, "carried": dict(self.run_log.carried)}

    # -- beginning and end ---------------------------------------------------------------------------------------

    def _restore(self) -> None:
        anew = self.state.with_tasks(self.config)
        for measured in anew:
            self.run_log.say(ANEW[measured])
        for watcher in self.watchers:
            if (state := self.state.watchers.get(watcher.name)) is not None:
                watcher.restore(state, anew)

    async def _begin(self) -> None:
        await self.steps.filtering.restore()
        self.run_log.doing("publishing the weights")
        await self.learning.publish(self.steps.admission.version)
        self.run_log.doing("measuring before the first step")
        for watcher in self.watchers:
            await self.stopping.until(watcher.begin(self.steps.admission.clock))
        self.steps.issue()

    async def _end(self) -> None:
        open_tickets = self.steps.open_tickets()
        self.steps.close()
        self.run_log.doing("ending: waiting for the archive")
        await self.archiving.finish()
        self.run_log.doing("ending: waiting for the scorer")
        for watcher in self.watchers:
            await watcher.end()
        self.run_log.doing("ending: writing a checkpoint")
        await self._held(self.learning.saving.wait)
        clock = self.steps.admission.clock
        if clock > 0 and self.checkpointing.newest() != clock:
            await self._checkpoint(clock, open_tickets, wait=True)
        elif clock > 0:  # a scorer step may have ended after the checkpoint was written
            self.checkpointing.amend(clock, self._late_state())
        self.steps.ledger.cancel_open()

    def outcome(self) -> Outcome:
        """The loop's metrics for the summary of the run."""
        state, validation = self.state, self.checkpointing.validation
        return Outcome(
            ending=self.ending,
            steps=self.steps.admission.clock,
            optimizer_steps=state.optimizer_steps,
            policy_version=self.steps.admission.version,
            training_seconds=state.seconds,
            totals=state.totals,
            last=self.run_log.last,
            carried=self.run_log.carried,
            first_validation=validation.first,
            best=(validation.best_success, validation.best_step),
            ledger=self.steps.ledger,
            warnings=[text for watcher in self.watchers if (text := watcher.verdict())],
        )
