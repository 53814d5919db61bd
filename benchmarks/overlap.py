"""Measures what overlap is worth: steps an hour at `loop.max_staleness` 1 and 2 against synchronous training.

    python -m benchmarks.overlap [--real [key=value ...]] [--steps N] [--quick] [--json]

A synchronous step generates, trains, publishes and records one after another. With overlap the next steps' groups are
played meanwhile, so that a step takes as long as the slower of two stages: generation, or everything else. The gain is
largest when both take the same time, which a simulated generation delay brings about here.

By default generation, training and publication are sleeps of random length (`tests.stand_ins.paced`), and
coordinator, fleet, filter, archive and exporter are the real ones: the schedule alone is measured. With `--real` Ray,
vLLM, the environments and the learner work on the tiny policy. A synchronous run without a delay measures both stages,
and the rollout worker then takes as much longer for a token as balances them (`tests.stand_ins.slow_worker`). One
learner thread and one engine thread keep a core each, so `--real` needs two idle cores.

It prints, for each staleness bound S: seconds a step, steps an hour and their ratio to S = 0, the largest staleness
that occurred, and the share of time in which rollout worker and learner were idle. `ceiling` is the ratio at which the
slower stage of the synchronous run never waits.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser_of, print_metrics
from squelch.cluster.config import RunConfig, load
from squelch.cluster.control.protocols import Actors
from squelch.cluster.fleet.fleet import Fleet, actor_names
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.wiring import make_coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.timing.intervals import clip_intervals, union_seconds
from squelch.kit.archive.reader import is_of_step, read_metrics
from squelch.kit.archive.writer import Archive
from squelch.kit.metrics.exporter import Recorder
from tests.stand_ins.paced import PacedActors, Times

BOUNDS = (0, 1, 2)
STAND_INS = Times(generate_s=1.0, train_s=0.8, publish_s=0.1, load_s=0.05)
WARM_UP, LAST = 3, 2
"""Steps at both ends that are not measured: with overlap the first fill the schedule, and the last empty it."""
COMMON = (
    "loop.checkpoint_every=1000000000",
    "validation.every=0",
    "scorer.enabled=false",
    "recorder.port=0",
    "filter.rule=none",
    "filter.include_zero=true",
)
REAL = ("learner.num_threads=1", "rollout.num_threads=1", "learner.minibatches=4")
Make = Callable[[RunConfig], Actors]


def settings(bound: int, steps: int, folder: Path, overrides: Sequence[str]) -> RunConfig:
    """The configuration of one run; every group is trained on, so that the stages keep their sizes."""
    own = (f"loop.max_staleness={bound}", f"loop.steps={steps}", f"runs_dir={folder}", f"name=staleness-{bound}")
    return load("frozenlake", [*COMMON, *overrides, *own])


async def run(config: RunConfig, actors: Actors) -> None:
    """Runs the configuration on these actors; its folder has the metrics."""
    archive = Archive(config.run_dir)
    fleet = Fleet(config, actors, archive.event)
    workers, names = actor_names(config)
    with closing(Recorder(config.recorder, REGISTRY, seeds={"worker": workers, "actor": names})) as recorder:
        recorder.start()
        try:
            await fleet.start()
            coordinator = make_coordinator(config, fleet, archive, recorder, LoopState(), lambda _: None)
            await coordinator.run()
        finally:
            await fleet.stop()
            archive.close()
    if not coordinator.steps.ledger.balanced():
        raise RuntimeError(f"the ledger does not balance: {coordinator.steps.ledger.counts()}")


def measured(config: RunConfig) -> list[dict[str, Any]]:
    """The metrics of the measured steps."""
    rows = read_metrics(config.run_dir)
    return [row for row in rows if WARM_UP < row["step"] <= config.loop.steps - LAST and is_of_step(row)]


def busy_shares(config: RunConfig, steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of the measured time in which each actor worked. The learner also works while weights are published."""
    events = [json.loads(line) for line in (config.run_dir / "events.jsonl").read_text().splitlines()]
    spans: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        actor = "learner" if event["name"] == "weights" else event["actor"]
        if event["name"] in ("work", "weights"):
            spans.setdefault(actor, []).append((event["start"], event["end"]))
    ends = [event["end"] for event in events if event["name"] == "call" and event["actor"] == "learner"]
    begin, end = ends[WARM_UP - 1], ends[config.loop.steps - LAST - 1]
    return {actor: union_seconds(clip_intervals(own, begin, end)) / (end - begin) for actor, own in spans.items()}


