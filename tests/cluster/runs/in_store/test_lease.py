"""One driver at a time: who holds the lease is named, and a lease that nobody renews can be taken."""

import json
import os
import re
import threading
from collections.abc import Callable

import psutil
import pytest

from squelch.cluster.runs.in_store import lease
from squelch.cluster.runs.in_store.lease import Driver, Lease, acquire, key_of, this_process
from squelch.kit.base.errors import UserError
from tests.stores import Down, Memory

ONE, OTHER = Driver("process 1 on one", "one", 1, 0.0), Driver("process 1 on other", "other", 1, 0.0)


def take(store: Memory, driver: Driver = ONE, sleep: Callable[[float], None] | None = None) -> Lease:
    def never(_: float) -> None:
        raise AssertionError("nothing is there to wait for")

    return acquire(store, 60.0, driver, lambda _: None, sleep or never)


def test_a_lease_that_was_given_up_is_taken_without_waiting() -> None:
    store = Memory()
    first = take(store)
    first.end()
    second = take(store, OTHER)
    assert (first.generation, second.generation) == (1, 2)
    assert store.list() == [key_of(1), key_of(2)]
    assert take(Memory()).generation == 1


def test_a_driver_that_renews_its_lease_is_named_to_the_next() -> None:
    store, said = Memory(), list[str]()
    first = take(store)
    with pytest.raises(UserError, match=r"process 1 on one works on this run.*name=NAME"):
        acquire(store, 60.0, OTHER, said.append, lambda _: first.renew())
    assert re.search("up to 60 s .* process 1 on one still works", said[0])
    first.renew()
    assert not first.lost


def test_a_lease_that_nobody_renews_runs_out_by_the_clock_of_whoever_waits() -> None:
    store, slept = Memory(), list[float]()
    first = take(store)
    second = take(store, OTHER, slept.append)
    assert second.generation == 2 and sum(slept) == pytest.approx(60.0)
    first.renew()
    assert first.lost == OTHER.owner, "the first finds out and writes no beat"
    assert json.loads(store.files[key_of(1)])["beat"] == 0


def test_of_drivers_that_want_a_lease_at_once_one_gets_it() -> None:
    store = Memory()
    take(store)
    found = list[Lease]()

    def quicker(_: float) -> None:
        if not found:
            found.append(take(store, OTHER, lambda _: None))
        found[0].renew()

    with pytest.raises(UserError, match="process 1 on other works on this run"):
        acquire(store, 60.0, Driver("third", "third", 3, 0.0), lambda _: None, quicker)


def test_the_lease_of_a_process_that_died_on_this_host_is_taken_at_once() -> None:
    store, me = Memory(), this_process()
    assert me.space and me.pid == os.getpid()
    take(store, Driver("dead", me.space, me.pid, me.born - 100.0))  # the number has been given to another process since
    assert take(store, me).generation == 2
    gone = max(psutil.pids()) + 10_000
    store = Memory()
    take(store, Driver("dead", me.space, gone, me.born))
    assert take(store, me).generation == 2
    with pytest.raises(AssertionError, match="nothing is there"):
        take(store, me)  # this process lives


def test_a_process_that_lives_keeps_its_lease_when_the_clock_of_its_host_is_set(monkeypatch) -> None:
    store, me = Memory(), this_process()
    take(store, me)
    unset = psutil._pslinux.boot_time  # type: ignore[attr-defined]
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: unset() + 30.0)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="nothing is there"):
        take(store, this_process())


def test_a_lease_that_was_removed_by_hand_gives_its_generation_to_nobody() -> None:
    store = Memory({key_of(7): b"damaged"})
    with pytest.raises(UserError, match=r"000000007\.json.*not JSON.*; remove the file if no driver works on this run"):
        take(store)
    del store.files[key_of(7)]
    assert acquire(store, 60.0, ONE, lambda _: None, above=7).generation == 8
    assert take(store, ONE, lambda _: None).generation == 9


def test_a_store_that_fails_or_vanishes_is_a_warning_and_not_the_end(caplog) -> None:
    store = Memory()
    held = acquire(store, 0.3, ONE, lambda _: None).start()
    store.lives = 0
    wait_for(lambda: "was not renewed: memory: the store is down" in caplog.text)
    store.lives = 10**9
    beat = store.files[key_of(1)]
    wait_for(lambda: store.files[key_of(1)] != beat)
    del store.files[key_of(1)]
    with pytest.raises(OSError, match=r"lease/000000001\.json has vanished"):
        held.check()
    wait_for(lambda: "has vanished" in caplog.text)
    held.end()
    assert key_of(1) not in store.files, "a store that is not there is not made again"


def wait_for(what: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(100):
        if what():
            return
        never.wait(0.05)
    raise AssertionError("it did not come about in 5 s")


def test_a_store_that_cannot_be_written_or_a_damaged_lease_is_an_error_that_names_it() -> None:
    with pytest.raises(Down):
        take(Memory(lives=0))
    store = Memory({key_of(4): b'{"owner": 3}'})
    with pytest.raises(UserError, match=r"lease/000000004\.json is no lease"):
        take(store)
    assert lease.MAX_BYTES > 1000
