"""Uploads beside the loop: what the run says, records and does when its store is slow, fails or is another's."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.config import load
from squelch.cluster.loop.persistence import uploading
from squelch.cluster.loop.persistence.uploading import Uploads, open_uploads
from squelch.cluster.loop_config import UploadConfig
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.in_store import lease, mirror
from squelch.cluster.runs.in_store.lease import acquire, this_process
from squelch.cluster.runs.in_store.manifest import newest
from squelch.cluster.runs.in_store.mirror import Mirror
from squelch.kit.archive.store import LocalStore
from squelch.kit.base.errors import UserError
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.settings import RecorderConfig
from tests.stores import Memory


def wait_until(holds: Callable[[], object]) -> None:
    """Returns once something holds; at most after a minute."""
    deadline = time.monotonic() + 180
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


class Watched:
    """Uploads of a small run to a store in memory, and all that the run sees of them."""

    def __init__(self, folder: Path, store: Memory, **settings: float) -> None:
        self.said, self.events, self.endings = list[str](), list[tuple[str, dict[str, Any]]](), list[Ending]()
        self.store, self.now = store, 0.0
        self.lease = acquire(store, 60.0, this_process(), self.said.append)
        self.mirror = Mirror(folder, store, self.lease.generation, "me")
        self.mirror.take_over(resume=False)
        folder.mkdir()
        (folder / "config.yaml").write_text("name: run\n")
        self.uploads = Uploads(UploadConfig(**settings), self.mirror, self.lease, self.said.append)
        self.uploads.progress.now = lambda: self.now
        self.uploads.progress.__post_init__()
        self.recorder = Recorder(RecorderConfig(), REGISTRY)

    def once(self, at: float) -> None:
        """One upload at that time, and the report of it."""
        self.now = at
        self.uploads.once()
        self.report()

    def report(self) -> None:
        self.uploads._report(lambda actor, name, start, end, **facts: self.events.append((name, facts)), self.recorder)


def change(watched: Watched, text: str) -> None:
    (watched.mirror.run_dir / "summary.json").write_text(text)


def test_a_store_that_fails_is_said_once_and_so_is_its_return(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", Memory(), give_up_after_s=100.0)
    watched.once(0.0)
    watched.store.lives = 0
    for at, pause in ((10.0, 1.0), (11.0, 2.0), (13.0, 4.0)):
        change(watched, str(at))
        watched.once(at)
        assert watched.uploads.progress.pause_s(30.0) == pause
        assert not watched.uploads.verdict()
    watched.store.lives = 10**9
    watched.once(17.0)
    assert watched.said == [
        "store: memory: the store is down. The run goes on and retries for up to 100 s",
        "store: memory: answers again, and everything is uploaded",
    ]
    assert [name for name, _ in watched.events] == ["upload", "failed", "failed", "failed", "upload"]
    assert watched.events[1][1] == {"cause": "memory: the store is down"} and watched.events[-1][1]["files"] == 1
    assert watched.uploads.progress.pause_s(30.0) == 30.0
    store = watched.recorder._store.scalars
    assert store["squelch_store_failures_total"][()] == 3
    assert store["squelch_store_lag_seconds"][()] == 0.0
    watched.now = 25.0
    watched.report()
    assert store["squelch_store_lag_seconds"][()] == 8.0


def test_the_run_ends_when_the_bound_is_exceeded_and_not_before(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", Memory(), give_up_after_s=100.0)
    watched.once(0.0)
    watched.store.lives = 0
    change(watched, "new")
    watched.once(500.0)  # nothing was to be uploaded for long: that is no silence of the store
    watched.now = 599.0
    assert not watched.uploads.verdict()
    watched.now = 601.0
    assert f"Every file is in {tmp_path / 'run'}: continue with --resume" in watched.uploads.verdict()
    assert (
        "the store is down; nothing could be uploaded for 100 s (upload.give_up_after_s)" in watched.uploads.verdict()
    )


def test_a_store_that_hangs_is_said_to_be_slow_and_ends_the_run_at_the_bound(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", Memory(), give_up_after_s=100.0)
    progress = watched.uploads.progress
    progress.move()
    progress.busy = True
    for at in (30.0, 61.0, 62.0):
        watched.now = at
        watched.report()
    assert watched.said == ["store: memory: is slow: it has taken nothing for 60 s. The run goes on"]
    progress.move()  # a chunk of a large checkpoint arrives now and then
    watched.now = 150.0
    assert not watched.uploads.verdict()
    watched.now = 163.0
    assert watched.uploads.verdict().startswith("memory: does not answer; nothing could be uploaded for 100 s")


def test_a_full_store_that_takes_the_first_chunks_again_and_again_ends_the_run_at_the_bound(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(mirror, "CHUNK_BYTES", 1)
    watched = Watched(tmp_path / "run", Memory(), give_up_after_s=100.0)
    watched.once(0.0)
    put = watched.store.put

    @contextmanager
    def full(key: str) -> Iterator[Any]:
        with put(key) as file:
            yield file
            if "checkpoint" in key:
                raise OSError(28, "No space left on device", key)

    watched.store.put = full
    (watched.mirror.run_dir / "checkpoint.bin").write_bytes(b"x" * 20)
    for at in (10.0, 60.0, 109.0):
        watched.once(at)
        assert not watched.uploads.verdict()
    watched.once(111.0)
    assert "No space left on device; nothing could be uploaded for 100 s" in watched.uploads.verdict()
    (watched.mirror.run_dir / "another.bin").write_bytes(b"x")  # while whole files arrive, the store does its part
    watched.once(112.0)
    assert not watched.uploads.verdict()


def test_a_run_that_another_driver_took_over_ends_and_names_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", Memory())
    watched.once(0.0)
    other = Mirror(tmp_path / "other", watched.store, 2, "driver on b")
    other.take_over(resume=True)
    change(watched, "new")
    watched.once(1.0)
    assert "driver on b goes on with this run" in watched.uploads.verdict()
    assert watched.said == [], "no other attempt is announced"
    assert newest(watched.store).owner == "driver on b"


def beside(watched: Watched, until: Callable[[], bool]) -> None:
    """Uploads in a thread while the run's loop watches, until something holds; at most a minute."""

    async def run() -> None:
        watching = asyncio.create_task(
            watched.uploads.watch(lambda *_, **__: None, watched.recorder, watched.endings.append)
        )
        for _ in range(6000):
            if until():
                break
            await asyncio.sleep(0.01)
        watching.cancel()
        assert until()

    watched.uploads.progress.now = time.monotonic
    watched.uploads.progress.__post_init__()
    watched.uploads.begin()
    asyncio.run(run())