def summary(config: RunConfig) -> dict[str, float]:
    """The metrics of one run."""
    steps = measured(config)
    seconds = float(np.mean([row["seconds/step"] for row in steps]))
    busy = busy_shares(config, steps)
    return {
        "seconds": seconds,
        "steps_per_hour": 3600.0 / seconds,
        "staleness_max": float(max(row["staleness_max"] for row in steps)),
        "rollout_seconds": float(np.mean([row["seconds/rollout"] for row in steps])),
        "tokens": float(np.mean([row["tokens/sampled"] for row in steps])),
        "rollout_idle": 1.0 - busy["rollout-0"],
        "learner_idle": 1.0 - busy["learner"],
    }


def compare(steps: int, folder: Path, overrides: Sequence[str], make: Make) -> dict[str, dict[str, float]]:
    """The metrics of one run for each of BOUNDS."""
    found = {}
    for bound in BOUNDS:
        config = settings(bound, steps, folder, overrides)
        asyncio.run(run(config, make(config)))
        found[f"S={bound}"] = summary(config)
    synchronous = found["S=0"]
    generation = synchronous["rollout_seconds"]
    ceiling = synchronous["seconds"] / max(generation, synchronous["seconds"] - generation)
    for own in found.values():
        own |= {"ratio": synchronous["seconds"] / own["seconds"], "ceiling": ceiling}
    return found


def compare_real(steps: int, folder: Path, overrides: Sequence[str]) -> dict[str, dict[str, float]]:
    """The same on real actors, in one Ray cluster; the delay is measured first."""
    from squelch.cluster.fleet.bootstrap import connect, disconnect
    from squelch.cluster.loop.initial_policy import prepare_model
    from tests.stand_ins.slow_worker import SlowActors

    overrides = [*REAL, *overrides]
    trial = settings(0, steps, folder / "trial", overrides)
    model_dir, logs = prepare_model(trial, lambda _: None), folder / "log"
    connect(trial, lambda _: None)
    try:
        asyncio.run(run(trial, SlowActors(trial, model_dir, logs, 0.0)))
        alone = summary(trial)
        missing = alone["seconds"] - 2 * alone["rollout_seconds"]
        delay = max(0.0, missing) / alone["tokens"]
        found = compare(steps, folder, overrides, lambda config: SlowActors(config, model_dir, logs, delay))
    finally:
        disconnect()
    return found | {"alone": alone | {"delay_ms_per_token": 1000.0 * delay}}


def main() -> int:
    """Prints the table."""
    parser = parser_of(__doc__, "10 steps with stand-ins")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the runs")
    parser.add_argument("--real", action="store_true", help="real actors on the tiny policy, instead of stand-ins")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    steps = 10 if options.quick else options.steps
    if steps <= WARM_UP + LAST:
        parser.error(f"--steps {steps}: more than {WARM_UP + LAST} are needed, because both ends are not measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.real and not options.quick:
            found = compare_real(steps, folder, options.overrides)
        else:
            found = compare(steps, folder, options.overrides, lambda config: PacedActors(config, STAND_INS))
    keys = ("seconds", "steps_per_hour", "ratio", "staleness_max", "rollout_idle", "learner_idle")
    rows = [[name, *(own[key] for key in keys)] for name, own in found.items() if "ratio" in own]
    notes = [f"ceiling of the ratio: {found['S=0']['ceiling']:.2f}; {steps} steps, {WARM_UP + LAST} not measured"]
    if "alone" in found:
        alone = found["alone"]
        notes.append(
            f"without delay: {alone['seconds']:.2f} s a step, {alone['rollout_seconds']:.2f} of them generation; delay "
            f"{alone['delay_ms_per_token']:.3f} ms a token"
        )
    columns = ("run", "seconds a step", "steps an hour", "ratio", "staleness", "rollout idle", "learner idle")
    print_metrics(found, options.json, columns, rows, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
