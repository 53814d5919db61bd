"""The run's client of its store: takes the lease, restores the run from the store, and uploads beside the loop.

    thread    produces             waits for                      unblocked by       on time-out
    upload    files, manifests     `upload.every_s`; the store    store              retried with back-off; after
                                                                                     `upload.give_up_after_s` without
                                                                                     progress the run ends
    lease     beats                a third of `upload.lease_s`    store              retried; the lease may run out, and
                                                                                     the next manifest is then refused
    main      -                    the upload after the last      upload; a signal   as above; the files stay on the
                                   step only                                         driver's disk

The loop waits for neither: closed files on the driver's disk are uploaded (`cluster.runs.in_store.mirror`). A store
that fails or is slow is reported at once, and again when it has recovered; events and metrics record it too. If the
bound is exceeded, or another driver has taken over the run, the run ends after the step in training, with its
checkpoint on the disk.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop_config import UploadConfig
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.in_store.lease import Lease, acquire, this_process
from squelch.cluster.runs.in_store.manifest import Superseded, answering, newest, require_base, words
from squelch.cluster.runs.in_store.mirror import Mirror, Stopped
from squelch.kit.archive.bucket import open_store
from squelch.kit.archive.writer import Archive
from squelch.kit.base.errors import UserError
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.process.signals import listening

SLOW_S = 60.0
"""Seconds without progress after which an upload under way is reported."""
MAX_PAUSE_S = 60.0
"""Longest pause before a failed upload is retried."""
WATCH_S = 0.5
PATIENT_S, SAY_EVERY_S = 5.0, 30.0
"""Seconds of a wait for the store after which it is reported, and between two reports."""


@dataclass(frozen=True)
class Note:
    """One upload: its span (Unix seconds), what was sent, and the reason why it failed, else None."""

    started: float
    ended: float
    files: int
    bytes: int
    cause: str | None


@dataclass
class Progress:
    """The state of the upload thread; times in seconds of the monotonic clock."""

    now: Callable[[], float] = time.monotonic
    done: float = field(init=False)
    """When the newest upload that succeeded began: what the disk had then is in the store."""
    moved: float = field(init=False)
    """When the store last took a chunk, or answered."""
    kept: float = field(init=False)
    """When the store last took a whole file, or began to fail. Between failed uploads this counts and not `moved`: a
    full store takes the first chunks of a large file at every attempt."""
    busy: bool = False
    failures: int = 0
    """Uploads in a row that failed."""
    cause: str | None = None
    """Why the last one failed."""
    lost: str | None = None
    """Why no upload can succeed any more."""
    notes: SimpleQueue[Note] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self.done = self.moved = self.kept = self.now()

    def move(self) -> None:
        """Notes that the store has done its part."""
        self.moved = self.now()

    def keep(self) -> None:
        """Notes that the store has taken a whole file."""
        self.moved = self.kept = self.now()

    def fail(self, cause: str) -> None:
        """Notes that an upload has failed."""
        if not self.failures:
            self.kept = self.moved
        self.failures, self.cause = self.failures + 1, cause

    def silent_s(self) -> float:
        """Seconds since the store last did its part, while something is asked of it; else 0."""
        if self.busy:
            return self.now() - self.moved
        return self.now() - self.kept if self.failures else 0.0

    def pause_s(self, every_s: float) -> float:
        """Seconds until the next upload: longer after each failure."""
        return min(2.0 ** (self.failures - 1), MAX_PAUSE_S) if self.failures else every_s


class Uploads:
    """The uploads of one run whose lease this process holds."""

    def __init__(self, config: UploadConfig, mirror: Mirror, lease: Lease, say: Callable[[str], None]) -> None:
        self.config, self.mirror, self.lease, self.say = config, mirror, lease, say
        self.progress = Progress()
        self._cancelled, self._last = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)
        self._slow_is_reported = self._failure_is_reported = False
        self._finished = False
        self.stopped_by: int | None = None
        """The signal that ended the wait for the last upload."""
        self._verdict: str | None = None
        """Why the run must end, once it has finished."""
        mirror.guard, mirror.stop = self._guard, self._cancelled.is_set
        mirror.moved, mirror.kept = self.progress.move, self.progress.keep

    # -- the upload thread ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts to upload; the run's folder exists by now."""
        self.mirror.mark()
        self._thread.start()

    def _work(self) -> None:
        try:
            self._until_last()
        except BaseException:  # a bug; the thread's trace goes to the log
            self.progress.lost = "uploads have ended with an error; log/driver.log in the run's folder has its trace"
            raise

    def _until_last(self) -> None:
        while not self._cancelled.is_set() and not self.progress.lost:
            last = self._last.is_set()
            self.once()
            if last and not self.progress.failures:
                return
            (self._cancelled if last else self._last).wait(self.progress.pause_s(self.config.every_s))

    def once(self) -> None:
        """One upload, whose outcome `progress` has then."""
        progress, began, started = self.progress, self.progress.now(), time.time()
        if not progress.failures:
            progress.move()
        failure: str | None = None
        progress.busy, files, num_bytes = True, 0, 0
        try:
            files, num_bytes = self.mirror.upload()
        except Stopped:
            return
        except UserError as error:  # another driver has taken over, or the store was damaged
            progress.lost = failure = str(error)
        except OSError as error:
            failure = words(error)
        finally:
            progress.busy = False
        if failure is not None:
            progress.fail(failure)
        else:
            progress.failures, progress.cause, progress.done = 0, None, began
            progress.move()
        if files or progress.cause:
            progress.notes.put(Note(started, time.time(), files, num_bytes, progress.cause))

    def _guard(self) -> None:
        self.lease.check()
        if self.lease.lost:
            raise Superseded(self._taken_over())

    def _taken_over(self) -> str:
        return f"{self.mirror.store.where()}: {self.lease.lost} has taken over the lease and goes on with this run"

    # -- what the run sees ---------------------------------------------------------------------------------------

    async def watch(self, event: Callable[..., None], recorder: Recorder, stop: Callable[[Ending], None]) -> None:
        """Until cancelled, reports the uploads as events, metrics and lines, and ends the run when it must."""
        while True:
            self._report(event, recorder)
            if verdict := self.verdict():
                stop(Ending(EndCause.STORE, verdict))
                return
            await asyncio.sleep(WATCH_S)

    def _report(self, event: Callable[..., None], recorder: Recorder) -> None:
        for note in self._report_changes():
            facts: dict[str, Any] = {"cause": note.cause} if note.cause else {"files": note.files, "bytes": note.bytes}
            event("store", "failed" if note.cause else "upload", note.started, note.ended, **facts)
            recorder.add("squelch_store_failures_total", float(bool(note.cause)))
        recorder.set("squelch_store_lag_seconds", self.progress.now() - self.progress.done)

    def _report_changes(self) -> list[Note]:
        """Reports what has changed since the last call; returns the notes since then."""
        progress, where, notes = self.progress, self.mirror.store.where(), list[Note]()
        while True:
            try:
                notes.append(progress.notes.get_nowait())
            except Empty:
                break
        if progress.cause and not progress.lost and not self._failure_is_reported:
            self._failure_is_reported = True
            bound = self.config.give_up_after_s
            self.say(f"store: {progress.cause}. The run goes on and retries for up to {bound:g} s")
        elif self._failure_is_reported and not progress.failures:
            self._failure_is_reported = False
            self.say(f"store: {where} answers again, and everything is uploaded")
        slow = progress.busy and not progress.failures and progress.silent_s() > SLOW_S
        if slow and not self._slow_is_reported:
            self.say(f"store: {where} is slow: it has taken nothing for {SLOW_S:g} s. The run goes on")
        self._slow_is_reported = slow
        return notes

    def verdict(self) -> str | None:
        """Why the run must end because of the store; None if it need not."""
        progress, bound = self.progress, self.config.give_up_after_s
        if self.lease.lost:
            return self._taken_over()
        if progress.lost:
            return progress.lost
        if progress.silent_s() <= bound:
            return None
        why = progress.cause or f"{self.mirror.store.where()} does not answer"
        return (
            f"{why}; nothing could be uploaded for {bound:g} s (upload.give_up_after_s). Every file is in "
            f"{self.mirror.run_dir}: continue with --resume once the store works"
        )

    def finish(self) -> str | None:
        """Uploads what is left, with the same patience; returns why that failed, or None. The run's folder does not
        change any more."""
        if not self._finished:
            self._verdict = self._finish() if self._thread.is_alive() else self.verdict()
            self._finished = True
        return self._verdict

    def _finish(self) -> str | None:
        self._last.set()
        verdict, began, said_at = self.verdict(), time.monotonic(), -math.inf
        with listening() as signals, signals.answering(self._stop):
            while self._thread.is_alive() and not verdict:
                self._thread.join(WATCH_S)
                self._report_changes()
                verdict = self._stopped() or self.verdict()
                waited = time.monotonic() - began
                if waited > PATIENT_S and waited - said_at > SAY_EVERY_S and not verdict and self._thread.is_alive():
                    said_at = waited
                    self.say(self._waiting(waited))
        self._cancelled.set()
        self._report_changes()
        return f"{verdict}. {self._whereabouts()}" if verdict else None

    def _waiting(self, waited_s: float) -> str:
        silent, bound = self.progress.silent_s(), self.config.give_up_after_s
        return (
            f"store: the last files are being sent to {self.mirror.store.where()}, for {waited_s:.0f} s so far. "
            f"Its last answer came {silent:.0f} s ago; the run waits at most {bound:g} s for one. Ctrl-C or SIGTERM "
            "stops waiting"
        )

    def _whereabouts(self) -> str:
        """Which checkpoints the store and the folder have."""
        here, there = list(RunFolder(self.mirror.run_dir).checkpoints()), self.mirror.newest_checkpoint()
        steps = ["none" if step is None else f"step {step}" for step in (here[-1] if here else None, there)]
        return f"Newest checkpoint: {steps[0]} in {self.mirror.run_dir}, {steps[1]} in {self.mirror.store.where()}"

    def unsent(self) -> str | None:
        """Which checkpoints are where, if files of the run may be missing in the store. Any thread may call it."""
        sent = not self._thread.ident or (self._finished and self._verdict is None)
        return None if sent else self._whereabouts()

    def _stop(self, number: signal.Signals) -> None:
        self.stopped_by = number

    def _stopped(self) -> str | None:
        if self.stopped_by is None:
            return None
        return f"{signal.Signals(self.stopped_by).name} ended the wait for the store before everything had been sent"

    def close(self) -> None:
        """Ends the uploads and the lease."""
        self._cancelled.set()
        self._last.set()
        self.lease.end()