def test_uploads_go_on_beside_the_loop_and_the_last_one_has_everything(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploading, "WATCH_S", 0.02)
    watched = Watched(tmp_path / "run", Memory(), every_s=0.02)
    beside(watched, lambda: "config.yaml" in newest(watched.store).files)
    (tmp_path / "run" / "late.json").write_text("{}")
    assert watched.uploads.finish() is None and watched.uploads.finish() is None
    watched.uploads.close()
    assert set(newest(watched.store).files) == {"config.yaml", "late.json"}
    assert acquire(watched.store, 60.0, this_process(), pytest.fail).generation == 2, "the lease was given up"


def test_a_store_that_never_answers_blocks_neither_the_loop_nor_the_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploading, "WATCH_S", 0.02)
    watched = Watched(tmp_path / "run", Memory(), every_s=0.02, give_up_after_s=0.3)
    asked, answer = threading.Event(), threading.Event()
    put = watched.store.put

    def hang(key: str) -> Any:
        asked.set()
        answer.wait()
        return put(key)

    watched.store.put = hang
    beside(watched, lambda: bool(watched.endings))
    assert asked.is_set() and watched.endings[0].cause is EndCause.STORE
    assert "does not answer" in watched.uploads.finish()
    answer.set()


@contextmanager
def hanging(watched: Watched) -> Iterator[None]:
    """Its store takes no file until the block has ended; it has what the folder had before."""
    watched.uploads.once()
    (watched.mirror.run_dir / "checkpoints" / "step-25").mkdir(parents=True)
    (watched.mirror.run_dir / "checkpoints" / "step-25" / "loop.json").write_text("{}")
    answer, put = threading.Event(), watched.store.put

    def hang(key: str) -> Any:
        answer.wait()
        return put(key)

    watched.store.put = hang
    watched.uploads.begin()
    try:
        yield
    finally:
        answer.set()


def test_whoever_waits_for_a_store_that_hangs_is_told_and_can_stop_it_and_is_told_what_is_where(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(uploading, "WATCH_S", 0.02)
    monkeypatch.setattr(uploading, "PATIENT_S", 0.05)
    watched = Watched(tmp_path / "run", Memory(), every_s=0.02, give_up_after_s=900.0)
    (tmp_path / "run" / "checkpoints" / "step-19").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step-19" / "loop.json").write_text("{}")
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        wait_until(lambda: watched.said)
        os.kill(os.getpid(), signal.SIGTERM)

    with hanging(watched):
        threading.Thread(target=stop, daemon=True).start()
        left = watched.uploads.finish()
    assert left.startswith("SIGTERM ended the wait for the store before everything had been sent. ")
    assert left.endswith(f"Newest checkpoint: step 25 in {tmp_path / 'run'}, step 19 in memory:")
    assert watched.uploads.stopped_by == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before
    assert "waits at most 900 s for one. Ctrl-C or SIGTERM stops waiting" in watched.said[0] and len(watched.said) == 1


STUCK = """
import threading, time
from pathlib import Path
from squelch.cluster.loop.persistence import uploading
from tests.cluster.loop.persistence.test_uploading import Memory, Watched, hanging
from tests.kit.process.test_signals import START
exec(START)
uploading.WATCH_S = 0.02
watched = Watched(Path(sys.argv[1]), Memory(), every_s=0.02, give_up_after_s=900.0)

def end():  # as the watch of Ray does
    with hanging(watched):
        say(watched.uploads.finish())
        os._exit(128 + watched.uploads.stopped_by)

with listening():
    threading.Thread(target=end, daemon=True).start()
    send(signal.SIGTERM)
    stuck()
"""


def test_a_signal_stops_waiting_for_the_store_also_where_the_main_thread_is_stuck_in_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path / "run")]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=root)
    assert done.returncode == 143, done.stderr
    assert done.stdout.startswith("SIGTERM ended the wait for the store before everything had been sent. Newest")


