"""The coordinator: issues tickets, waits for windows, has them filtered and learned from, publishes the weights.

One step, and who waits for whom:

    part       the coordinator waits for   unblocked by                on time-out
    window     every ticket of the step    environment actors          replayed, or fails (cluster.loop.playing)
    filter     the decisions               filter service              the run ends; a dead one is replaced
    train      every learner rank          learner                     the run ends; the late rank is named
    publish    every rollout worker        the worker's parity probe   the run ends; the late worker is named
    gradients  extra groups, every rank    see cluster.loop.decomposing     see cluster.loop.decomposing
    validate   the fixed tasks             environment actors          the run ends; the actor is named
    record     spans of players, workers   themselves                  the run ends; the late one is named
    archive    the step before's rows      object store, disk          the run ends; the path is named
    checkpoint every learner rank, disk    learner                     the run ends; rank or path is named

Nothing waits for the metrics endpoint, nor for the scorer before the run's last step, whose record is the last that can
hold its figures.
A step's tickets are issued as `cluster.control.admission` allows, so with `max_staleness` > 0 later steps are played
while this one is trained. `stop()` may be called at any time: the step in training is finished, everything else
is cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from actors.archive.writer import Archive
from actors.filter.windows import Decision, StepDecision, loss_scale
from actors.messages import StepReport, WeightBundle
from actors.metrics.exporter import Recorder
from actors.records import Ticket
from cluster.config import RunConfig
from cluster.control.admission import Admission, TicketSource
from cluster.control.ledger import BUFFERED, DROPPED, FAILED, KEPT_WAITING, TRAINED, TRAINING, Ledger
from cluster.fleet.fleet import Fleet
from cluster.loop.archiving import Archiving
from cluster.loop.decomposing import Decomposing
from cluster.loop.filtering import Filtering
from cluster.loop.journal import Journal
from cluster.loop.playing import Play, PlayedGroup
from cluster.loop.scoring import Scoring
from cluster.loop.state import LoopState, amend, checkpoint_dir, checkpoints, pack_ticket, prune
from cluster.loop.validation import Validation
from cluster.runs.figures import EarlyStop, group_figures, publication_figures, reward_spread, update_figures

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stopped(Exception):
    """The run was asked to stop."""


@dataclass
class Window:
    """One step's tickets being played."""

    step: int
    issued_at: float
    tickets: list[Ticket] = field(default_factory=list)
    plays: list[asyncio.Task[PlayedGroup]] = field(default_factory=list)
    groups: dict[str, PlayedGroup] = field(default_factory=dict)
    seconds_filter: float = 0.0

    def played(self) -> list[PlayedGroup]:
        """The groups in order of their tickets: sums over them do not depend on who came first."""
        return [self.groups[t.ticket_id] for t in self.tickets if t.ticket_id in self.groups]


