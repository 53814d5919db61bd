"""How late the parties of a run answer and mark progress on a machine under load.

The parties play tickets while busy processes bring the machine to the load of `BUSY` more runnable threads. What is
recorded is what supervision sees: seconds until an answer, and seconds between two questions that found a new mark.
`tests/cluster/fleet/test_supervision.py` replays the file for half an hour of virtual time.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.admission import validation_tickets
from squelch.cluster.control.calls import FILTER_READY
from squelch.cluster.fleet.bootstrap import connect, disconnect
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.cluster.loop.initial_policy import prepare_model
from squelch.cluster.loop.tickets.playing import Play
from squelch.cluster.runs.logs import log_folder
from tests.e2e.faults.cell import SMALL

BUSY = 16
ASK_EVERY_S = 0.5
KEPT_LARGEST, KEPT_RANDOM = 40, 80


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs `count` processes that never wait."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


def record(file: Path, model: str, seconds: float) -> None:
    """Measures for `seconds` seconds and writes the file."""
    words = [*SMALL, "loop.steps=1", "learner.ranks=1", "rollout.count=1", f"model.path={model}"]
    with tempfile.TemporaryDirectory(prefix="delays-") as folder:
        config = load("frozenlake", [*words, f"runs_dir={folder}", "validation.tasks=16"])
        found = measure(config, prepare_model(config, print), log_folder(config.run_dir), seconds)
    file.write_text(json.dumps(found) + "\n")
    print(json.dumps({key: value for key, value in found.items() if not isinstance(value, list)}))


def measure(config: RunConfig, model: Path, logs: Path, seconds: float) -> dict[str, Any]:
    """The delays, in seconds, and the machine's load."""
    connect(config, lambda _: None, learning=False)
    try:
        return asyncio.run(_measure(config, model, logs, seconds))
    finally:
        disconnect()


async def _measure(config: RunConfig, model: Path, logs: Path, seconds: float) -> dict[str, Any]:
    actors = RayActors(config, model, logs)
    fleet = Fleet(config, actors, lambda *_, **__: None)
    seen: dict[str, list[float]] = {"answer_s": [], "mark_s": []}
    try:
        await fleet.start(learning=False)
        fleet.filter = actors.filter()
        await fleet.filter.call(FILTER_READY, [])
        with busy(BUSY):
            playing = asyncio.ensure_future(_play(config, fleet))
            asked = [*(member.actor for member in fleet.members()), fleet.filter]
            await asyncio.gather(*(_ask(actor, seconds, seen) for actor in asked))
            load = os.getloadavg()[0]
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing
    finally:
        await fleet.stop()
    delays = {kind: _sample(found) for kind, found in seen.items()}
    longest = {f"longest_{kind}": max(found) for kind, found in seen.items()}
    return {**delays, **longest, "load": load, "cores": os.cpu_count(), "seconds": seconds}


async def _play(config: RunConfig, fleet: Fleet) -> None:
    tickets = validation_tickets(config.environment, config.validation.tasks, 0, 1.0)
    while True:
        await Play(config, fleet).validate(tickets)


async def _ask(actor: Any, seconds: float, seen: dict[str, list[float]]) -> None:
    deadline, marked, marks = time.monotonic() + seconds, time.monotonic(), -1
    while (asked := time.monotonic()) < deadline:
        progress = await actor.progress()
        now = time.monotonic()
        seen["answer_s"].append(now - asked)
        if progress.busy and progress.marks > marks:
            if marks >= 0:
                seen["mark_s"].append(now - marked)
            marks, marked = progress.marks, now
        elif not progress.busy:
            marks, marked = -1, now
        await asyncio.sleep(ASK_EVERY_S)


def _sample(found: list[float]) -> list[float]:
    """The largest delays and a random choice of the others, so that the replay is no better than the machine was."""
    ordered = sorted(found)
    rest = ordered[:-KEPT_LARGEST]
    chosen = random.Random(0).sample(rest, min(KEPT_RANDOM, len(rest)))
    return [round(one, 4) for one in sorted([*chosen, *ordered[-KEPT_LARGEST:]])]