def open_uploads(config: RunConfig, resume: bool, say: Callable[[str], None]) -> Uploads | None:
    """Takes the lease of the run in `store` and, if this host does not have the run, restores its folder from the
    newest manifest; None without a store.

    Raises:
        UserError: another driver works on the run; the store cannot be used; folder and store disagree.
    """
    if not config.store:
        return None
    with answering(config.store), _reported(f"store: waiting for {config.store}", say):
        require_base(config.store)
        store, driver = open_store(config.store, name=config.name), this_process()
        lease = acquire(store, config.upload.lease_s, driver, say, above=newest(store).generation).start()
        try:
            mirror = Mirror(config.run_dir, store, lease.generation, driver.owner)
            _restore(mirror, resume, say)
        except BaseException:
            lease.end()
            raise
    return Uploads(config.upload, mirror, lease, say)


@contextmanager
def _reported(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Says how long the block has taken, while it takes long: a store may hang; a large run takes time to restore."""
    over, began = threading.Event(), time.monotonic()

    def report() -> None:
        pause = PATIENT_S
        while not over.wait(pause):
            say(f"{what}, for {time.monotonic() - began:.0f} s so far. Ctrl-C stops")
            pause = SAY_EVERY_S

    threading.Thread(target=report, name="store-report", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _restore(mirror: Mirror, resume: bool, say: Callable[[str], None]) -> None:
    copy = mirror.take_over(resume)
    if copy is not None:
        mirror.adopt(copy)
        say(f"restored {mirror.run_dir} from {mirror.store.where()} ({len(mirror.manifest.files)} files)")


@asynccontextmanager
async def watched(
    uploads: Uploads | None, archive: Archive, recorder: Recorder, stop: Callable[[Ending], None]
) -> AsyncIterator[None]:
    """Watches the uploads, if there are any, as long as the block runs."""
    if uploads is None:
        yield
        return
    watching = asyncio.create_task(uploads.watch(archive.event, recorder, stop))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
