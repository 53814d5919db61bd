"""The coordinator: issues tickets, waits for windows, has them filtered and learned from, publishes the weights.

One step, and who waits for whom:

    part       the coordinator waits for   unblocked by                on time-out
    window     every ticket of the step    environment actors          the ticket is replayed or fails (cluster.play)
    filter     the decisions               filter service              it is replaced; the step's groups go in again
    train      every learner rank          learner                     the run ends; the late rank is named
    publish    every rollout worker        the worker's parity probe   the run ends; the late worker is named
    validate   the fixed tasks             environment actors          the run ends; the actor is named

Nothing waits for the scorer, the archive's disk or the metrics endpoint; the archive is awaited one step later.
A step's tickets are issued as `cluster.admission` allows, so with `max_staleness` > 0 later steps are played
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
from ray.exceptions import RayActorError

from actors.archive import Archive
from actors.exporter import Recorder
from actors.filtering import Decision, StepDecision, loss_scale
from actors.messages import StepReport, UpdateReport, WeightBundle
from actors.records import Ticket
from cluster.admission import Admission, TicketSource
from cluster.config import RunConfig
from cluster.errors import UserError
from cluster.figures import (
    EarlyStop,
    clip_intervals,
    group_figures,
    reward_spread,
    union_seconds,
)
from cluster.fleet import Fleet, outcomes, within
from cluster.ledger import BUFFERED, DROPPED, FAILED, KEPT_WAITING, TRAINED, TRAINING, Ledger
from cluster.play import Play, PlayedGroup, fetch
from cluster.scoring import Scoring
from cluster.state import LoopState, checkpoint_dir, checkpoints, pack_ticket, prune
from cluster.validation import Validation

log = logging.getLogger(__name__)
T = TypeVar("T")
FILTER_TIMEOUT_S = 60.0
WAITS = {"rollout": "environment", "filter": "filter", "train": "learner", "publish": "rollout"}
"""Whom the coordinator waits for in each part of a step."""


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
        loop, environment = config.loop, config.environment
        self.config, self.fleet, self.archive, self.recorder, self.say = config, fleet, archive, recorder, say
        self.state = state
        self.admission = Admission(loop.max_staleness, loop.steps, state.clock, state.version)
        self.ledger = Ledger.restore(state.ledger)
        self.source = TicketSource(
            environment.name,
            environment.options,
            environment.train_seed,
            config.sampling.group_size,
            config.seed,
            config.sampling.temperature,
            state.cursor,
        )
        self.early_stop = EarlyStop(config.validation.early_stop, config.validation.collapse_threshold)
        if state.early_stop:
            self.early_stop.restore(state.early_stop)
        self.play = Play(config, fleet)
        self.validation = Validation(config, self.play, state)
        self.scoring = Scoring(config, fleet, self._event)
        self.windows: dict[int, Window] = {}
        self.filter_state: dict[str, Any] | None = state.filter
        self.stop_reason: str | None = None
        self.bad_steps = 0
        self._admitted: set[str] = set()
        """Groups that the present filter service has been handed."""
        self._spans: list[tuple[float, float]] = []
        self.last: dict[str, float] = {}
        self._stop = asyncio.Event()
        self._archiving: asyncio.Task[None] | None = None
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
        await self._end()

    # -- beginning and end ---------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self.filter_state:
            await self._filter("restore", self.filter_state)
        await self.scoring.restore(self.state.scorer)
        await self._publish(self.admission.version)
        if self.validation.due(0, last=False) and self.admission.clock == 0:
            await self._validate(0)
        self._reissue(self.state.tickets())
        self._issue()

    async def _end(self) -> None:
        for window in self.windows.values():
            for play in window.plays:
                play.cancel()
            await asyncio.gather(*window.plays, return_exceptions=True)
        open_tickets = [pack_ticket(t) for w in self.windows.values() for t in w.tickets]
        await self._finish_archiving()
        await self.scoring.drain()
        clock = self.admission.clock
        if clock > 0 and (checkpoints(self.config.run_dir) or [(0, None)])[-1][0] != clock:
            await self._checkpoint(clock, open_tickets)
        self.ledger.cancel_open()

    # -- one step ------------------------------------------------------------------------------------------------

    async def _step(self, step: int) -> None:
        began = time.time()
        window = self.windows[step]
        decision = await self._until_stopped(self._decide(window))
        decided = time.time()
        flat = self._decision_figures(window, decision)
        flat["seconds/filter"] = window.seconds_filter
        flat["seconds/rollout"] = decided - max(began, window.issued_at) - window.seconds_filter
        flat["loss_scale"] = self._scale(decision)
        kept = [window.groups[d.group_id] for d in decision.kept]
        flat["staleness_max"], flat["staleness_mean"] = self._staleness(kept)
        self.scoring.offer(step, self.fleet.bundle, list(window.groups.values()))
        report = await self._train(step, kept, decision)
        trained = time.time()
        published = report is not None and report.updated
        if published:
            flat |= await self._publish(self.admission.version + 1)
        self.admission.complete(step, published)
        del self.windows[step]
        self.filter_state = _closed_steps(
            await self._filter("state"), {t for w in self.windows.values() for t in w.groups}
        )
        await self._archive(window, decision)
        self._issue()
        flat |= self._learner_figures(report, trained - decided)
        flat["seconds/publish"] = time.time() - trained
        self._stop_early(self.early_stop.step(self._spread(window)))
        flat |= await self._upkeep(step)
        await self._collect_spans()
        self._record(step, flat, began)

    async def _upkeep(self, step: int) -> dict[str, float]:
        """Validation and checkpoint where they are due."""
        flat: dict[str, float] = {}
        loop = self.config.loop
        last = step == loop.steps
        if self.validation.due(step, last):
            flat |= await self._validate(step)
        if step % loop.checkpoint_every == 0 or last or self.state.best_step == step:
            started = time.time()
            open_tickets = [pack_ticket(t) for w in self.windows.values() for t in w.tickets]
            await self._checkpoint(step, open_tickets)
            flat["seconds/checkpoint"] = time.time() - started
        return flat

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
        while self.admission.open() and not self._stop.is_set():
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
        await self._admit([group])
        return group

    async def _admit(self, groups: list[PlayedGroup]) -> None:
        """Hands groups to the filter service, each once for as long as that service lives."""
        new = [g.summary for g in groups if g.summary.group_id not in self._admitted]
        self._admitted |= {summary.group_id for summary in new}
        if new:
            await self._filter("admit", new)

    async def _decide(self, window: Window) -> StepDecision:
        """Waits for the step's tickets, refill rounds included; moves them in the ledger as the filter decided."""
        rounds = 0
        while True:
            await asyncio.gather(*window.plays)
            final = not self.config.filter.refill or rounds >= self.config.filter.max_refill_rounds
            asked = time.time()
            decision: StepDecision = await self._filter("close", window.step, final)
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

    async def _filter(self, method: str, *arguments: Any) -> Any:
        """Calls the filter service; a dead one is replaced and gets the state and groups it held."""
        handle = self.fleet.filter
        try:
            call = getattr(handle, method).remote(*arguments)
            return (await within({"filter": call}, FILTER_TIMEOUT_S, method))["filter"]
        except RuntimeError as error:
            if isinstance(error.__cause__, ValueError):  # what the filter refuses is the user's to mend
                raise UserError(f"filter: {str(error.__cause__).strip().splitlines()[-1]}") from error
            if not isinstance(error.__cause__, RayActorError):
                raise
            if self.fleet.filter is handle:
                self._admitted.clear()
                await self.fleet.replace_filter(self.filter_state, str(error))
                await self._admit([g for w in self.windows.values() for g in w.groups.values()])
            return await self._filter(method, *arguments) if method != "admit" else []

    # -- learner and weights -------------------------------------------------------------------------------------

    async def _train(self, step: int, kept: list[PlayedGroup], decision: StepDecision) -> StepReport | None:
        if not kept:
            self.say(f"step {step}: no signal in {len(decision.decisions)} groups; no update")
            if decision.action == "abort":
                self.stop("no signal: filter.on_no_signal=abort, or filter.no_signal_limit was reached")
            return None
        ids = [g.ticket.ticket_id for g in kept]
        for ticket_id in ids:
            self.ledger.move(ticket_id, TRAINING)
        started = time.time()
        tables, scale = [g.table for g in kept], self._scale(decision)
        report = await asyncio.to_thread(self.fleet.learner.train_step, step, tables, ids, scale)
        ended = time.time()
        self._event("learner", "call", started, ended, step=step)
        worked = sum(seconds for part, seconds in report.seconds.items() if part != "fetch")
        self._span("learner", (ended - worked, ended))
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
            self.stop(f"{self.bad_steps} steps in a row refused (learner.max_bad_steps); last: {refused}")

    def _scale(self, decision: StepDecision) -> float:
        return loss_scale(self.config.learner.objective.loss_scale, decision, self.config.filter.rho)

    async def _publish(self, version: int) -> dict[str, float]:
        """Makes a version and loads it into every rollout worker."""
        started = time.time()
        learner, dtype = self.fleet.learner, self.config.rollout.dtype
        bundle: WeightBundle = await asyncio.to_thread(learner.publish, version, dtype)
        reports = await self.fleet.update_workers(bundle)
        self._event("rollout", "weights", started, time.time(), version=version)
        return {"weights/bytes": float(bundle.num_bytes)} | _update_figures(reports)

    # -- validation, checkpoints, figures ------------------------------------------------------------------------

    async def _validate(self, step: int) -> dict[str, float]:
        started = time.time()
        flat = await self._until_stopped(self.validation.measure(step))
        self._spans.append((started, time.time()))
        self._stop_early(self.early_stop.validation(flat["validation/success"]))
        self.last |= flat
        if step == 0:
            self.recorder.step(0, flat | {"total_steps": float(self.config.loop.steps)})
            self.archive.metrics(0, flat | {"total_steps": self.config.loop.steps})
        interval = f"[{flat['validation/success_low']:.3f}, {flat['validation/success_high']:.3f}]"
        self.say(f"step {step:4d}  validation success {flat['validation/success']:.3f}  {interval}")
        return flat

    def _stop_early(self, reason: str | None) -> None:
        if reason:
            self.stop(f"early stop: {reason}")

    async def _checkpoint(self, step: int, open_tickets: list[dict[str, Any]]) -> None:
        started = time.time()
        state = self.state
        state.clock, state.version = self.admission.clock, self.admission.version
        state.cursor, state.open_tickets = self.source.cursor, open_tickets
        state.ledger, state.filter = self.ledger.state(), self.filter_state
        state.scorer, state.early_stop = self.scoring.state, self.early_stop.state()
        state.seconds += time.time() - self._started
        self._started = time.time()
        await self._finish_archiving()
        path = checkpoint_dir(self.config.run_dir, step)
        await asyncio.to_thread(self.fleet.learner.save, path.resolve(), dict(vars(state)))
        await asyncio.to_thread(prune, self.config.run_dir, self.config.loop.keep_checkpoints, state.best_step)
        self._event("learner", "checkpoint", started, time.time(), step=step)

    async def _archive(self, window: Window, decision: StepDecision) -> None:
        """Starts writing the step's groups; the part before must be on disk by now."""
        await self._finish_archiving()
        self._archiving = asyncio.create_task(self._write(window, decision))

    async def _write(self, window: Window, decision: StepDecision) -> None:
        started = time.time()
        tables = await fetch([window.groups[t.ticket_id] for t in window.tickets])
        decided = {d.group_id: d for d in decision.decisions}
        await asyncio.to_thread(self.archive.write_groups, window.step, tables, decided, decision.filter)
        self._event("archive", "write", started, time.time(), step=window.step)

    async def _finish_archiving(self) -> None:
        if self._archiving is not None:
            writing, self._archiving = self._archiving, None
            await writing

    def _decision_figures(self, window: Window, decision: StepDecision) -> dict[str, float]:
        summaries = [g.summary for g in window.groups.values()]
        flat = group_figures(summaries, {d.group_id for d in decision.kept})
        failures: dict[str, float] = {}
        for reason in (r for s in summaries for r in s.failures):
            key = f"failures/{reason.partition(':')[0]}"
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
        return reward_spread([g.summary for g in window.groups.values()], self.config.validation.early_stop)

    def _record(self, step: int, flat: dict[str, float], began: float) -> None:
        ended = time.time()
        flat["seconds/step"] = ended - began - flat.get("seconds/validation", 0.0)
        flat["seconds/orchestration"] = self._orchestration(began, ended)
        self._spans.clear()
        flat["tokens/per_second"] = flat["tokens/sampled"] / flat["seconds/step"]
        flat |= self.scoring.take_figures()
        flat |= {f"ledger/{state}": float(n) for state, n in self.ledger.counts().items()}
        for state in (DROPPED, FAILED):
            flat |= {f"ledger/{state}/{reason}": float(n) for reason, n in self.ledger.reasons(state).items()}
        flat["total_steps"] = float(self.config.loop.steps)
        flat |= {f"restarts/{name}": float(n) for name, n in self.fleet.take_restarts().items()}
        flat |= {f"up/{name}": float(up) for name, up in self.fleet.up().items()}
        for part, party in WAITS.items():
            flat[f"wait/coordinator/{party}"] = flat.get(f"seconds/{part}", 0.0)
        for key in ("tokens/sampled", "tokens/trained", "trajectories", "seconds/step"):
            self.state.totals[key] = self.state.totals.get(key, 0.0) + flat.get(key, 0.0)
        self.last |= flat
        self.recorder.step(step, flat)
        self.archive.metrics(step, flat)
        self.say(step_line(step, self.config.loop.steps, flat))

    async def _collect_spans(self) -> None:
        """When rollout workers sampled and environment actors stepped, since the last step."""
        actors = {**self.fleet.workers, **self.fleet.players}
        calls = {name: actor.take_spans.remote() for name, actor in actors.items()}
        for name, spans in (await outcomes(calls, FILTER_TIMEOUT_S, "take_spans")).items():
            for span in [] if isinstance(spans, RayActorError) else spans:
                self._span(name, span)

    def _span(self, actor: str, span: tuple[float, float]) -> None:
        self._spans.append(span)
        self._event(actor, "work", *span)

    def _orchestration(self, began: float, ended: float) -> float:
        """Seconds of the interval in which nothing generated, trained, scored or stepped an environment."""
        spans = [*self._spans, *self.scoring.spans(ended)]
        return ended - began - union_seconds(clip_intervals(spans, began, ended))

    def _event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        self.archive.event(actor, name, start, end, **facts)