class Coordinator:
    """The training loop over a started fleet."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        archive: Archive,
        recorder: Recorder,
        state: LoopState,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.fleet, self.say, self.state = config, fleet, say, state
        self.admission = Admission(config.loop.max_staleness, config.loop.steps, state.clock, state.version)
        self.ledger = Ledger.restore(state.ledger)
        self.source = _training_tickets(config, state.cursor)
        self.journal = Journal(archive, recorder, config.loop.steps, state.totals, say)
        self.archiving = Archiving(archive)
        self.play = Play(config, fleet)
        self.validation = Validation(config, self.play, state)
        self.decomposing = Decomposing(config, fleet, self.play)
        self.filtering = Filtering(fleet, state.filter, self._played, config.cluster.start_timeout_s)
        self.scoring = Scoring(config, fleet, self.journal.event, say)
        self.early_stop = EarlyStop(config.validation.early_stop, config.validation.collapse_threshold)
        if state.early_stop:
            self.early_stop.restore(state.early_stop)
        self.bad_steps = state.bad_steps
        self.windows: dict[int, Window] = {}
        self.last_step = config.loop.steps
        self.stop_reason: str | None = None
        self._stop = asyncio.Event()
        self._started = time.time()

    def stop(self, reason: str) -> None:
        """Asks the loop to end after the step in training."""
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    async def run(self) -> None:
        """Trains until the last step, an early stop, or `stop()`; leaves a balanced ledger and a checkpoint."""
        try:
            await self._begin()
            while self.admission.clock < self.config.loop.steps and not self._stop.is_set():
                await self._step(self.admission.clock + 1)
        except Stopped:
            log.info("stopping: %s", self.stop_reason)
        finally:
            await self._cancel_plays()
        await self._end()

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self.filtering.restore()
        await self.scoring.restore(self.state.scorer, self.state.scorer_figures, self.state.alarm)
        await self._publish(self.admission.version)
        if self.validation.due(0, last=False) and self.admission.clock == 0:
            await self._validate(0)
        self._reissue(self.state.tickets())
        self._issue()

    async def _cancel_plays(self) -> None:
        for window in self.windows.values():
            for play in window.plays:
                play.cancel()
            await asyncio.gather(*window.plays, return_exceptions=True)

    async def _end(self) -> None:
        open_tickets = [pack_ticket(t) for w in self.windows.values() for t in w.tickets]
        await self.archiving.finish()
        await self.scoring.drain()
        clock = self.admission.clock
        if clock > 0 and (checkpoints(self.config.run_dir) or [(0, None)])[-1][0] != clock:
            await self._checkpoint(clock, open_tickets)
        elif clock > 0:  # a scoring that ended since the checkpoint was written
            amend(checkpoint_dir(self.config.run_dir, clock), **self._scorer_state())
        self.ledger.cancel_open()

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, step: int) -> None:
        entered = time.time()
        began = self.journal.recorded or entered
        window = self.windows[step]
        decision = await self._until_stopped(self._decide(window))
        decided = time.time()
        flat = self._decision_figures(window, decision)
        flat["seconds/filter"] = window.seconds_filter
        flat["seconds/rollout"] = decided - max(entered, window.issued_at) - window.seconds_filter
        flat["loss_scale"] = self._scale(decision)
        kept = [window.groups[d.group_id] for d in decision.kept]
        flat["staleness_max"], flat["staleness_mean"] = self._staleness(kept)
        self.scoring.offer(step, self.fleet.bundle, window.played())
        flat |= await self.decomposing.measure(step, self.admission.version, window.played())
        measured = time.time()
        self.journal.busy(decided, measured)
        report = await self._train(step, kept, decision)
        trained = time.time()
        published = report is not None and report.updated
        if published:
            flat |= await self._publish(self.admission.version + 1)
        self.admission.complete(step, published)
        del self.windows[step]
        await self.archiving.begin(decision, window.played())
        self._issue()
        flat |= self._learner_figures(report, trained - measured)
        flat["seconds/publish"] = time.time() - trained
        self._stop_early(step, self.early_stop.step(self._spread(window)))
        if self.validation.due(step, last=step == self.config.loop.steps):
            flat |= await self._validate(step)
        drained = await self._drain() if step == self.last_step else 0.0
        await self.journal.collect_spans(self.fleet)
        self._record(step, flat, began + drained)
        await self._upkeep(step)

    async def _drain(self) -> float:
        """Waits for the scoring under way; returns the seconds, which are no part of a step."""
        started = time.time()
        if self._stop.is_set():  # so that the scorer has the cores to itself
            await self._cancel_plays()
        await self.scoring.drain()
        return time.time() - started

    async def _upkeep(self, step: int) -> None:
        """A checkpoint where one is due. It follows the step's record, so that no resumed run lacks one, and its
        seconds are reported with the next step."""
        loop = self.config.loop
        if step % loop.checkpoint_every == 0 or step == loop.steps or self.state.best_step == step:
            started = time.time()
            open_tickets = [pack_ticket(t) for w in self.windows.values() for t in w.tickets]
            await self._checkpoint(step, open_tickets)
            self.journal.carried["seconds/checkpoint"] = time.time() - started

    async def _until_stopped(self, work: Awaitable[T]) -> T:
        """Awaits `work` unless the run is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        done, _ = await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task in done:
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise Stopped

    # -- tickets and windows -------------------------------------------------------------------------------------

    def _issue(self) -> None:
        while self.admission.open():  # after a stop too: what is cancelled then is played after a resume
            step = self.admission.issue()
            self._start(step, self.source.take(step, self.config.loop.prompts))

    def _reissue(self, tickets: list[Ticket]) -> None:
        """Plays the tickets that were open when the checkpoint was written."""
        while self.admission.open() and any(t.step == self.admission.next_step for t in tickets):
            step = self.admission.issue()
            self._start(step, [t for t in tickets if t.step == step])

    def _start(self, step: int, tickets: list[Ticket]) -> None:
        window = self.windows.setdefault(step, Window(step, time.time()))
        for ticket in tickets:
            self.ledger.issue(ticket.ticket_id)
            window.tickets.append(ticket)
            window.plays.append(asyncio.create_task(self._play(window, ticket)))

    async def _play(self, window: Window, ticket: Ticket) -> PlayedGroup:
        group = await self.play.group(ticket)
        window.groups[ticket.ticket_id] = group
        self.ledger.move(ticket.ticket_id, BUFFERED)
        await self.filtering.admit([group])
        return group

    async def _decide(self, window: Window) -> StepDecision:
        """Waits for the step's tickets, refill rounds included; moves them in the ledger as the filter decided."""
        rounds = 0
        while True:
            await asyncio.gather(*window.plays)
            final = not self.config.filter.refill or rounds >= self.config.filter.max_refill_rounds
            asked = time.time()
            decision = await self.filtering.close(window.step, final, self.config.loop.prompts)
            window.seconds_filter += time.time() - asked
            if final or decision.wanted == 0:
                break
            rounds += 1
            self._start(window.step, self.source.take(window.step, decision.wanted, len(window.tickets)))
        for item in decision.kept:
            self.ledger.move(item.group_id, KEPT_WAITING)
        for item in decision.dropped:
            self.ledger.move(item.group_id, DROPPED, item.code)
        for item in decision.refused:
            self.ledger.move(item.group_id, FAILED, _failure(window.groups[item.group_id], item))
        return decision

    # -- learner and weights -------------------------------------------------------------------------------------

    async def _train(self, step: int, kept: list[PlayedGroup], decision: StepDecision) -> StepReport | None:
        if not kept:
            self.say(f"step {step}: no signal in {len(decision.decisions)} groups; no update")
            if decision.action == "abort":
                self._end_with(step, "no signal: filter.on_no_signal=abort, or filter.no_signal_limit was reached")
            return None
        ids = [g.ticket.ticket_id for g in kept]
        for ticket_id in ids:
            self.ledger.move(ticket_id, TRAINING)
        started = time.time()
        tables, scale = [g.table for g in kept], self._scale(decision)
        report = await asyncio.to_thread(self.fleet.learner.train_step, step, tables, ids, scale)
        ended = time.time()
        self.journal.event("learner", "call", started, ended, step=step)
        worked = sum(seconds for part, seconds in report.seconds.items() if part != "fetch")
        self.journal.worked("learner", ended - worked, ended)
        for ticket_id in ids:
            self.ledger.move(ticket_id, FAILED if report.refused else TRAINED, "refused_by_learner")
        self._count_refusal(step, report.refused)
        self.state.optimizer_steps += report.optimizer_steps
        return report

    def _count_refusal(self, step: int, refused: str | None) -> None:
        """Steps refused in a row for non-finite values end the run at `learner.max_bad_steps`."""
        self.bad_steps = self.bad_steps + 1 if refused else 0
        if refused:
            self.say(f"step {step}: the learner refused the update: {refused}")
        if self.bad_steps >= self.config.learner.max_bad_steps:
            self._end_with(step, f"{self.bad_steps} steps in a row refused (learner.max_bad_steps); last: {refused}")

    def _scale(self, decision: StepDecision) -> float:
        return loss_scale(self.config.learner.objective.loss_scale, decision, self.config.filter.rho)

    async def _publish(self, version: int) -> dict[str, float]:
        """Makes a version and loads it into every rollout worker."""
        started = time.time()
        learner, dtype = self.fleet.learner, self.config.rollout.dtype
        bundle: WeightBundle = await asyncio.to_thread(learner.publish, version, dtype)
        reports = await self.fleet.update_workers(bundle)
        self.journal.event("rollout", "weights", started, time.time(), version=version, checksum=bundle.checksum)
        return publication_figures(bundle) | update_figures(reports)

    # -- validation, checkpoints, figures ------------------------------------------------------------------------

    async def _validate(self, step: int) -> dict[str, float]:
        started = time.time()
        measured = self.validation.measure(step)
        # A stop finishes the step in training, its validation included: the resumed run has the same figures.
        flat = await (measured if step else self._until_stopped(measured))
        self.journal.busy(started, time.time())
        self._stop_early(step, self.early_stop.validation(flat["validation/success"]))
        self.journal.last |= flat
        if step == 0:
            self.journal.before_training(flat)
        interval = f"[{flat['validation/success_low']:.3f}, {flat['validation/success_high']:.3f}]"
        self.say(f"step {step:4d}  validation success {flat['validation/success']:.3f}  {interval}")
        return flat

    def _stop_early(self, step: int, reason: str | None) -> None:
        if reason:
            self._end_with(step, f"early stop: {reason}")

    def _end_with(self, step: int, reason: str) -> None:
        """Makes this step the last."""
        self.last_step = step
        self.stop(reason)

    async def _checkpoint(self, step: int, open_tickets: list[dict[str, Any]]) -> None:
        started = time.time()
        state = self.state
        state.clock, state.version = self.admission.clock, self.admission.version
        state.cursor, state.open_tickets = self.source.cursor, open_tickets
        state.ledger, state.filter = self.ledger.state(), self.filtering.state
        state.early_stop, state.bad_steps = self.early_stop.state(), self.bad_steps
        vars(state).update(self._scorer_state())
        state.seconds += time.time() - self._started
        self._started = time.time()
        await self.archiving.finish()
        path = checkpoint_dir(self.config.run_dir, step)
        await asyncio.to_thread(self.fleet.learner.save, path.resolve(), dict(vars(state)))
        await asyncio.to_thread(prune, self.config.run_dir, self.config.loop.keep_checkpoints, state.best_step)
        self.journal.event("learner", "checkpoint", started, time.time(), step=step)

    def _scorer_state(self) -> dict[str, Any]:
        scoring = self.scoring
        return {"scorer": scoring.state, "scorer_figures": scoring.pending(), "alarm": scoring.alarm.state()}

    def _decision_figures(self, window: Window, decision: StepDecision) -> dict[str, float]:
        summaries = [g.summary for g in window.played()]
        flat = group_figures(summaries, {d.group_id for d in decision.kept})
        failures: dict[str, float] = {}
        for failure in (f for s in summaries for f in s.failures):
            key = f"failures/{failure.cause}"
            failures[key] = failures.get(key, 0.0) + 1
        return flat | failures | decision.metrics

    def _learner_figures(self, report: StepReport | None, seconds: float) -> dict[str, float]:
        flat = {"seconds/train": seconds, "policy_version": float(self.admission.version)}
        if report is None:
            return flat | {"optimizer_steps": 0.0, "tokens/trained": 0.0}
        flat |= {f"learner/{k}": v for k, v in report.metrics.items()}
        flat |= {f"learner_seconds/{k}": v for k, v in report.seconds.items()}
        return flat | {"optimizer_steps": float(report.optimizer_steps), "tokens/trained": float(report.num_tokens)}

    def _staleness(self, kept: list[PlayedGroup]) -> tuple[float, float]:
        if not kept:
            return 0.0, 0.0
        ages = [self.admission.check_staleness(g.summary.version_min) for g in kept]
        return float(max(ages)), float(np.mean(ages))

    def _spread(self, window: Window) -> float:
        return reward_spread([g.summary for g in window.played()], self.config.validation.early_stop)

    def _record(self, step: int, flat: dict[str, float], began: float) -> None:
        flat |= self.scoring.take_figures(step, flat["reward_mean"])
        flat |= {f"ledger/{state}": float(n) for state, n in self.ledger.counts().items()}
        for state in (DROPPED, FAILED):
            flat |= {f"ledger/{state}/{reason}": float(n) for reason, n in self.ledger.reasons(state).items()}
        flat |= {f"restarts/{name}": float(n) for name, n in self.fleet.take_restarts().items()}
        flat |= {f"up/{name}": float(up) for name, up in self.fleet.up().items()}
        self.journal.step(step, flat, began, self.scoring)

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
    )


def _failure(group: PlayedGroup, decision: Decision) -> str:
    """Why a refused group failed: the commonest failure of its trajectories, or what the filter said."""
    causes = [failure.cause.value for failure in group.summary.failures]
    return max(set(causes), key=causes.count) if causes else decision.code
