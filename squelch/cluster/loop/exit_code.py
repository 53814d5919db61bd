"""How a run ends: what its user reads, what its folder holds, and the exit code.

    end              on the terminal                        summary.json    exit code
    done, or one of  the summary's lines, and why           yes             0, or 1 if it was not planned;
    its rules                                                               3 if it paused at an alarm
    a signal         the same                               yes             128 + signal
    a second signal  the last checkpoint, and what the      once it trains  128 + signal
                     store lacks, at once
    an error         `failed:`, the cause, the trace's      once it trains  1
                     file, whether it can be resumed
    Ray is gone      the same, within 30 s                  once it trains  1
    a signal and     the last checkpoint, within 30 s       once it trains  128 + signal
    Ray's end

When Ray is gone, nothing that belongs to it is called, because such calls may not return, and may end the process. So
the process leaves without Python's own end, in which Ray would disconnect: `RunEnd.without_ray`.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig, changes, settings_of
from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.fleet.ray_internals import logs_folder
from squelch.cluster.fleet.ray_watch import RayWatch, watch_ray
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.witness import Witness
from squelch.cluster.runs import driver
from squelch.cluster.runs.ending import EndCause, Ending, ending_of, is_complete
from squelch.cluster.runs.folder import SUMMARY, RunFolder
from squelch.cluster.runs.logs import one_paragraph, write_trace
from squelch.cluster.runs.summary import summarise_run, summary_lines, write_summary
from squelch.cluster.setting_keys import unplaced
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.process.process_exit import leave
from squelch.kit.process.signals import current
from squelch.kit.untrusted.files import Unreadable, reason

EXIT_FAILED = 1
EXIT_PAUSED = 3
REMEDIES = ("filter.", "validation.", "sampling.", "learner.", "environment.prompt")
"""Settings whose change lets a run go on that its own rules ended. A run writes what it fixed itself, such as
`scorer.every`, into its configuration, so those that differ are not always changes of the user's."""
LOOP_S = 3.0
"""Seconds for the event loop to end the run without Ray; then it waits inside Ray, and another thread does that."""


class RayGone(RuntimeError):
    """A process of Ray that the run cannot do without has ended."""


