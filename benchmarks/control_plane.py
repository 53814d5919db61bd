"""Measures the control plane at scale: the real coordinator, fleet, filter, exporter and archive, with stand-ins for
all actors that generate or train (`tests.stand_ins.processes`).

    python -m benchmarks.control_plane [--workers N ...] [--groups N] [--prompts P] [--ray] [--quick] [--json]

For 10, 100 and 1,000 rollout workers (and as many environment actors) it plays the same number of groups in steps of
1,000 groups at staleness 1 and prints

    groups/s      groups from ticket to archive per second of the whole run
    coordinator   processor milliseconds of the driver's process per group; archive and exporter included
    filter        the same of the filter's process
    stand-ins     the same of the processes that answer for environment actors and rollout workers
    MiB           resident memory of the driver's process at the end

The stand-ins use the same cores, so the rate is a lower bound. With `--ray` each actor is reached by one Ray call, as
in a run, and Ray's own work is included. Every wait is bounded as in a real run.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.common import parser_of, print_metrics
from squelch.cluster.config import RunConfig, load
from squelch.cluster.fleet.fleet import Fleet, actor_names
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.wiring import make_coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.kit.archive.writer import Archive
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.loggers import Loggers
from tests.stand_ins.processes import ProcessStandIns

if TYPE_CHECKING:
    from tests.stand_ins.behind_ray import RayStandIns

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


def settings(workers: int, groups: int, prompts: int, folder: Path) -> RunConfig:
    """The run's configuration."""
    counts = (f"rollout.count={workers}", f"environment_actor.count={workers}")
    steps = (f"loop.steps={max(2, groups // prompts)}", f"loop.prompts={prompts}")
    return load("frozenlake", [*OVERRIDES, *counts, *steps, f"runs_dir={folder}", "name=run"])


def cpu_seconds(pids: list[int]) -> float:
    """Processor seconds that these processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


async def measure(config: RunConfig, over_ray: bool) -> dict[str, float]:
    """Runs the configuration on stand-ins; returns the metrics of the module's head."""
    archive = Archive(config.run_dir)
    actors = stand_ins(config, over_ray)
    fleet = Fleet(config, actors, archive.event)
    names, everybody = actor_names(config)
    recorder = Recorder(config.recorder, REGISTRY, seeds={"worker": names, "actor": everybody})
    recorder.start()
    try:
        await actors.connect()
        await fleet.start()
        coordinator = make_coordinator(config, fleet, archive, Loggers(recorder, []), LoopState(), lambda _: None)
        service, hosts = await actors.pids()
        before = [cpu_seconds([service]), cpu_seconds(hosts), time.process_time()]
        began = time.perf_counter()
        await coordinator.run()
        wall = time.perf_counter() - began
        after = [cpu_seconds([service]), cpu_seconds(hosts), time.process_time()]
    finally:
        await fleet.stop()
        actors.end()
        archive.close()
        recorder.close()
    counts, groups = coordinator.steps.ledger.counts(), config.loop.steps * config.loop.prompts
    done = sum(counts[state] for state in ("trained", "dropped", "failed"))
    assert coordinator.steps.ledger.balanced() and done == groups
    of_filter, of_hosts, of_driver = (1e3 * (b - a) / groups for a, b in zip(before, after, strict=True))
    return {
        "groups": groups,
        "groups_per_second": groups / wall,
        "coordinator_ms": of_driver,
        "filter_ms": of_filter,
        "stand_ins_ms": of_hosts,
        "mib_end": psutil.Process().memory_info().rss / 2**20,
    }


def stand_ins(config: RunConfig, over_ray: bool) -> ProcessStandIns | RayStandIns:
    """The actors; Ray is imported only if it carries the calls."""
    if over_ray:
        from tests.stand_ins.behind_ray import RayStandIns

        return RayStandIns(config, config.run_dir / "log", DELAY_S, TRAIN_S)
    return ProcessStandIns(config, DELAY_S, TRAIN_S)


@contextmanager
def transport(over_ray: bool) -> Iterator[None]:
    """Ray on this machine while the block runs, if it carries the calls."""
    if not over_ray:
        yield
        return
    from squelch.cluster.fleet import local_ray

    local_ray.start(4, OBJECT_STORE_BYTES, {}, log_to_driver=False, logging_level="WARNING")
    try:
        yield
    finally:
        local_ray.stop()


def main() -> int:
    """Prints the table."""
    parser = parser_of(__doc__, "4,000 groups in steps of 200 for 10 and 100 workers")
    parser.add_argument("--groups", type=int, default=20_000, help="groups for each number of workers")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="groups of a step")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--ray", action="store_true", help="reach each actor by one Ray call, as a run does")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.groups, options.prompts = [10, 100], 4000, 200
    found: dict[str, dict[str, float]] = {}
    with transport(options.ray):
        for count in options.workers:
            with tempfile.TemporaryDirectory() as folder:
                config = settings(count, options.groups, options.prompts, Path(folder))
                found[str(count)] = asyncio.run(measure(config, options.ray))
    columns = ("workers", "groups/s", "coordinator ms", "filter ms", "stand-ins ms", "MiB")
    keys = ("groups_per_second", "coordinator_ms", "filter_ms", "stand_ins_ms", "mib_end")
    rows = [[name, *(f[key] for key in keys)] for name, f in found.items()]
    how = "one Ray call each" if options.ray else "one message a tick and process, no Ray"
    notes = [
        f"{options.groups} groups of {GROUP_SIZE} for each number of workers, {options.prompts} a step, staleness 1",
        f"calls to actors: {how}",
    ]
    print_metrics(found, options.json, columns, rows, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
