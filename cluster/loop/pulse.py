"""What is true of a run between two steps: states of its members, ages of its tickets, and the room on its disk.

A step's figures are exported when the step has ended. This module exports, every `BEAT_S` seconds, the figures that
must stay true while a step is late: nobody waits for it, and it waits for nobody. It runs on the coordinator's event
loop, so that it reads the fleet and the ledger without a lock; if that loop hangs, the exported times do not move, and
the ages that Prometheus computes from them go on growing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from cluster.config import RunConfig
from cluster.control.ledger import Ledger
from cluster.control.membership import MemberState
from cluster.fleet.fleet import Fleet

BEAT_S = 5.0


class Gauges(Protocol):
    """Takes the figures; `actors.metrics.exporter.Recorder` documents each call."""

    def set(self, name: str, value: float | None, **labels: str) -> None: ...

    def replace(self, name: str, values: Mapping[tuple[str, ...], float | None]) -> None: ...

    def retain(self, label: str, values: Collection[str]) -> None: ...


def limits(config: RunConfig, gauges: Gauges) -> None:
    """Exports the settings against which alert rules hold a run's figures."""
    gauges.set("squelch_staleness_limit_versions", config.loop.max_staleness)
    gauges.set("squelch_weight_parity_limit_nats", config.rollout.parity_limit)


def beat(fleet: Fleet, ledger: Ledger, run_dir: Path, gauges: Gauges) -> None:
    """Exports the present figures, and ends the series of members that have left."""
    members = [member for member in fleet.members() if member.state is not MemberState.RETIRED]
    states: dict[tuple[str, ...], float | None] = {
        (m.name, state.value): float(m.state is state) for m in members for state in MemberState
    }
    gauges.replace("squelch_actor_state", states)
    names = {member.name for member in members}
    gauges.retain("worker", names)
    gauges.retain("actor", names | fleet.up().keys())
    for state, since in ledger.oldest().items():
        gauges.set("squelch_oldest_ticket_timestamp_seconds", since, state=state)
    free, size = _room(run_dir)
    gauges.set("squelch_disk_free_bytes", free)
    gauges.set("squelch_disk_size_bytes", size)


def _room(folder: Path) -> tuple[float | None, float | None]:
    """Free bytes and size of the folder's disk; not known while it does not answer."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return usage.free, usage.total


@asynccontextmanager
async def pulse(fleet: Fleet, ledger: Ledger, run_dir: Path, gauges: Gauges) -> AsyncIterator[None]:
    """Exports the figures now, every `BEAT_S` seconds within the block, and once more at its end."""
    beat(fleet, ledger, run_dir, gauges)
    beating = asyncio.create_task(_beats(fleet, ledger, run_dir, gauges))
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        beat(fleet, ledger, run_dir, gauges)


async def _beats(fleet: Fleet, ledger: Ledger, run_dir: Path, gauges: Gauges) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        beat(fleet, ledger, run_dir, gauges)
