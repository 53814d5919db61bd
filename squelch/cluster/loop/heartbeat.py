"""Exports the state of a run between two steps: states of its members, ages of its tickets, and free disk space.

A step's metrics are exported when the step has ended. This module exports, every `BEAT_S` seconds, the metrics that
must stay correct while a step is late: nobody waits for it, and it waits for nobody. It runs on the coordinator's event
loop, so it reads the fleet and the ledger without a lock. If that loop hangs, the exported times stay the same, and the
ages that Prometheus computes from them keep growing. A disk that hangs blocks a thread of its own and not the loop.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.control.membership import MemberState
from squelch.cluster.daemon_thread import OwnThread
from squelch.cluster.fleet.fleet import Fleet
from squelch.kit.metrics.exporter import Recorder

BEAT_S = 5.0
DISK_S = 0.05
"""Seconds that a beat waits for the disk's answer, which takes microseconds. While an answer is late, no further beat
waits for it."""


def limits(config: RunConfig, gauges: Recorder) -> None:
    """Exports the settings with which alert rules compare a run's metrics."""
    gauges.set("squelch_staleness_limit_versions", config.loop.max_staleness)
    gauges.set("squelch_weight_parity_limit_nats", config.rollout.parity_limit)


COMING = frozenset({MemberState.STARTING, MemberState.STALE})
"""States of a member that is neither up nor down yet."""


class Heartbeat:
    """Exports the current values at each `beat`, and ends the series of members that have left."""

    def __init__(self, fleet: Fleet, ledger: Ledger, run_dir: Path, gauges: Recorder) -> None:
        self._fleet, self._ledger, self._gauges = fleet, ledger, gauges
        self._disk = _Disk(run_dir)

    def beat(self) -> None:
        """Exports the current values."""
        self._members()
        for state, since in self._ledger.oldest().items():
            self._gauges.set("squelch_oldest_ticket_timestamp_seconds", since, state=state)
        free, size = self._disk.free_space()
        self._gauges.set("squelch_disk_free_bytes", free)
        self._gauges.set("squelch_disk_size_bytes", size)

    def _members(self) -> None:
        members = self._fleet.members()
        states: dict[tuple[str, ...], float | None] = {
            (member.name, state.value): float(member.state is state)
            for member in members
            if member.state is not MemberState.RETIRED
            for state in MemberState
        }
        self._gauges.replace("squelch_actor_state", states)
        coming = {member.name for member in members if member.state in COMING}
        up: dict[tuple[str, ...], float | None] = {
            (name,): float(is_up) for name, is_up in self._fleet.up().items() if name not in coming
        }
        self._gauges.replace("squelch_actor_up", up)
        gone = {member.name for member in members if member.state is MemberState.RETIRED}
        for label in ("worker", "actor") if gone else ():
            self._gauges.forget(label, gone)


class _Disk:
    """The disk of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: Future[Any] | None = None

    def free_space(self) -> tuple[float | None, float | None]:
        """Free bytes and size; not known while the disk does not answer."""
        late, self._asked = self._asked, self._asked or OwnThread().submit(shutil.disk_usage, self._folder)
        try:
            usage = self._asked.result(0 if late else DISK_S)
        except TimeoutError:
            return None, None
        except OSError:
            self._asked = None
            return None, None
        self._asked = None
        return usage.free, usage.total


@asynccontextmanager
async def beating(heartbeat: Heartbeat) -> AsyncIterator[None]:
    """Beats now, every `BEAT_S` seconds within the block, and once more at its end."""
    heartbeat.beat()
    task = asyncio.create_task(_beats(heartbeat))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        heartbeat.beat()


async def _beats(heartbeat: Heartbeat) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        heartbeat.beat()
