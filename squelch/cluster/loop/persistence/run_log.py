"""The records of a run's steps: spans in `events.jsonl`; metrics at `/metrics`, in `metrics.jsonl` and on the terminal.

Invariant: every second belongs to one step. A step's time runs from the record of the previous step to its own record.
A checkpoint follows the record, and an evaluation of the fixed probe before the first step has no record, so their time
belongs to the next step (`carried`).

A step's record waits at most `SPANS_TIMEOUT_S` for the spans of every rollout worker and environment actor. A dead
actor has no spans, and those of a late actor are missing in the metrics; if an actor fails, the run ends and names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from squelch.actors.gpus.metrics import Efficiency
from squelch.cluster.control.actor_errors import Died
from squelch.cluster.control.calls import TAKE_SPANS
from squelch.cluster.fleet.fleet import UP, Fleet
from squelch.cluster.fleet.waiting import outcomes
from squelch.cluster.metrics import WAITED_FOR
from squelch.cluster.runs.step_line import step_line
from squelch.cluster.runs.timing.intervals import clip_intervals, union_seconds
from squelch.kit.archive.writer import Archive
from squelch.kit.metrics.loggers import Loggers
from squelch.kit.process.terminal import columns

Counted = Callable[[], tuple[int, int, str]]
"""How much of the present work is done, of how much (0 if that is not known), and of what. Any thread may
call it."""


@dataclass(frozen=True)
class Work:
    """What the run does at present. `since`: unix seconds."""

    what: str
    since: float
    counted: Counted | None = None


def unseen(_: Work) -> None:
    """Shows nothing."""


TOTALLED = ("tokens/sampled", "tokens/trained", "trajectories", "seconds/step")


class RunLog:
    """The run's metrics and spans. `totals`: sums over the run, which the loop's state keeps; `show` shows the present
    work."""

    def __init__(
        self,
        archive: Archive,
        recorder: Loggers,
        steps: int,
        totals: dict[str, float],
        say: Callable[[str], None],
        show: Callable[[Work], None] = unseen,
    ) -> None:
        self.archive, self.recorder, self.say = archive, recorder, say
        self._show_work, self._work = show, Work("starting", time.time())
        self.steps, self.totals = steps, totals
        self.last: dict[str, float] = {}
        """The newest value of every metric."""
        self.carried: dict[str, float] = {}
        """Metrics that the next step reports."""
        self.recorded: float | None = None
        """When the last step was recorded."""
        self.efficiency = Efficiency()
        self.judge: Callable[[int, dict[str, float]], list[str]] = lambda step, flat: []
        """Takes each record as it is complete, may add metrics to it, and gives lines to print after it."""
        self._spans: list[tuple[float, float]] = []
        self._sampling: list[tuple[float, float]] = []
        self._unknown: list[str] = []

    def doing(self, what: str, counted: Counted | None = None, since: float | None = None) -> None:
        """Shows what the run does from now on."""
        self._work = Work(what, since or time.time(), counted)
        self._show_work(self._work)

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """After the block, the work that was under way before it is shown again."""
        before = self._work
        try:
            yield
        finally:
            self.doing(before.what, before.counted, before.since)

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Appends a span (unix seconds) to `events.jsonl`."""
        self.archive.event(actor, name, start, end, **facts)

    def carry(self, metrics: Mapping[str, float]) -> None:
        """Adds metrics to those that the next step reports."""
        for key, value in metrics.items():
            self.carried[key] = self.carried.get(key, 0.0) + value

    def worked(self, actor: str, start: float, end: float) -> None:
        """Notes that an actor worked from `start` to `end`, so that this time is not counted as orchestration."""
        self.busy(start, end)
        self.event(actor, "work", start, end)

    def busy(self, start: float, end: float) -> None:
        """As `worked`, for actors that record their own spans as events."""
        self._spans.append((start, max(start, end)))  # a clock may be set back meanwhile

    async def collect_spans(self, fleet: Fleet) -> None:
        """Collects from rollout workers and environment actors the times at which they worked since the last step."""
        members = [*fleet.workers.members(*UP), *fleet.players.members(*UP)]
        calls = {member.name: member.actor.call(TAKE_SPANS) for member in members}
        workers = {member.name for member in fleet.workers.members(*UP)}
        for name, spans in (await outcomes(calls)).items():
            if isinstance(spans, BaseException) and not isinstance(spans, (Died, TimeoutError)):
                raise RuntimeError(f"take_spans: {name} failed: {spans}") from spans
            for span in [] if isinstance(spans, BaseException) else spans:
                self.worked(name, *span)
                if name in workers:
                    self._sampling.append((span[0], max(span)))

    def before_training(self, flat: dict[str, float]) -> None:
        """Records the metrics that were measured before the first step."""
        flat = flat | {"total_steps": float(self.steps)}
        self._record(0, flat)

    def scored(self, step: int, flat: dict[str, float]) -> None:
        """Records an earlier scorer step or probe evaluation alone, before the record of the run's last step."""
        self.last |= flat
        self._record(step, flat)

    def began(self, entered: float) -> float:
        """When a step began that the loop entered at `entered` (unix seconds): at the record of the step before."""
        return self.recorded or entered

    def step(self, step: int, flat: dict[str, float], began: float) -> None:
        """Adds the times of a step, which began at `began` (unix seconds), to its metrics, and records them.

        The seconds for which the run's last step waited for the scorer are no part of its time. Orchestration time is
        the time in which no actor generated, trained, scored or stepped an environment.
        """
        ended = time.time()
        busy = union_seconds(clip_intervals(self._spans, began, ended))
        sampling = union_seconds(clip_intervals(self._sampling, began, ended))
        self._spans.clear()
        self._sampling.clear()
        drained = flat.get("wait/coordinator/scorer", 0.0)
        beside = flat.get("seconds/validation", 0.0) + flat.get("seconds/probe", 0.0)
        flat["seconds/step"] = ended - began - beside - drained
        flat["seconds/orchestration"] = ended - began - busy
        flat["tokens/per_second"] = flat["tokens/sampled"] / max(flat["seconds/step"], 1e-9)
        flat |= self.efficiency.metrics(flat, sampling)
        self._say_unknown()
        flat["total_steps"] = float(self.steps)
        flat |= {key: value + flat.get(key, 0.0) for key, value in self.carried.items()}
        flat |= {f"wait/coordinator/{actor}": flat.get(f"seconds/{part}", 0.0) for part, actor in WAITED_FOR.items()}
        flat["wait/coordinator/scorer"] = drained
        self.carried, self.recorded = {}, ended
        self._put(step, flat)

    def _say_unknown(self) -> None:
        """Says once of which GPUs the peak is not known, so that they have no MFU."""
        new = [name for name in self.efficiency.unknown() if name not in self._unknown]
        for name in new:
            self.say(f"no MFU: the peak of {name} is not known (squelch/actors/gpus/peaks.py)")
        self._unknown += new

    def _put(self, step: int, flat: dict[str, float]) -> None:
        for key in TOTALLED:
            self.totals[key] = self.totals.get(key, 0.0) + flat.get(key, 0.0)
        self._record(step, flat, step_line(step, self.steps, flat, columns()))
        self.last |= flat

    def _record(self, step: int, flat: dict[str, float], *lines: str) -> None:
        """Exports and archives the metrics, and prints these lines and what there is to say of them."""
        told = self.judge(step, flat)
        self._show(step, flat)
        self.archive.metrics(step, flat)
        for line in (*lines, *told):
            self.say(line)

    def _show(self, step: int, flat: dict[str, float]) -> None:
        """Exports the metrics. If the registry refuses one, the component that reported it has a bug."""
        try:
            self.recorder.step(step, flat)
        except ValueError as error:
            raise RuntimeError(f"figures of step {step}: {error}") from error
