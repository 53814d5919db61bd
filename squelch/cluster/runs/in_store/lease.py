"""The lease on a run's place in a store: it admits one driver. Pure, apart from the thread that renews it.

    lease/000000003.json     the lease of generation 3: owner, seconds, beat, ended

Invariants:

- Generation g + 1 is taken by creating its file, which succeeds for one driver only (`Store.create`). No clock of
  another host is believed: a lease has run out when the driver that wants it has watched it for `seconds` seconds
  without a new beat.
- A generation is higher than those of all leases and manifests that are there, also after leases were removed by hand.
  So no two drivers send files under one name.
- The owner of the newest generation is the driver. An owner that was away for too long finds a newer generation, and
  its next manifest is refused (`cluster.runs.in_store.manifest`), so that it can change nothing any more.

Waiting: a driver waits for the lease at most `seconds` of its owner; a live owner is named after a third of that. The
lease of a process that has died on the same host is taken at once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import ConfigDict, Field, ValidationError

from squelch.cluster.daemon_thread import OwnThread
from squelch.kit.archive.store import Store
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.base.settings import Settings
from squelch.kit.untrusted.files import Unreadable, read_bounded, reason
from squelch.kit.untrusted.text import parse_object

log = logging.getLogger(__name__)
FOLDER = "lease"
MAX_BYTES = 64 << 10
END_S = 10.0
"""Seconds that the end of a run may wait for the end of its lease: the store may hang."""
ATTEMPTS = 5
"""Number of times that a driver tries to take a lease that others want too."""
_REMEDY = "remove the file if no driver works on this run"
_KEY = re.compile(rf"{FOLDER}/([0-9]{{9}})\.json")


@dataclass(frozen=True)
class Driver:
    """The process that wants a lease. `space`: where its process id counts; `born`: when it started, as `born_at`."""

    owner: str
    space: str
    pid: int
    born: float


class Terms(Settings):
    """The content of a lease's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    owner: str = Field(max_length=300)
    space: str = Field(max_length=300)
    pid: int = Field(ge=0)
    born: float
    seconds: float = Field(gt=0, le=86_400)
    beat: int = Field(0, ge=0)
    ended: bool = False