class RunEnd:
    """The end of one run. `coordinator` is None until all actors are ready; `loop` until there is one.

    Args:
        after_ray: what follows an end without Ray, such as the last upload; takes and returns the exit code.
        unsent: which checkpoints are where, if the store lacks some of the run's files.
    """

    def __init__(
        self,
        config: RunConfig,
        say: Callable[[str], None],
        started: float,
        after_ray: Callable[[int], int],
        unsent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.config, self.started, self.after_ray, self.unsent = config, started, after_ray, unsent
        self._say = say
        self.coordinator: Coordinator | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._is_summarised = False
        self._code: int | None = None
        self._watch: RayWatch | None = None
        self._witness: Witness | None = None
        self._begun, self._one = threading.Event(), threading.Lock()

    def say(self, text: str) -> None:
        """Prints a line; an output that cannot be written, as on a full disk, does not keep the run from its end."""
        with suppress(UserError):
            self._say(text)

    def watch_ray(self) -> None:
        """Ends the process from now on if a process of Ray ends on which it depends."""
        if (logs := logs_folder()) is not None:
            self._witness = Witness(self.config.run_dir, logs, driver.name())
        self._watch = watch_ray(self.without_ray)

    def unwatch(self) -> None:
        """Ends the watch: Ray may end."""
        if self._watch is not None:
            self._watch.close()

    def close(self) -> None:
        """Ends the watch, and tells the witness that this process ends by itself."""
        self.unwatch()
        if self._witness is not None:
            self._witness.close()

    def done(self, archive: Archive, stop_signal: Sequence[int]) -> int:
        """The end of a run that no error ended; what happens to Ray afterwards does not change it."""
        self._code = self._done(archive, stop_signal)
        return self._code

    def _done(self, archive: Archive, stop_signal: Sequence[int]) -> int:
        assert self.coordinator is not None, "a run that ends so has trained"
        archive.finish()
        ending, steps = self.coordinator.ending, self.coordinator.outcome().steps
        if ending is not None and ending.cause is EndCause.SIGNAL and steps >= self.config.loop.steps:
            ending = None  # it came with the last step
        summary = self._summarise(ending)
        for line in summary_lines(summary):
            self.say(line)
        if not summary["ledger"]["balanced"]:
            self.say(f"failed: the ledger does not balance: {summary['ledger']}")
            return EXIT_FAILED
        if stop_signal and ending is not None and ending.cause is EndCause.SIGNAL:
            self.say(f"{ending.text} after step {summary['steps']}; continue with --resume")
            return 128 + stop_signal[0]
        run_dir = self.config.run_dir
        self.say(f"done: {run_dir}" if ending is None else f"ended after step {summary['steps']}: {ending.text}")
        what = "failed" if ending is not None and ending.cause is EndCause.NOTHING_COUNTS else "it learned"
        self.say(f"to see what {what}: squelch inspect {shlex.quote(str(run_dir))}")
        if ending is None or ending.complete:
            return 0
        return EXIT_PAUSED if ending.cause is EndCause.PAUSED else EXIT_FAILED

    def failed(self, error: Exception) -> int:
        """The end by an error of an actor, or by a bug. If Ray's own end is behind it, the process ends."""
        current().give_way()
        if self._watch is not None and (why := self._watch.ended()):
            self._leave(why)
        return self._failed(error)

    def _failed(self, error: Exception) -> int:
        text = with_trace(error, self.config.run_dir)
        self.say(f"failed: {text}. {outlook(self.config.run_dir)}")
        if self.coordinator is not None:
            cause = error.cause if isinstance(error, Failed) else error
            self._try_to_summarise(Ending(EndCause.FAILED, one_paragraph(str(cause)) or type(cause).__name__))
        return EXIT_FAILED

    def already(self, _: signal.Signals) -> None:
        """Answers a first signal that comes when the run ends anyway."""
        self.say("the run is ending already; again to stop now")

    def at_once(self, number: signal.Signals) -> None:
        """The end by a second signal, but for the process's own. Any thread may call it, whatever the others wait for:
        nothing of Ray is called."""
        is_done = self._code == 0
        self.say(f"stopping now; {'the run is done' if is_done else last_checkpoint(self.config.run_dir)}")
        if (where := self.unsent()) is not None:
            self.say(f"store: not everything has been sent. {where}")
        if self.coordinator is not None and not self._is_summarised:
            self._try_to_summarise(Ending(EndCause.SIGNAL, f"{number.name}, at once"))

    def without_ray(self, why: str) -> None:
        """Ends the run and this process because Ray is gone. May be called on any thread: the event loop's does it if
        that still runs, so that nothing changes meanwhile."""
        if self.loop is not None and self.loop.is_running():
            self.loop.call_soon_threadsafe(self._leave, why)
            self._begun.wait(LOOP_S)
        self._leave(why)

    def _leave(self, why: str) -> None:
        """Does not return."""
        current().give_way()
        self._begun.set()
        code = EXIT_FAILED
        with self._one:  # never released: whoever comes second waits for the end of the process
            try:
                current().first_does(self.already)
                code = self.after_ray(self._ended_with_ray(why) if self._code is None else self._code)
            finally:
                self.close()
                leave(code)

    def _ended_with_ray(self, why: str) -> int:
        stopped = self._watch.cause() if self._watch is not None else None
        if stopped is None:
            return self._failed(RayGone(why))
        self.say(f"stopped by {stopped.name}, which has ended Ray too ({why}); {last_checkpoint(self.config.run_dir)}")
        if self.coordinator is not None:
            self._try_to_summarise(Ending(EndCause.SIGNAL, stopped.name))
        return 128 + stopped

    def _try_to_summarise(self, ending: Ending) -> None:
        try:
            self._summarise(ending)
        except (ArchiveError, Unreadable, UserError, OSError) as refused:
            why = reason(refused) if isinstance(refused, OSError) else refused
            self.say(f"{self.config.run_dir / SUMMARY} cannot be written: {why}")

    def _summarise(self, ending: Ending | None) -> dict[str, Any]:
        assert self.coordinator is not None
        outcome = replace(self.coordinator.outcome(), ending=ending)
        summary = summarise_run(self.config, outcome, time.time() - self.started)
        write_summary(self.config.run_dir / SUMMARY, summary)
        self._is_summarised = True
        return summary


def with_trace(error: Exception, run_dir: Path) -> str:
    """Writes the error's whole trace, with the traces of other processes; returns the error and the file's path as one
    paragraph."""
    return write_trace(run_dir, error, error.cause if isinstance(error, Failed) else None)


def nothing_left(config: RunConfig) -> str | None:
    """Why a resume would change nothing, and what would let the run go on; None if something is left to do."""
    folder = RunFolder(config.run_dir)
    summary = folder.summary()
    if summary is None or not is_complete(summary):
        return None
    steps, ending = summary.get("steps", 0), ending_of(summary)
    if (ending is None or not ending.final) and config.loop.steps > steps:
        return None
    if ending is None or not ending.final:
        return f"{config.run_dir} is finished: it has made its {steps} steps. To go on, raise loop.steps={steps}"
    changed = changes(settings_of(config.run_dir / "config.yaml"), config)
    if any(unplaced(change).startswith(REMEDIES) for change in changed):
        return None
    rule = f"it ended after step {steps} by its own settings ({ending.text})"
    return f"{config.run_dir} is finished: {rule}. To go on, change the setting that ended it"


def outlook(run_dir: Path) -> str:
    """What can be done after a failure; errors leave that to it, because they do not know of checkpoints."""
    if checkpoints(run_dir):
        return "Checkpoints are intact: continue with --resume once the cause is removed"
    if RunFolder(run_dir).has_begun():
        return f"It had written no checkpoint: remove {run_dir}, or choose another name, and start it again"
    return "Nothing was trained: start it again once the cause is removed"


def last_checkpoint(run_dir: Path) -> str:
    """How a run that ends at once can be continued, in words."""
    saved = checkpoints(run_dir)
    if not saved:
        begun = f"{run_dir} has no checkpoint: remove it, or give another name, to start again"
        return begun if RunFolder(run_dir).has_begun() else "nothing was trained: start it again"
    step, folder = saved[-1]
    return f"the last checkpoint is {folder}: --resume continues after step {step}"
