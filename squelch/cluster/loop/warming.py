"""A supervised warm-up of a model: the learner's ranks learn from demonstrations, rollout workers and environment
actors measure the result.

    actor                what the warm-up waits for              when it dies, or is late
    learner ranks        each optimizer step; start, save        the warm-up ends and names it; repeated, it continues
                                                                 from its last checkpoint
    rollout workers      a check's weights, then its play        replaced; the tasks are retried
    environment actors   a check's play                          replaced; the tasks are retried
    disk                 checkpoints, the finished model         the warm-up ends and names the path
    (a signal)           -                                       the step under way is finished and saved

One thing happens at a time: steps, then a check of the weights after them, then the next steps. A check publishes the
weights to the rollout workers as a training step does, with its checksum and parity probe, and plays fixed validation
tasks with several samples each. Without an environment to play there are neither workers nor actors, and a check is the
held-out loss alone.

    OUT.warmup/               during the warm-up; removed at the end
      checkpoints/step-N/     the newest checkpoint; its loop.json holds `Progress`
      log/
    OUT/                      once finished: a Hugging Face folder
      squelch_warmup.json     settings, origin, every check

Invariants: OUT is complete or not there. An interrupted warm-up continues bit by bit as it would have gone on, on the
same number of ranks and threads; one of other settings is refused.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import task_of
from squelch.cluster.control.calls import EXPORT, IMITATE, IMITATION_LOSS, LOAD, PUBLISH, SAVE
from squelch.cluster.control.protocols import Actors
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.fleet.fleet import Fleet, UpdateFailed
from squelch.cluster.fleet.supervision import Supervisor, Watchdog
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir, checkpoints, restore
from squelch.cluster.loop.tickets.playing import Play, failed_text, failures
from squelch.kit.archive.rows import from_table
from squelch.kit.base.disk import partial_path, put_in_place
from squelch.kit.base.errors import Fault, UserError
from squelch.kit.diagnosis.grounding import facts_of, right
from squelch.kit.records.records import GroupSummary, Ticket
from squelch.learner.checkpoint.manifest import read_loop
from squelch.learner.config import CriticConfig, ObjectiveConfig
from squelch.learner.warmup.corpus import Corpus
from squelch.learner.warmup.settings import WarmupConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from squelch.kit.records.judge import Judge

FAILED_SHARE = 0.25
"""Share of a check's trajectories that may fail: beyond it the check measures a slow or dead actor, not the weights."""
CHECK_SEED = 1_000_000_000
"""The first task of a check, whatever the run's seeds, so that runs with other seeds share a warm-up that stops at a
wanted format validity."""
REPORT = "squelch_warmup.json"
RISE, FLOOR = 0.05, 0.1
"""Share of the steps over which the learning rate rises, and the share of its peak that is left at the end."""


Truth = Callable[[Sequence["pa.Table"]], float | None]
"""The share of first reasonings in the rows of groups that state something of their task, all of it true; None if there
are no reasonings to judge."""


class Stopped(Exception):
    """A signal ended the warm-up after a step, which is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}")
        self.number = number


@dataclass(frozen=True)
class Check:
    """The result of a check after `step` optimizer steps. Values that need play are None if nothing was played."""

    step: int
    held_out_loss: float
    """Nats per demonstrated token."""
    success: float | None = None
    """Share of trajectories that solve their task; a failed trajectory does not."""
    format_validity: float | None = None
    """Share of turns that are well formed."""
    varied: float | None = None
    """Share of tasks whose samples differ in their return, so that RL could learn from them."""
    true: float | None = None
    """Share of first reasonings that state something of their task, all of it true; None without a judge."""

    def words(self) -> str:
        """The check in one line."""
        played = (
            ""
            if self.success is None
            else f"  success {self.success:.3f}  well-formed turns {self.format_validity:.3f}  groups with variance "
            f"{self.varied:.3f}"
        )
        judged = "" if self.true is None else f"  true reasonings {self.true:.3f}"
        return f"held-out loss {self.held_out_loss:.3f}{played}{judged}"


@dataclass
class Progress:
    """The warm-up so far, as JSON-able data."""

    digest: str
    """Digest of everything that determines the warm-up's result."""
    step: int = 0
    tokens: int = 0
    """Demonstrated tokens that were learned from."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Loss of each step, nats per demonstrated token."""
    checks: list[Check] = field(default_factory=list)