def this_process() -> Driver:
    """The current process as a driver."""
    pid, host = os.getpid(), socket.gethostname()
    space = "/".join([host, *(_fact(Path(name)) for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"))])
    return Driver(f"process {pid} on {host}", space, pid, born_at(pid))


def born_at(pid: int) -> float:
    """When a process started: on Linux seconds since the boot, which do not change when the host's clock is set, else
    Unix seconds. Raises psutil.NoSuchProcess."""
    created = psutil.Process(pid).create_time()
    return created - psutil.boot_time() if psutil.LINUX else created


def _fact(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path) if path.is_symlink() else path.read_text().strip()
    return ""


class Lease:
    """A lease that this driver holds and renews until `end`."""

    def __init__(self, store: Store, generation: int, terms: Terms) -> None:
        self.store, self.generation, self._terms = store, generation, terms
        self.lost: str | None = None
        """The driver that has taken over, once that is known."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> Lease:
        """Begins to renew the lease three times per `seconds`."""
        self._thread.start()
        return self

    def check(self) -> None:
        """Sets `lost` if another driver has taken over. Raises OSError if the store fails, or if the lease's file has
        vanished with it, so that nothing is written where a folder is not mounted any more."""
        newest = _newest(self.store)
        if newest > self.generation:
            self.lost = read(self.store, newest).owner
        elif newest < self.generation:
            raise OSError(f"{self.store.where(key_of(self.generation))} has vanished: is the store still there?")

    def renew(self) -> None:
        """Writes the next beat, unless another driver has taken over. Raises as `check`."""
        self.check()
        if not self.lost:
            self._write(self._terms.model_copy(update={"beat": self._terms.beat + 1}))

    def end(self) -> None:
        """Ends the lease, so that the next driver need not wait; if that fails or takes longer than END_S, the lease
        expires."""
        self._done.set()
        try:
            OwnThread().submit(self._end).result(END_S)
        except TimeoutError:
            log.warning("the lease on %s runs out by itself: no answer in %g s", self.store.where(), END_S)

    def _end(self) -> None:
        if self._thread.is_alive():
            self._thread.join(self._terms.seconds)
        try:
            self.renew()
            if not self.lost:
                self._write(self._terms.model_copy(update={"ended": True}))
        except (OSError, UserError) as error:
            log.warning("the lease on %s runs out by itself: %s", self.store.where(), error)

    def _write(self, terms: Terms) -> None:
        self._terms = terms
        with self.store.put(key_of(self.generation)) as file:
            file.write(_bytes(terms))

    def _keep(self) -> None:
        while not self.lost and not self._done.wait(self._terms.seconds / 3):
            try:
                self.renew()
            except (OSError, UserError) as error:
                log.warning("the lease on %s was not renewed: %s", self.store.where(), reason(error))


def acquire(
    store: Store,
    seconds: float,
    driver: Driver,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    above: int = 0,
) -> Lease:
    """Takes the lease; the caller starts and ends it.

    Args:
        above: the generation of the newest manifest; that of the lease is higher.

    Raises:
        UserError: another driver holds the lease; the message names it.
        OSError: the store cannot be read or written.
    """
    terms = Terms(owner=driver.owner, space=driver.space, pid=driver.pid, born=driver.born, seconds=seconds)
    for _ in range(ATTEMPTS):
        newest = _newest(store)
        if newest:
            _await_end(store, newest, driver, say, sleep)
        generation = max(newest, above) + 1
        if store.create(key_of(generation), _bytes(terms)):
            _forget(store, newest)
            return Lease(store, generation, terms)
    raise UserError(f"{store.where()}: other drivers take the lease at the same time; start only one")


def _await_end(
    store: Store, generation: int, driver: Driver, say: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Returns once the lease is over. UserError if its owner renews it."""
    held = read(store, generation)
    if held.ended or _died_here(held, driver):
        return
    say(f"{store.where()}: waiting up to {held.seconds:g} s to see whether {held.owner} still works on this run")
    pause = held.seconds / 30
    for _ in range(30):
        sleep(pause)
        now = read(store, generation)
        if now.ended:
            return
        if now.beat != held.beat:
            raise UserError(
                f"{store.where()}: {held.owner} works on this run. Stop that driver first, or choose another name "
                "with name=NAME"
            )


def _died_here(held: Terms, driver: Driver) -> bool:
    """Whether the lease's process ran on this host and is gone."""
    if held.space != driver.space:
        return False
    try:
        born = born_at(held.pid)
    except psutil.NoSuchProcess:
        return True
    return abs(born - held.born) > 1


def key_of(generation: int) -> str:
    """The key of a lease's file."""
    return f"{FOLDER}/{generation:09d}.json"


def read(store: Store, generation: int) -> Terms:
    """The terms of a lease. UserError if the file is damaged."""
    where = store.where(key_of(generation))
    with bad_files_are_the_users(), store.get(key_of(generation)) as file:
        try:
            return Terms.model_validate(parse_object(read_bounded(file, MAX_BYTES, where), where))
        except ValidationError as error:
            raise Unreadable(f"{where} is no lease ({error.errors()[0]['msg']}); {_REMEDY}") from error
        except Unreadable as error:
            raise Unreadable(f"{error}; {_REMEDY}") from error


def _newest(store: Store) -> int:
    """The newest generation; 0 if there is none."""
    found = [_KEY.fullmatch(key) for key in store.list(f"{FOLDER}/")]
    return max((int(match[1]) for match in found if match), default=0)


def _forget(store: Store, generation: int) -> None:
    """Deletes the files of generations before this one."""
    for key in store.list(f"{FOLDER}/"):
        if (match := _KEY.fullmatch(key)) and int(match[1]) < generation:
            store.delete(key)


def _bytes(terms: Terms) -> bytes:
    content: dict[str, Any] = terms.model_dump()
    return json.dumps(content).encode()