def test_a_run_that_ends_at_once_knows_what_the_store_lacks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploading, "WATCH_S", 0.02)
    watched = Watched(tmp_path / "run", Memory(), every_s=0.02)
    assert watched.uploads.unsent() is None, "nothing is to be sent yet"
    watched.uploads.begin()
    assert watched.uploads.unsent().startswith("Newest checkpoint: none in ")
    assert watched.uploads.finish() is None and watched.uploads.unsent() is None
    watched.uploads.close()


def test_the_end_of_a_lease_waits_no_longer_than_its_bound(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(lease, "END_S", 0.1)
    watched = Watched(tmp_path / "run", Memory())
    with hanging(watched):
        watched.uploads.close()
        assert "no answer in 0.1 s" in caplog.text


def test_a_store_that_hangs_at_the_start_is_named_while_it_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(uploading, "PATIENT_S", 0.05)
    monkeypatch.setattr(uploading, "require_base", lambda _: wait_until(lambda: said))
    (tmp_path / "store").mkdir()
    open_uploads(config(tmp_path, "one", tmp_path / "store"), False, said.append).close()
    assert re.match(f"store: waiting for {tmp_path / 'store'}, for [0-9]+ s so far", said[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_uploads_themselves_ends_the_run_and_is_not_silent(tmp_path: Path, monkeypatch) -> None:
    watched = Watched(tmp_path / "run", Memory())

    def fault() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(watched.mirror, "upload", fault)
    beside(watched, lambda: bool(watched.endings))
    assert "uploads have ended with an error; log/driver.log" in watched.endings[0].text


def test_a_run_without_a_store_uploads_nothing(tmp_path: Path) -> None:
    assert open_uploads(load("frozenlake", [f"runs_dir={tmp_path}"]), False, pytest.fail) is None


def config(tmp_path: Path, host: str, store: Path) -> Any:
    return load("frozenlake", [f"runs_dir={tmp_path / host}", f"store={store}", "name=it", "upload.lease_s=3"])


def test_a_folder_that_is_not_mounted_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"store: .*/nowhere is no folder on this host; mount or make it"):
        open_uploads(config(tmp_path, "a", tmp_path / "nowhere"), False, pytest.fail)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    uploads = open_uploads(config(tmp_path, "a", tmp_path / "mnt"), False, pytest.fail)
    assert uploads is not None
    (tmp_path / "a/it").mkdir(parents=True)
    (tmp_path / "a/it/config.yaml").touch()
    (tmp_path / "mnt").rename(tmp_path / "away")
    uploads.once()
    assert "has vanished: is the store still there?" in uploads.progress.cause
    uploads.close()
    assert not (tmp_path / "mnt").exists()


def test_a_store_that_cannot_be_written_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mnt").mkdir()

    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(tmp_path / "mnt"))

    monkeypatch.setattr(LocalStore, "create", refuse)
    with pytest.raises(UserError, match=r"mnt: Permission denied$"):
        open_uploads(config(tmp_path, "a", tmp_path / "mnt"), False, pytest.fail)


def test_an_empty_host_gets_the_run_and_a_second_driver_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    first = open_uploads(config(tmp_path, "a", tmp_path / "mnt"), False, pytest.fail)
    assert first is not None
    (tmp_path / "a/it").mkdir(parents=True)
    (tmp_path / "a/it/config.yaml").write_text("name: it\n")
    first.begin()
    with pytest.raises(UserError, match=r"process \d+ on .* works on this run"):
        open_uploads(config(tmp_path, "b", tmp_path / "mnt"), True, lambda _: None)
    assert first.finish() is None
    first.close()
    said = list[str]()
    second = open_uploads(config(tmp_path, "b", tmp_path / "mnt"), True, said.append)
    assert second is not None and (tmp_path / "b/it/config.yaml").read_text() == "name: it\n"
    assert said == [f"restored {tmp_path / 'b/it'} from {tmp_path / 'mnt/it'} (1 files)"]
    second.close()