def learner_settings(config: RunConfig, warmup: WarmupConfig, steps: int) -> RunConfig:
    """The run's settings for the warm-up's actors: the learner without reference policy or critic, with the warm-up's
    learning rate, and no scorer."""
    optimizer = config.learner.optimizer.model_copy(
        update={
            "learning_rate": warmup.learning_rate,
            "warmup_steps": max(1, round(RISE * steps)),
            "decay_steps": steps,
            "decay": "cosine",
            "final_factor": FLOOR,
        }
    )
    plain = {"algorithm": "grpo", "objective": ObjectiveConfig(), "critic": CriticConfig(), "optimizer": optimizer}
    scorer = config.scorer.model_copy(update={"enabled": False})
    learner = config.learner.model_copy(update=plain).with_tokens(config.tokens_fed)  # before any GPU can be asked
    return config.model_copy(update={"learner": learner, "scorer": scorer})


class Warming:
    """One warm-up. `config`: as `learner_settings` gives it; `plays`: whether checks play the environment; `work`: the
    folder of its checkpoints; `truth`: the share of true reasonings in the rows of groups (`truth_of`)."""

    def __init__(
        self,
        config: RunConfig,
        warmup: WarmupConfig,
        corpus: Corpus,
        plays: bool,
        work: Path,
        actors: Actors,
        digest: str,
        say: Callable[[str], None],
        truth: Truth | None = None,
        on_stage: OnStage = ignore_stage,
    ) -> None:
        self.truth = truth
        self.config, self.warmup, self.corpus, self.plays, self.work = config, warmup, corpus, plays, work
        self.fleet, self.say, self.on_stage = Fleet(config, actors, _no_event), say, on_stage
        self.watchdog = Watchdog(_no_event, _no_event)
        self.play = Play(config, self.fleet)
        self.steps = corpus.num_steps(warmup)
        self.progress = Progress(digest)
        self.tickets = _tickets(config, warmup)
        self._signals: list[int] = []

    def stop(self, number: int) -> None:
        """A signal ends the warm-up after the step under way."""
        self._signals.append(number)

    async def run(self, out: Path) -> Progress:
        """Warms the model up and writes it to `out`; returns what happened. Stopped if a signal came."""
        saved = self._saved()
        try:
            await self._start(resumes=saved is not None)
            if saved is not None:
                await self.learner.call(LOAD, saved.resolve())
                self.say(f"continuing after step {self.progress.step} of {self.steps}")
            await self._work()
            await self._finish(out)
        finally:
            await self.fleet.stop()
        return self.progress

    def _saved(self) -> Path | None:
        """The newest checkpoint, whose progress this continues; None if there is none."""
        restore(self.work)
        found = checkpoints(self.work)
        if not found:
            return None
        newest = found[-1][1]
        try:
            progress = TypeAdapter(Progress).validate_python(read_loop(newest))
        except ValidationError as error:
            raise UserError(f"{newest}: its loop.json describes no warm-up; remove {self.work}") from error
        if progress.digest != self.progress.digest:
            raise UserError(
                f"{self.work} holds an unfinished warm-up with other settings, demonstrations or model; remove it, or "
                "repeat that warm-up to continue it"
            )
        self.progress = progress
        return newest

    async def _start(self, resumes: bool) -> None:
        if self.plays:
            await self.fleet.start(resumes=resumes)
        else:
            await self.fleet.start_learner(resumes)
        self.learner.watch = self.watchdog

    @property
    def learner(self) -> LearnerClient:
        """The learner, which has been started."""
        assert self.fleet.learner is not None
        return self.fleet.learner

    async def _work(self) -> None:
        progress = self.progress
        if self._signals:  # while the actors started; what was done before is saved
            raise Stopped(self._signals[0], progress.step)
        while True:
            if self._check_due():
                await self._check()
                if self._signals:
                    if progress.step:
                        await self._save()
                    raise Stopped(self._signals[0], progress.step)
            if progress.step == self.steps or self._enough():
                return
            await self._step(progress.step + 1)
            if self._signals or progress.step % self.warmup.save_every == 0:
                await self._save()
            if self._signals:
                raise Stopped(self._signals[0], progress.step)

    async def _step(self, step: int) -> None:
        started, progress = time.monotonic(), self.progress
        done = await self.learner.call(IMITATE, step, self.corpus.batch(step, self.warmup))
        seconds = time.monotonic() - started
        progress.step, progress.tokens = step, progress.tokens + done.num_tokens
        progress.seconds += seconds
        progress.losses.append(done.loss)
        self.on_stage(f"learning from demonstrations, loss {done.loss:.3f}", step / self.steps)
        self.say(f"warm-up {step:4d}/{self.steps}  loss {done.loss:.3f}  {seconds:.2f} s")

    def _enough(self) -> bool:
        """Whether the last check found the wanted shares, if any is wanted."""
        warmup, last = self.warmup, self.progress.checks[-1]
        shares = (warmup.format_validity, last.format_validity), (warmup.true_reasonings, last.true)
        return warmup.may_stop_early and all(
            wanted is None or (found is not None and found >= wanted) for wanted, found in shares
        )

    def _check_due(self) -> bool:
        """Whether the present weights are to be checked and were not yet; a step is saved before it is checked."""
        step, checks = self.progress.step, self.progress.checks
        if checks and checks[-1].step == step:
            return False
        wanted = self.plays and self.warmup.may_stop_early
        return step in (0, self.steps) or (wanted and step % self.warmup.check_every == 0)

    async def _check(self) -> None:
        self.on_stage("checking the weights", self.progress.step / self.steps)
        loss = await self.learner.call(IMITATION_LOSS, self.corpus.held_out)
        check = Check(self.progress.step, loss, *(await self._played() if self.plays else ()))
        self.progress.checks.append(check)
        self.say(f"after {check.step} steps: {check.words()}")

    async def _played(self) -> tuple[float, float, float, float | None]:
        """(success, share of well-formed turns, share of tasks with variance, share of true reasonings) of the present
        weights."""
        await self._publish()
        groups = await Supervisor(self.fleet, self.watchdog).beside(self.play.groups(self.tickets))
        summaries = [group.summary for group in groups]
        failed, tasks = failures(summaries), sum(one.group_size for one in summaries)
        if failed:
            self.say(f"WARNING: {failed_text(failed, tasks, 'trajectories of the check')}")
        if len(failed) > FAILED_SHARE * tasks:
            raise Fault(
                f"the warm-up's check at step {self.progress.step}: {failed_text(failed, tasks, 'trajectories')}; "
                "more than a quarter, so that it says nothing of the weights"
            )
        true = self.truth(await self.play.rows(groups)) if self.truth is not None else None
        return *_metrics(summaries), true

    async def _publish(self) -> None:
        """Loads the present weights into every rollout worker; one that is late, or fails the checks, is replaced."""
        while True:
            bundle = await self.learner.call(PUBLISH, self.progress.step, self.config.rollout.dtype)
            try:
                await self.fleet.update_workers(bundle)
                return
            except UpdateFailed as failed:
                self.fleet.replace_late(failed, bundle.version)

    async def _save(self) -> None:
        step = self.progress.step
        await self.learner.call(SAVE, checkpoint_dir(self.work, step).resolve(), asdict(self.progress))
        for older, path in checkpoints(self.work):
            if older < step:
                await asyncio.to_thread(shutil.rmtree, path)

    async def _finish(self, out: Path) -> None:
        aside = partial_path(out)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            await self.learner.call(EXPORT, aside.resolve())
            report = {**asdict(self.progress), "settings": self.warmup.model_dump(mode="json")}
            (aside / REPORT).write_text(json.dumps(report, indent=2) + "\n")
            await asyncio.to_thread(put_in_place, aside, out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _metrics(summaries: list[GroupSummary]) -> tuple[float, float, float]:
    trajectories = sum(one.group_size for one in summaries)
    turns = sum(one.num_turns for one in summaries)
    success = sum(int(one.successes.sum()) for one in summaries) / trajectories
    valid = sum(one.format_valid_turns for one in summaries) / max(turns, 1)
    return success, valid, float(np.mean([len(np.unique(one.returns)) > 1 for one in summaries]))


def truth_of(judge: Judge, text: Callable[[np.ndarray], str]) -> Truth:
    """The share of true reasonings as a judge sees it; `text` decodes ids."""

    def truth(rows: Sequence[pa.Table]) -> float | None:
        played = [one for table in rows for one in from_table(table) if one.failure is None and one.turns]
        seen = [[picture.decoded("a played prompt") for picture in one.prompt_pictures(0)[-1:]] for one in played]
        states = [facts_of(judge, text(one.prompt_ids(0)), shown) for one, shown in zip(played, seen, strict=True)]
        judged = [
            right(judge, judge.claims(text(one.reasoning_ids(0))), state)
            for one, state in zip(played, states, strict=True)
            if state is not None
        ]
        return float(np.mean(judged)) if judged else None

    return truth


def _tickets(config: RunConfig, warmup: WarmupConfig) -> list[Ticket]:
    mixture, temperature = config.mixture, config.sampling.temperature
    found: list[Ticket] = []
    for i, turn in enumerate(map(mixture.schedule().turn, range(warmup.tasks))):
        task = task_of(mixture.entries[turn.entry], CHECK_SEED + turn.before, "validation")
        found.append(Ticket(f"warmup-{i:03d}", 0, task, warmup.samples, warmup.seed, temperature))
    return found


def _no_event(*_: Any, **__: Any) -> None:
    """Drops the span or gauge: a warm-up records none."""
