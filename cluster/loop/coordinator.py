"""The coordinator: issues tickets, waits for windows, calls filter and learner, and publishes the weights.

The parts of one step, and the parties for which the coordinator waits (modules are named from `cluster.loop`):

    part       the coordinator waits for   unblocked by                on time-out
    window     every ticket of the step    environment actors          played again, or fails (tickets.playing)
    filter     the decisions               filter service              it is ended and replaced
    rows       rows of the step            object store                the step is played again; then the run ends
    train      every learner rank          learner                     recovery, see learner_side.learning
    publish    every rollout worker        the worker's parity probe   the late worker is replaced
    gradients  extra groups, every rank    see learner_side.decomposing   see there
    validate   the fixed tasks             environment actors          the run ends; the actor is named
    probe      the probe's tasks           environment actors          played again, or fails (tickets.playing)
    record     spans of players, workers   the same actors             the late actor's spans are missing
    archive    the previous step's part    disk                        said; then the run ends and names the folder
    checkpoint every learner rank, disk    learner                     recovery; a refusal of the disk ends the run

Nothing waits for the metrics endpoint. Only the last step waits for the scorer, because no later record could hold the
scorer's figures. `cluster.control.admission` decides when a step's tickets are issued, so with `max_staleness` > 0
later steps are played while this step is trained. `stop()` may be called at any time: the step in training is finished,
and everything else is cancelled.

Lost learner ranks are recovered inside the calls to the learner. If the recovered weights differ from the lost ones, or
rows are lost too, such a call raises `PlayAgain`: the new weights are published, the filter returns to its state after
the last step that was trained on, and the tickets of every later step are played again (`_play_again`). So does a step
whose rows are lost before the learner trains on it; what it trains on, the driver holds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from squelch.actors.filter.decisions import StepDecision, loss_scale
from squelch.actors.filter.windows import make_window
from squelch.actors.messages import StepReport
from squelch.actors.records import Ticket
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Failed, reason_of
from squelch.cluster.control.admission import Admission, TicketSource
from squelch.cluster.control.early_stop import EarlyStop
from squelch.cluster.control.gaming import Gaming, kept_variance, prefers_variance
from squelch.cluster.control.ledger import BUFFERED, DROPPED, FAILED, KEPT_WAITING, TRAINED, TRAINING, Ledger
from squelch.cluster.control.protocols import Archive, MetricsSink
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import Supervisor, Watchdog
from squelch.cluster.loop.filtering import Filtering
from squelch.cluster.loop.learner_side.decomposing import Decomposing
from squelch.cluster.loop.learner_side.learning import Learning, PlayAgain, learner_figures
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpointing import Checkpointing
from squelch.cluster.loop.persistence.journal import Journal
from squelch.cluster.loop.persistence.state import ANEW, LoopState, pack_ticket
from squelch.cluster.loop.scaling import Scaling
from squelch.cluster.loop.scoring import Scoring
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup, failed_text
from squelch.cluster.loop.tickets.probing import Probing
from squelch.cluster.loop.tickets.validation import Validation
from squelch.cluster.loop.tickets.window import Window
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.summary import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stopped(Exception):
    """The run was asked to stop."""


class Coordinator:
    """The training loop over a started fleet."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        archive: Archive,
        recorder: MetricsSink,
        state: LoopState,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.fleet, self.say, self.state = config, fleet, say, state
        for measured in state.with_tasks(config):
            say(ANEW[measured])
        self.admission = Admission(config.loop.max_staleness, config.loop.steps, state.clock, state.version)
        self.ledger = Ledger.restore(state.ledger)
        self.source = _training_tickets(config, state.cursor)
        self.journal = Journal(archive, recorder, config.loop.steps, state.totals, say)
        self.journal.carry(state.carried)
        self.play = Play(config, fleet)
        self.archiving = Archiving(archive, fleet.actors.payloads, config.run_dir, say)
        watchdog = Watchdog(self.journal.event, recorder.set)
        self.learning = Learning(config, fleet, self.journal, self.archiving, state, watchdog, say)
        self.checkpointing = Checkpointing(config, self.learning, self.archiving, self.journal)
        self.validation = Validation(config, self.play, state)
        self.probing = Probing(config, self.play)
        self.decomposing = Decomposing(config, self.learning, self.play)
        self.filtering = Filtering(fleet, state.filter, self._played, config.cluster.start_timeout_s)
        self.scoring = Scoring(config, fleet, archive, say)
        self.supervisor = Supervisor(fleet, watchdog, self.scoring.succeed)
        self.scaling = Scaling(config, fleet, state, say)
        self.early_stop = EarlyStop(config.validation.early_stop, config.validation.collapse_threshold)
        if state.early_stop:
            self.early_stop.restore(state.early_stop)
        self.gaming = Gaming()
        if state.gaming:
            self.gaming.restore(state.gaming)
        self._settled = state.filter or make_window(config.filter).state()
        """The filter's state after the last step that was trained on."""
        self.windows: dict[int, Window] = {}
        self._resumed: dict[int, list[Ticket]] = {}
        """By step, the tickets that were open when the run was stopped and are not issued again yet."""
        self._lost: Counter[int] = Counter()
        """Times that rows of a step were lost before it was trained on."""
        self.last_step = config.loop.steps
        self._ready_to_move = False
        """Whether a checkpoint was written since the learner was told that it loses a node."""
        self.ending: Ending | None = None
        """The reason why the run ends before its last step; None as long as there is none."""
        self._stop = asyncio.Event()
        self._started = time.time()

    def stop(self, ending: Ending) -> None:
        """Asks the loop to end after the step in training; of several reasons the first is kept."""
        self.ending = self.ending or ending
        self._stop.set()

    @property
    def _is_told_to_stop(self) -> bool:
        """Whether the run ends for a reason from outside, and soon, instead of by one of its own rules."""
        return self.ending is not None and self.ending.cause in (EndCause.SIGNAL, EndCause.STORE)

    async def run(self) -> None:
        """Trains until the last step, an early stop, or `stop()`; leaves a balanced ledger and a checkpoint."""
        await self.supervisor.beside(self._run())

    async def _run(self) -> None:
        try:
            await self._begin()
            while self.admission.clock < self.config.loop.steps and not self._stop.is_set():
                await self._step_or_again(self.admission.clock + 1)
        except Stopped:
            log.info("stopping: %s", self.ending.text if self.ending else "")
        finally:
            await self._cancel_plays()
        await self._end()

    def outcome(self) -> Outcome:
        """The loop's figures for the summary of the run."""
        state = self.state
        return Outcome(
            ending=self.ending,
            steps=self.admission.clock,
            optimizer_steps=state.optimizer_steps,
            policy_version=self.admission.version,
            training_seconds=state.seconds,
            totals=state.totals,
            last=self.journal.last,
            carried=self.journal.carried,
            first_validation=state.first_validation,
            best=(state.best_success, state.best_step),
            ledger=self.ledger,
        )

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self.filtering.restore()
        self.scoring.count(self.state.outcomes)
        await self.scoring.restore(self.state.scorer, self.state.scorer_figures, self.state.alarm)
        await self.learning.publish(self.admission.version)
        if self.validation.due(0, last=False) and self.admission.clock == 0:
            await self._validate(0)
        if self.probing.due(0, last=False) and self.admission.clock == 0:
            self.journal.carry(await self._until_stopped(self._probe(0)))
        lost = self.state.probing  # with the process before, whose last reading of the probe was under way
        if lost is not None and 0 < lost == self.admission.clock and self.probing.due(lost, last=True):
            self.scoring.probing = lost  # a stop meanwhile leaves it to the next process
            self.journal.carry(await self._until_stopped(self._probe(lost)))
        for ticket in self.state.tickets(self.config.environment):
            self._resumed.setdefault(ticket.step, []).append(ticket)
        self._issue()

    async def _cancel_plays(self) -> None:
        for window in self.windows.values():
            for play in window.plays:
                play.cancel()
            await asyncio.gather(*window.plays, return_exceptions=True)

    async def _end(self) -> None:
        open_tickets = self._open_tickets()
        self.source.cursor -= len(self._refills())
        self.windows.clear()
        await self.archiving.finish()
        await self.scoring.drain(self._is_told_to_stop)
        clock = self.admission.clock
        if clock > 0 and self.checkpointing.newest() != clock:
            await self._checkpoint(clock, open_tickets)
        elif clock > 0:  # a scoring may have ended after the checkpoint was written
            self.checkpointing.amend(clock, self._late_state())
        self.ledger.cancel_open()

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step_or_again(self, step: int) -> None:
        """One step. If its groups or their weights are lost before it is trained on, it is left to the next call."""
        try:
            await self._step(step)
        except PlayAgain:
            await self._play_again()

    async def _step(self, step: int) -> None:
        entered = time.time()
        began = self.journal.recorded or entered
        window = self.windows[step]
        self.scaling.asked(step)
        decision, tables = await self.learning.beside(self._until_stopped(self._decided(window)))
        self._move(window, decision)  # only now: a stop before leaves the step as if the filter had not decided
        decided = time.time()
        flat = window.metrics(decision)
        flat["seconds/filter"] = window.seconds_filter
        flat["seconds/rollout"] = decided - max(entered, window.issued_at) - window.seconds_filter
        flat["loss_scale"] = self._scale(decision)
        kept = [window.groups[d.group_id] for d in decision.kept]
        self.archiving.hold(step, dict(zip((g.ticket.ticket_id for g in window.played()), tables, strict=True)))
        flat["staleness_max"], flat["staleness_mean"] = self._staleness(kept)
        assert self.fleet.published.bundle is not None, "a version is published before step 1"
        self.scoring.offer(step, self.fleet.published.bundle, window.played())
        flat |= await self.decomposing.measure(step, self.admission.version, window.played())
        measured = time.time()
        self.journal.busy(decided, measured)
        report = await self._train(step, kept, decision)
        trained = time.time()
        del self.windows[step], self._lost[step]
        self._settled = self.filtering.state or self._settled
        flat["seconds/publish"] = 0.0
        if report is not None and report.updated:
            flat |= await self._publish()
            flat["seconds/publish"] = time.time() - trained
        self.admission.complete(step, self.learning.version)
        self.ledger.settle(ticket.ticket_id for ticket in window.tickets)
        archived = time.time()
        await self.archiving.begin(decision, tables)
        flat["seconds/archive"] = time.time() - archived
        self._issue()
        flat |= learner_figures(report)
        flat |= {"seconds/train": trained - measured, "policy_version": float(self.admission.version)}
        self._stop_early(step, self.early_stop.step(self.early_stop.spread(decision, window.summaries())))
        flat |= self.early_stop.metrics()
        self._watch_gaming(decision)
        if self.validation.due(step, last=step == self.last_step):
            flat |= await self._validate(step)
        last = step == self.last_step
        drained = await self._drain(step) if last and self.scoring.probing is not None else 0.0
        if self.probing.due(step, last):  # the last reading follows the one under way, which it must not be lost to
            flat |= await self._probe(step)
        flat |= self.gaming.metrics()
        drained += await self._drain(step) if last else 0.0
        await self.journal.collect_spans(self.fleet)
        self._record(step, flat, began, drained)
        await self._upkeep(step)

    async def _drain(self, step: int) -> float:
        """Waits for what the scorer has under way; returns the seconds of the wait, which do not count as part of the
        step. A record holds one scoring and one reading of the probe, so of each every finished one but the newest gets
        a record of its own before the last."""
        started = time.time()
        if self._stop.is_set():  # frees the cores for the scorer
            await self._cancel_plays()
        await self.scoring.drain(self._is_told_to_stop)
        for figures in self.scoring.take_earlier():
            self.journal.scored(step, figures)
        self.journal.busy(started, time.time())
        return time.time() - started

    async def _upkeep(self, step: int) -> None:
        """Writes a checkpoint if one is due. It follows the step's record, so that a resumed run has the records of all
        its steps; its seconds are reported with the next step."""
        loop = self.config.loop
        leaves = self.scaling.learner_leaves() and step < self.last_step and not self._stop.is_set()
        moves = leaves and await self.learning.has_other_room()
        due = step % loop.checkpoint_every == 0 or step == loop.steps or self.state.best_step == step
        if due or moves or (leaves and not self._ready_to_move):
            started = time.time()
            await self._checkpoint(step, self._open_tickets())
            self.journal.carry({"seconds/checkpoint": time.time() - started})
        self._ready_to_move = leaves and not moves
        if moves:
            await self._move_learner()

    async def _move_learner(self) -> None:
        """Makes the learner's ranks again on nodes that will not be taken away."""
        try:
            await self.learning.move()
        except PlayAgain:
            await self._play_again()

    async def _until_stopped(self, work: Awaitable[T]) -> T:
        """Returns the result of `work`; raises Stopped if the run is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- tickets and windows -------------------------------------------------------------------------------------

    def _issue(self) -> None:
        while self.admission.open():  # after a stop too: a resumed run plays the tickets that are cancelled then
            step = self.admission.issue()
            self._start(step, self._resumed.pop(step, None) or self.source.take(step, self.config.loop.prompts))

    def _start(self, step: int, tickets: list[Ticket]) -> None:
        window = self.windows.setdefault(step, Window(step, time.time(), first=len(tickets)))
        self.scaling.issued(step)
        for ticket in tickets:
            self.ledger.issue(ticket.ticket_id)
            window.tickets.append(ticket)
            window.plays.append(asyncio.create_task(self._play(window, ticket)))

    async def _play_again(self) -> dict[str, float]:
        """Publishes weights that were made again, if they differ, and plays every ticket that was not trained on again;
        the figures of the publication. Refill rounds begin anew, as after a resume: what is missing is another number
        then, and a step must not train on more groups than its first round held."""
        await self._cancel_plays()
        figures = await self.learning.publish_remade()
        self.admission.renumber(self.learning.version)
        refills = self._refills()
        for ticket in refills:
            self.ledger.withdraw(ticket.ticket_id)
        self.source.cursor -= len(refills)
        self.windows = {
            window.step: Window(window.step, time.time(), window.first, window.tickets[: window.first])
            for window in self.windows.values()
        }
        await self.filtering.rewind(self._settled, min(self.windows, default=self.admission.next_step) - 1)
        for step in self.windows:
            self.scoring.withdraw(step)
        for window in self.windows.values():
            for ticket in window.tickets:
                self.ledger.play_again(ticket.ticket_id)
                window.plays.append(asyncio.create_task(self._play(window, ticket)))
        if count := sum(len(window.tickets) for window in self.windows.values()):
            self.say(f"{count} groups are played again, from version {self.learning.version}")
        return figures

    async def _play(self, window: Window, ticket: Ticket) -> PlayedGroup:
        group = await self.play.group(ticket)
        window.groups[ticket.ticket_id] = group
        self.ledger.move(ticket.ticket_id, BUFFERED)
        self.scaling.played(window.step)
        await self.filtering.admit([group])
        return group

    async def _decided(self, window: Window) -> tuple[StepDecision, list[pa.Table]]:
        """The decision on the step's groups, and their rows."""
        return await self._decide(window), await self._rows(window)

    async def _rows(self, window: Window) -> list[pa.Table]:
        """The rows of the step's groups. PlayAgain if some are lost, as with their host; the error itself once that has
        happened `loop.max_attempts` times."""
        try:
            return await self.play.rows(window.played())
        except (Failed, TimeoutError) as error:
            self._lost[window.step] += 1
            if self._lost[window.step] >= self.config.loop.max_attempts:
                raise
            self.say(f"rows of step {window.step} are lost before it was trained on: {reason_of(error)}")
            raise PlayAgain from error

    async def _decide(self, window: Window) -> StepDecision:
        """Waits for the step's tickets, including refill rounds, and for the filter's decision."""
        rounds = 0
        while True:
            await asyncio.gather(*window.plays)
            final = not self.config.filter.refill or rounds >= self.config.filter.max_refill_rounds
            asked = time.time()
            decision = await self.filtering.close(window.step, final, window.first)
            window.seconds_filter += time.time() - asked
            if final or decision.wanted == 0:
                break
            rounds += 1
            self._start(window.step, self.source.take(window.step, decision.wanted, len(window.tickets)))
        return decision

    def _move(self, window: Window, decision: StepDecision) -> None:
        """Moves the step's tickets in the ledger as the filter decided."""
        for item in decision.kept:
            self.ledger.move(item.group_id, KEPT_WAITING)
        for item in decision.dropped:
            self.ledger.move(item.group_id, DROPPED, item.code)
        for item in decision.refused:
            self.ledger.move(item.group_id, FAILED, window.failure(item))

    # -- the learner ---------------------------------------------------------------------------------------------

    async def _publish(self) -> dict[str, float]:
        """Publishes the weights of a step that was trained on; the flat figures."""
        try:
            return await self.learning.publish(self.learning.version + 1)
        except PlayAgain:
            return await self._play_again()

    async def _train(self, step: int, kept: list[PlayedGroup], decision: StepDecision) -> StepReport | None:
        """Learns from the kept groups; None if the filter kept none. Ends the run in the cases that settings define
        (`filter.on_no_signal`, `filter.no_signal_limit`, `learner.max_bad_steps`)."""
        if not kept:
            found = f"{len(decision.decisions)} groups{decision.best_reason}"
            self.say(f"step {step}: no signal in {found}; no update")
            if decision.action == "abort":
                policy, limit = self.config.filter.on_no_signal, self.config.filter.no_signal_limit
                setting = "on_no_signal=abort" if policy == "abort" else f"no_signal_limit={limit}"
                self._end_with(step, Ending(EndCause.NO_SIGNAL, f"filter.{setting}, nothing kept of {found}"))
            return None
        ids = [group.ticket.ticket_id for group in kept]
        for ticket_id in ids:
            self.ledger.move(ticket_id, TRAINING)
        report = await self.learning.train(step, kept, self._scale(decision))
        for ticket_id in ids:
            self.ledger.move(ticket_id, FAILED if report.refused else TRAINED, "refused_by_learner")
        if why := self.learning.too_many_refused(report):
            self._end_with(step, Ending(EndCause.REFUSED_STEPS, why))
        self.state.optimizer_steps += report.optimizer_steps
        return report

    def _scale(self, decision: StepDecision) -> float:
        return loss_scale(self.config.learner.objective.loss_scale, decision, self.config.filter.rho)

    # -- validation, checkpoints, figures ------------------------------------------------------------------------

    async def _validate(self, step: int) -> dict[str, float]:
        started = time.time()
        measured = self.validation.measure(step)
        # A stop finishes the step in training with its validation, so that the resumed run has the same figures.
        flat = await (measured if step else self._until_stopped(measured))
        self.journal.busy(started, time.time())
        self._stop_early(step, self.early_stop.validation(flat["validation/success"]))
        if self.gaming.validation(step, self.validation.solved):
            text = self.gaming.text()
            self.journal.event("filter", "gaming_suspected", started, time.time(), step=step, text=text)
            self.say(f"step {step:4d}  WARNING: {text}")
        self.journal.last |= flat
        if step == 0:
            self.journal.before_training(flat)
        interval = f"[{flat['validation/success_low']:.3f}, {flat['validation/success_high']:.3f}]"
        self.say(f"step {step:4d}  validation success {flat['validation/success']:.3f}  {interval}")
        if text := failed_text(self.validation.failed, len(self.validation.tickets)):
            self.journal.event("validation", "tasks_failed", started, time.time(), step=step, text=text)
            self.say(f"step {step:4d}  WARNING: {text}")
        return flat

    async def _probe(self, step: int) -> dict[str, float]:
        """Plays the fixed probe's tasks and hands them to the scorer; the flat figures of the play."""
        if self.scoring.probe_reader(step) is None:
            return {}
        started = time.time()
        groups = await self.probing.groups()
        assert self.fleet.published.bundle is not None, "a version is published before the probe is read"
        self.scoring.probe(step, self.fleet.published.bundle, groups)
        self.journal.busy(started, time.time())
        return {"seconds/probe": time.time() - started}

    def _watch_gaming(self, decision: StepDecision) -> None:
        chosen = self.config.filter
        if not prefers_variance(chosen):
            return
        by = f"{decision.filter} min_groups={chosen.min_groups} kind_floor={chosen.kind_floor:g}"
        passed = any(one.code == "passthrough" for one in decision.kept)
        self.gaming.step(decision.step, math.nan if passed else kept_variance(decision.metrics), by)

    def _stop_early(self, step: int, reason: str | None) -> None:
        if reason:
            self._end_with(step, Ending(EndCause.EARLY_STOP, reason))

    def _end_with(self, step: int, ending: Ending) -> None:
        """Makes this step the last and records why."""
        self.last_step = step
        self.stop(ending)

    async def _checkpoint(self, step: int, open_tickets: list[dict[str, Any]]) -> None:
        state = self.state
        state.clock, state.version = self.admission.clock, self.admission.version
        state.cursor, state.open_tickets = self.source.cursor, open_tickets
        state.ledger, state.filter = self.ledger.state(), self._settled
        state.rollout_workers = self.fleet.worker_pool.wanted
        state.early_stop, state.bad_steps = self.early_stop.state(), self.learning.refused_in_a_row
        state.gaming = self.gaming.state()
        vars(state).update(self._late_state())
        state.seconds += time.time() - self._started
        self._started = time.time()
        try:
            await self.checkpointing.save(step, state, self.scoring.sound_until)
        except PlayAgain:
            await self._play_again()
            await self._checkpoint(step, open_tickets)

    def _refills(self) -> list[Ticket]:
        """The tickets of refill rounds. No others were issued after them: one step at a time is decided on."""
        return [ticket for window in self.windows.values() for ticket in window.tickets[window.first :]]

    def _open_tickets(self) -> list[dict[str, Any]]:
        """The tickets that a resumed run plays again. Those of refill rounds are not among them: the rounds begin anew,
        with the same tasks."""
        issued = [window.tickets[: window.first] for window in self.windows.values()]
        return [pack_ticket(ticket) for tickets in (*issued, *self._resumed.values()) for ticket in tickets]

    def _late_state(self) -> dict[str, Any]:
        """The part of the loop's state that goes on changing after the last step."""
        scoring = self.scoring
        figures = {"scorer": scoring.state, "scorer_figures": scoring.pending(), "alarm": scoring.alarm_state()}
        counts = {"carried": dict(self.journal.carried), "outcomes": scoring.untold()}
        return {**figures, **counts, "probing": scoring.probing}

    def _staleness(self, kept: list[PlayedGroup]) -> tuple[float, float]:
        if not kept:
            return 0.0, 0.0
        ages = [self.admission.check_staleness(g.summary.version_min) for g in kept]
        return float(max(ages)), float(np.mean(ages))

    def _record(self, step: int, flat: dict[str, float], began: float, drained: float) -> None:
        flat |= self.scoring.take_figures(step, flat["reward_mean"]) | self.scaling.step(step)
        flat |= {f"ledger/{state}": float(n) for state, n in self.ledger.counts().items()}
        for state in (DROPPED, FAILED):
            flat |= {f"ledger/{state}/{reason}": float(n) for reason, n in self.ledger.reasons(state).items()}
        flat |= {f"restarts/{name}": float(n) for name, n in self.fleet.take_restarts().items()}
        flat |= {f"up/{name}": float(up) for name, up in self.fleet.up().items()}
        self.journal.step(step, flat, began, drained, self.scoring)

    def _played(self) -> list[PlayedGroup]:
        return [group for window in self.windows.values() for group in window.groups.values()]


def _training_tickets(config: RunConfig, cursor: int) -> TicketSource:
    environment = config.environment
    return TicketSource(
        environment.name,
        environment.options,
        environment.train_seed,
        config.sampling.group_size,
        config.seed,
        config.sampling.temperature,
        cursor,
        config.filter.num_replays,
    )
