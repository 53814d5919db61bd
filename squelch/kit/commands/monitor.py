"""`squelch monitor`: the diagnosis of a run of another trainer, live, from the files that it writes.

    following.py ──step, checkpoint──▶ monitored.py ──metrics of squelch.Monitor──▶ /metrics, a line, the state

It serves the metric names of `squelch train` on the same ports, so that its dashboards and alerts show the run. Each
new step moves `squelch_step`; a scored one also the mean reward, MI, D, the regime and the alarms.

Invariants:

- The trainer's files are only read. What is written is the state (`--state`), after each decided step: averages, alarms
  and the last step, so that a monitor that is started again goes on after it.
- A step that cannot be scored is skipped with its reason, and nothing but bad arguments or a signal ends the monitor
  before `--idle`: a damaged file, a checkpoint that is pruned while it is read, a model that does not fit the rows. A
  file or checkpoint that cannot be read is tried again until it has not changed for `SETTLE_S`.
- A decided step is not scored again. If the trainer writes one again, that is said once.
- It waits for the trainer alone, at most `--wait` for a checkpoint and `--idle` for anything new, and says so.
- A signal ends it at once (`kit.process.signals`), with 128 + signal; the step under way is scored again by the next
  start.

One process, one model at a time; no Ray, no vLLM. torch is loaded with the first step that is ready.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.base.package import installed_version, require_scoring
from squelch.kit.commands.following import Follower, Look, Ready
from squelch.kit.commands.score import NotRead, where
from squelch.kit.findings.finder import Change, Findings
from squelch.kit.findings.words import ALARMS, plain, step_lines
from squelch.kit.process.signals import Interrupted, listening
from squelch.kit.process.terminal import duration, say
from squelch.kit.text.answer_start import MARKED
from squelch.kit.untrusted.files import MIB, is_file, is_folder, read_bytes, state
from squelch.kit.untrusted.text import parse_object

if TYPE_CHECKING:
    from squelch.kit.api.monitor import Monitor
    from squelch.kit.metrics.exporter import Recorder

STATE = "squelch-monitor.state"
"""No suffix of a file of samples."""
MAX_STATE = 64 * MIB
FORM = 1
"""Form of the state's file."""
SETTLE_S = 60.0
"""Seconds since its last change for which a file or checkpoint that cannot be read may still be under way."""
SHOWN = (
    ("first_turn/mi_seq_est", "MI", " nats"),
    ("completion/dependence", "prompt dependence of the completion", " nats"),
    ("probe/link/dependence", "D", " nats per answer"),
    ("probe/link/dependence_share", "D / surprise", ""),
)
"""Metrics of a scored step's line: key, name and unit."""


def run(args: argparse.Namespace) -> int:
    """Follows the run; returns 0 once nothing new came for `--idle`, or 128 + signal."""
    _check(args)
    require_scoring()  # before the first step is waited for
    session = Session(args)
    try:
        with listening(), session.serving():
            session.follow()
    except Interrupted as stop:
        session.tell("stopped", f"stopped by {stop.signal.name}", signal=stop.signal.name)
        return 128 + stop.signal
    return 0


def _check(args: argparse.Namespace) -> None:
    with bad_files_are_the_users():
        for flag, path in (("DIR", args.folder), ("--model", args.model), ("--initial", args.initial)):
            if path is not None and not is_folder(path):
                raise UserError(f"{flag} {path} is no folder")
        if is_file(args.model / "config.json"):
            raise UserError(
                f"--model {args.model} is one model; give the folder that holds the trainer's checkpoints, and the "
                "model from which training began as --initial"
            )


