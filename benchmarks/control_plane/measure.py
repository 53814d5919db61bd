"""Measures the control plane at scale: the real coordinator, fleet, filter service, exporter and archive, with
stand-ins for all parties that generate or train (`benchmarks.control_plane.stand_ins`).

    python -m benchmarks.control_plane [--groups N] [--quick] [--json]

For 10, 100 and 1,000 rollout workers (and as many environment actors) it plays the same number of groups in steps of
1,000 groups at staleness 1 and prints

    groups/s          groups from ticket to archive per second of the whole run
    coordinator       processor milliseconds of the driver's process per group; archive and exporter included
    filter            the same of the filter service's process
    p50, p99          milliseconds from the last group of a window to the decision on it
    MiB at 10%, 100%  resident memory of the driver's process after a tenth of the groups, and at the end

The stand-ins use the same cores, so the rate is a lower bound. Every wait is bounded as in a real run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

from actors.archive.writer import Archive
from actors.filter.decisions import StepDecision
from actors.metrics.exporter import Recorder
from benchmarks.common import print_figures
from benchmarks.control_plane.stand_ins import StandIns
from cluster.config import RunConfig, load
from cluster.fleet import local_ray
from cluster.fleet.fleet import Fleet, party_names
from cluster.loop.coordinator import Coordinator
from cluster.loop.filtering import Filtering
from cluster.loop.playing import PlayedGroup
from cluster.loop.state import LoopState
from cluster.metrics import REGISTRY

WORKERS = (10, 100, 1000)
PROMPTS, GROUP_SIZE = 1000, 8
DELAY_S, TRAIN_S = 0.2, 0.05
OBJECT_STORE_BYTES = 2**30
OVERRIDES = (
    f"sampling.group_size={GROUP_SIZE}",
    "loop.max_staleness=1",
    "loop.checkpoint_every=1000000000",
    "validation.every=0",
    "scorer.enabled=false",
    "recorder.port=0",
)


class TimedFiltering:
    """The coordinator's side of the filter, which also notes how long each decision follows its window's last group."""

    def __init__(self, filtering: Filtering) -> None:
        self._filtering = filtering
        self._last: dict[int, float] = {}
        self.waits: list[float] = []
        """Seconds, one per decision."""

    @property
    def state(self) -> Any:
        """The filter's state at the last decision."""
        return self._filtering.state

    async def restore(self) -> None:
        """As `Filtering.restore`."""
        await self._filtering.restore()

    async def admit(self, groups: list[PlayedGroup]) -> None:
        """As `Filtering.admit`."""
        self._last |= {group.ticket.step: time.perf_counter() for group in groups}
        await self._filtering.admit(groups)

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """As `Filtering.close`."""
        decision = await self._filtering.close(step, final, target)
        self.waits.append(time.perf_counter() - self._last[step])
        return decision


@dataclass
class Memory:
    """Resident memory of this process by number of archived groups."""

    samples: list[tuple[int, float]] = field(default_factory=list)
    """(groups so far, MiB)."""

    def say(self, coordinator: Coordinator) -> None:
        """Notes the present memory."""
        groups = int(sum(coordinator.ledger.counts()[state] for state in ("trained", "dropped", "failed")))
        self.samples.append((groups, psutil.Process().memory_info().rss / 2**20))

    def at(self, share: float) -> float:
        """MiB once this share of all groups was archived."""
        total = self.samples[-1][0]
        return next(mib for groups, mib in self.samples if groups >= share * total)


def settings(workers: int, groups: int, prompts: int, folder: Path) -> RunConfig:
    """The run's configuration."""
    counts = (f"rollout.count={workers}", f"environment_actor.count={workers}")
    steps = (f"loop.steps={max(2, groups // prompts)}", f"loop.prompts={prompts}")
    return load("frozenlake", [*OVERRIDES, *counts, *steps, f"runs_dir={folder}", "name=run"])


async def measure(config: RunConfig) -> dict[str, float]:
    """Runs the configuration on stand-ins; returns the figures of the module's head."""
    archive = Archive(config.run_dir)
    parties = StandIns(config, config.run_dir / "log", DELAY_S, TRAIN_S)
    fleet, memory = Fleet(config, parties, archive.event), Memory()
    names, actors = party_names(config)
    recorder = Recorder(config.recorder, REGISTRY, seeds={"worker": names, "actor": actors})
    recorder.start()
    try:
        await fleet.start()
        coordinator = Coordinator(config, fleet, archive, recorder, LoopState(), lambda _: memory.say(coordinator))
        timed = coordinator.filtering = TimedFiltering(coordinator.filtering)
        service = psutil.Process(ray.get(fleet.filter.handle.__ray_call__.remote(lambda _: os.getpid())))
        filter_before, began, cpu = sum(service.cpu_times()[:2]), time.perf_counter(), time.process_time()
        await coordinator.run()
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        filter_cpu = sum(service.cpu_times()[:2]) - filter_before
    finally:
        await fleet.stop()
        archive.close()
        recorder.close()
    memory.say(coordinator)
    groups = memory.samples[-1][0]
    assert coordinator.ledger.balanced() and groups == config.loop.steps * config.loop.prompts
    p50, p99 = np.percentile(1e3 * np.array(timed.waits), [50, 99])
    return {
        "groups": groups,
        "groups_per_second": groups / wall,
        "coordinator_ms": 1e3 * cpu / groups,
        "filter_ms": 1e3 * filter_cpu / groups,
        "decision_p50_ms": float(p50),
        "decision_p99_ms": float(p99),
        "mib_tenth": memory.at(0.1),
        "mib_end": memory.samples[-1][1],
    }


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20_000, help="groups for each number of workers")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--quick", action="store_true", help="2,000 groups in steps of 200 for 10 and 100 workers")
    parser.add_argument("--json", action="store_true", help="one object of figures")
    options = parser.parse_args()
    workers, groups, prompts = ([10, 100], 2000, 200) if options.quick else (options.workers, options.groups, PROMPTS)
    found: dict[str, dict[str, float]] = {}
    local_ray.start(4, OBJECT_STORE_BYTES, {}, log_to_driver=False, logging_level="WARNING")
    try:
        for count in workers:
            with tempfile.TemporaryDirectory() as folder:
                found[str(count)] = asyncio.run(measure(settings(count, groups, prompts, Path(folder))))
    finally:
        local_ray.stop()
    columns = ("workers", "groups/s", "coordinator ms", "filter ms", "p50 ms", "p99 ms", "MiB at 10%", "MiB at 100%")
    keys = ("groups_per_second", "coordinator_ms", "filter_ms", "decision_p50_ms", "decision_p99_ms")
    rows = [[name, *(f[key] for key in (*keys, "mib_tenth", "mib_end"))] for name, f in found.items()]
    notes = [f"{groups} groups of {GROUP_SIZE} for each number of workers, {prompts} a step, staleness 1"]
    print_figures(found, options.json, columns, rows, notes)
    return 0