def _closed_steps(state: dict[str, Any], open_groups: set[str]) -> dict[str, Any]:
    """The filter's state without the steps still open: their groups go in again after a restart or a resume."""
    recent = [item for item in state.get("recent", []) if item[0] not in open_groups]
    return {**state, "steps": {}, **({"recent": recent} if "recent" in state else {})}


def _failure(group: PlayedGroup, decision: Decision) -> str:
    """Why a refused group failed: the commonest failure of its trajectories, or what the filter said."""
    causes = [reason.partition(":")[0] for reason in group.summary.failures]
    return max(set(causes), key=causes.count) if causes else decision.code


def _update_figures(reports: list[UpdateReport]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for report in reports:
        key = f"weights/{report.worker}"
        flat |= {
            f"{key}/seconds_paused": report.seconds_paused,
            f"{key}/seconds_loaded": report.seconds_loaded,
            f"{key}/seconds_probe": report.seconds_probe,
            f"{key}/parity": report.parity,
            f"{key}/parity_max": report.parity_max,
            f"{key}/checksum_ok": 1.0,
            f"{key}/version": float(report.version),
        }
    return flat


def step_line(step: int, steps: int, flat: dict[str, float]) -> str:
    """One line a step for the terminal."""
    parts = [
        f"step {step:4d}/{steps}",
        f"success {flat['success']:.3f}",
        f"reward {flat['reward_mean']:+.3f}",
        f"kept {flat.get('kept_groups', 0):.0f}/{flat.get('num_groups', 0):.0f}",
    ]
    if flat.get("kept_mass") is not None:
        parts.append(f"mass {flat['kept_mass']:.2f}")
    if "first_turn/retrieval_accuracy" in flat:
        accuracy, chance = flat["first_turn/retrieval_accuracy"], flat["first_turn/retrieval_chance"]
        parts.append(f"retrieval {accuracy:.2f} (chance {chance:.2f})")
    parts.append(f"{flat['seconds/step']:.2f} s")
    return "  ".join(parts)