class Session:
    """One run of the command."""

    def __init__(self, args: argparse.Namespace) -> None:
        from squelch.kit.api.monitor import Monitor

        self.args = args
        self.path: Path = args.state or args.folder / STATE
        where(args)
        self.settings = {
            "reasoning": args.reasoning,
            "markers": list(args.markers),
            "answer": args.answer,
            "temperature": args.temperature,
            "links": args.links,
            "max_prompts": args.max_prompts,
            "seed": args.seed,
        }
        """What the averages depend on, besides the rows."""
        with as_user_error():
            self.monitor: Monitor = Monitor(
                None, token_budget=args.token_budget, **{**self.settings, "markers": tuple(args.markers)}
            )
        self.follower = Follower(
            args.folder, args.model, args.initial, args.format, args.every, args.wait, settled=args.once
        )
        self.findings = Findings()
        self.recorder: Recorder | None = None
        self.reported: int | None = None
        """The newest step at `/metrics`."""
        self._said: str | None = None
        self._said_again = False
        self._restore()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Scores until nothing new came for `--idle`; with `--once`, what is there."""
        news = time.monotonic()
        while True:
            look = self.follower.look(time.monotonic())
            self._tell_again(look)
            self._tell_skipped(look)
            if look.ready is not None and self._score(look.ready):
                news = time.monotonic()
                continue
            if look.skipped or (look.newest is not None and look.newest != self.reported):
                news = time.monotonic()
            self._show_progress(look)
            if look.waiting is not None:
                self._tell_waiting(look)
            if self.args.once:
                return
            if time.monotonic() - news >= self.args.idle:
                self.tell("ended", f"nothing new for {duration(self.args.idle)} (--idle)")
                return
            time.sleep(self.args.poll)

    def _score(self, ready: Ready) -> bool:
        """Scores a step. Returns whether it is decided: False if what cannot be read may be under way."""
        from squelch.kit.commands.monitored import observe

        try:
            metrics, notes, view = observe(self.monitor, ready, self.args)
        except UserError as error:
            read = (*ready.files, *ready.model.glob("*"))
            fresh = max((found.st_mtime for path in read if (found := state(path))), default=0.0)
            if isinstance(error, NotRead) and abs(time.time() - fresh) < SETTLE_S:
                self._tell_waiting(Look(waiting=f"the end of step {ready.step}: {error}"))
                return False
            self.follower.decided(ready.step, scored=False)
            self._tell_skip([ready.step], str(error))
            self._save()
            return True
        self.follower.decided(ready.step, scored=True)
        found, changes = self.findings.step(replace(view, metrics={**view.metrics, **metrics}))
        metrics |= found
        self._save()
        if self.recorder is not None:
            self.reported = max(ready.step, self.reported or ready.step)
            self.recorder.step(self.reported, metrics)
        self._said = None
        self._tell_scored(ready, metrics, notes)
        self._tell_found(ready.step, changes)
        return True

    # -- /metrics ----------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serves `/metrics` meanwhile, unless `--once` is given."""
        if self.args.once:
            yield
            return
        from squelch.kit.api.metrics import REGISTRY
        from squelch.kit.metrics.served import serve
        from squelch.kit.metrics.settings import RecorderConfig

        settings = RecorderConfig(host=self.args.host, port=self.args.port)
        names = {"run": self.args.folder.resolve().name, "environment": "files", "filter": "none"}
        with as_user_error():
            recorder = serve(settings, REGISTRY, installed_version(), **names)
        with closing(recorder):
            self.recorder = recorder
            self.tell("serving", f"metrics at {recorder.url}", url=recorder.url)
            try:
                yield
            except Interrupted:
                recorder.set("squelch_run_ended", 1)
                raise
            recorder.set("squelch_run_ended", 1)

    def _show_progress(self, look: Look) -> None:
        """Moves `squelch_step` on, also where steps are not scored; back if a step that was none is skipped."""
        if self.recorder is not None and look.newest is not None and look.newest != self.reported:
            self.reported = look.newest
            self.recorder.step(look.newest, {})

    # -- the state ---------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        with bad_files_are_the_users():
            if not is_file(self.path):
                return
            found = parse_object(read_bytes(self.path, MAX_STATE), str(self.path))
        before = found.get("settings")
        before = {"reasoning": MARKED, "answer": "", **before} if isinstance(before, dict) else before
        if found.get("form") != FORM or before != self.settings:
            raise UserError(
                f"{self.path} is the state of a monitor with other settings ({found.get('settings')}); give those, or "
                "another file as --state to begin anew"
            )
        try:
            self.monitor.restore(found["monitor"])
            if "findings" in found:  # the state of an earlier release has none
                self.findings.restore(found["findings"])
            self.follower.last, self.follower.due = found["last"], found["due"]
            self.follower.skipped, self.follower.written = set(found.get("skipped", ())), found.get("written")
            self.follower.held, self.follower.starts = dict(found.get("held", {})), dict(found.get("starts", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.path} holds no state of a monitor: {error!r}; give another as --state") from error
        where = f"after step {found['last']}" if found["last"] is not None else "without a scored step"
        self.tell("continued", f"goes on {where} ({self.path})", step=found["last"])

    def _save(self) -> None:
        follower = self.follower
        found = {"form": FORM, "settings": self.settings, "last": follower.last, "due": follower.due}
        found |= {"skipped": sorted(follower.skipped), "written": follower.written}
        found |= {"held": follower.held, "starts": follower.starts}
        found |= {"monitor": self.monitor.state(), "findings": self.findings.state()}
        with as_user_error(OSError, about=f"--state {self.path} cannot be written"):
            write_whole(self.path, json.dumps(found))

    # -- lines -------------------------------------------------------------------------------------------------------

    def tell(self, event: str, text: str, **facts: Any) -> None:
        """One line: the text, or a JSON object."""
        say(json.dumps({"event": event, **facts, "text": text}) if self.args.json else text)

    def _tell_waiting(self, look: Look) -> None:
        if look.waiting != self._said:
            self._said = look.waiting
            bound = "" if look.left_s is None else f", at most {duration(look.left_s)} (--wait)"
            self.tell("waiting", f"waiting for {look.waiting}{bound}", left_s=look.left_s)

    def _tell_again(self, look: Look) -> None:
        if look.again is None or self._said_again:
            return
        self._said_again = True
        last = self.follower.last
        decided = "skipped steps" if last is None else f"steps up to {last}"
        self.tell(
            "again",
            f"training seems to have started again: {look.again.name} was written after its steps were decided. "
            f"The {decided} are not scored again; to follow this training from its start, end the monitor and remove "
            f"{self.path}",
            file=str(look.again),
            last=last,
        )

    def _tell_skipped(self, look: Look) -> None:
        reasons: dict[str, list[int]] = {}
        for one in look.skipped:
            reasons.setdefault(one.reason, []).append(one.step)
        for reason, steps in reasons.items():
            self._tell_skip(steps, reason)
        if look.skipped:
            self._save()

    def _tell_skip(self, steps: list[int], reason: str) -> None:
        named = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, {steps[0]} to {steps[-1]}"
        self.tell("skipped", f"skipped {named}: {reason}", steps=steps, reason=reason)

    def _tell_scored(self, ready: Ready, metrics: Mapping[str, float], notes: list[str]) -> None:
        shown = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self.tell(
            "scored",
            scored_text(ready, metrics),
            step=ready.step,
            checkpoint=ready.checkpoint,
            metrics=shown,
            notes=notes,
        )
        for note in () if self.args.json else notes:
            say(f"  {note}")
        for alarm in self.monitor.alarms:
            self.tell("alarm", f"step {ready.step}: {alarm}", step=ready.step)

    def _tell_found(self, step: int, changes: Sequence[Change]) -> None:
        """What changed of the findings: one line as text, all of them as JSON."""
        told = [change for change in changes if change.finding.name not in ALARMS]
        if not self.args.json:
            for line in step_lines(told, lambda _: "", "--json prints them"):
                say(f"step {step}: {line}")
            return
        for change in told:
            self.tell("finding", change.finding.says, step=step, change=change.kind, finding=plain(change.finding))


def scored_text(ready: Ready, metrics: Mapping[str, float]) -> str:
    """The line of a scored step."""
    regimes = [key.rpartition("/")[2] for key, value in metrics.items() if "/regime/" in key and value == 1]
    unnamed = "no regime" if "completion/dependence" in metrics else "regime not known"
    parts = [f"step {ready.step} under {ready.checkpoint}: {regimes[0] if regimes else unnamed}"]
    for key, name, unit in SHOWN:
        if math.isfinite(value := metrics.get(key, math.nan)):
            low, high = (metrics.get(f"{key}_{end}", math.nan) for end in ("low", "high"))
            interval = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else ""
            parts.append(f"{name} {value:.2f}{interval}{unit}")
    parts.append(f"{metrics['first_turn/num_prompts']:.0f} prompts")
    return "; ".join(
        [*parts, f"{metrics['first_turn/num_excluded']:.0f} rows left out, {metrics['seconds/score']:.0f} s"]
    )
