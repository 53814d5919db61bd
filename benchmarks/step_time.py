"""Holds the model of a step's time (`squelch plan`, `cluster.runs.timing.step_time`) against runs with 1 to 4 workers.

    python -m benchmarks.step_time [--quick] [--json]

The real coordinator, fleet, filter, archive and records run; rollout workers and learner are simulated by waits, so
that they share no processor. A decoding step of a simulated engine takes `PER_BATCH_S`, and `PER_SEQUENCE_S` for each
sequence in it; trajectories have from 20 to 120 tokens; the learner waits `TRAIN_S`. The model is fitted

    from one      to the metrics of the run with 1 worker at staleness 0: `serial` and `parallel` are separated by its
                  steps' numbers of tokens
    from two      to those and to the metrics of the run with 2 workers at staleness 0

and predicts the mean step of every run.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.common import arguments, print_metrics
from squelch.cluster.config import RunConfig, load
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.wiring import make_coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.timing.step_time import StepModel, fitted, observed
from squelch.kit.archive.reader import is_of_step
from squelch.kit.archive.writer import Archive
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.loggers import Loggers
from squelch.kit.records.records import GroupSummary, Ticket
from tests.stand_ins.channel import Local
from tests.stand_ins.hosts import FilterHost, Host
from tests.stand_ins.processes import StandIns

PROMPTS, GROUP_SIZE = 8, 8
LENGTHS = (20, 120)
PER_BATCH_S, PER_SEQUENCE_S, TRAIN_S = 0.004, 0.00025, 0.4
TOKENS_AT_ONCE = 4
"""Decoding steps that a simulated engine waits for together."""
SETTLED = 3
"""Steps at a run's beginning that its mean step leaves out."""
OVERRIDES = (
    f"loop.prompts={PROMPTS}",
    f"sampling.group_size={GROUP_SIZE}",
    "loop.checkpoint_every=1000000000",
    "validation.every=0",
    "scorer.enabled=false",
    "filter.rule=none",
)


@dataclass
class Sequence:
    """A sequence that is being decoded. `left`: tokens to come."""

    left: int
    done: asyncio.Event


class Engine:
    """A simulated engine: all its sequences get a token in each decoding step."""

    def __init__(self) -> None:
        self._running: list[Sequence] = []
        self._decoding: asyncio.Task[None] | None = None

    async def generate(self, tokens: int) -> None:
        """Returns once this many tokens have been decoded for a new sequence."""
        sequence = Sequence(tokens, asyncio.Event())
        self._running.append(sequence)
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.create_task(self._decode())
        await sequence.done.wait()

    async def _decode(self) -> None:
        while self._running:
            await asyncio.sleep(TOKENS_AT_ONCE * (PER_BATCH_S + PER_SEQUENCE_S * len(self._running)))
            for sequence in self._running:
                sequence.left -= TOKENS_AT_ONCE
                if sequence.left <= 0:
                    sequence.done.set()
            self._running = [sequence for sequence in self._running if sequence.left > 0]


class EngineHost(Host):
    """An environment actor with its rollout worker's engine."""

    def __init__(self) -> None:
        super().__init__(0, 0.0)
        self.engine = Engine()

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Buffer]:
        """Trajectories whose lengths depend on the ticket alone."""
        draw = random.Random(ticket.ticket_id)
        longest = draw.randint(sum(LENGTHS) // 2, LENGTHS[1])
        lengths = [draw.randint(LENGTHS[0], longest) for _ in range(ticket.group_size)]
        await asyncio.gather(*(self.engine.generate(tokens) for tokens in lengths))
        return self._made_up(ticket, lengths)


async def simulate(config: RunConfig) -> None:
    """Runs the configuration with simulated engines; its metrics are in its folder."""
    hosts = [Local(EngineHost()) for _ in range(config.rollout.start_count)]
    actors = StandIns(config, hosts, Local(FilterHost(config.filter)), TRAIN_S)
    archive = Archive(config.run_dir)
    fleet = Fleet(config, actors, archive.event)
    try:
        await fleet.start()
        unserved = Loggers(Recorder(config.recorder, REGISTRY), [])
        await make_coordinator(config, fleet, archive, unserved, LoopState(), lambda _: None).run()
    finally:
        await fleet.stop()
        archive.close()


def settings(workers: int, staleness: int, steps: int, folder: Path) -> RunConfig:
    """The configuration of one run."""
    counts = (f"rollout.count={workers}", f"environment_actor.count={workers}", f"loop.max_staleness={staleness}")
    place = (f"runs_dir={folder}", f"name=workers-{workers}-staleness-{staleness}", f"loop.steps={steps}")
    return load("frozenlake", [*OVERRIDES, *counts, *place])


def mean_step(config: RunConfig) -> float:
    """Mean seconds of the run's steps, without the first and the last ones."""
    lines = [line for line in RunFolder(config.run_dir).metrics() if line["step"] > SETTLED and is_of_step(line)]
    return statistics.fmean(line["seconds/step"] for line in lines[: -1 - config.loop.max_staleness])


def model_of(runs: list[RunConfig]) -> StepModel:
    """The model that fits the metrics of these runs."""
    return fitted([one for run in runs for one in observed(RunFolder(run.run_dir).metrics(), run.loop.prompts)])


def compared(runs: dict[tuple[int, int], RunConfig]) -> list[dict[str, float]]:
    """Measured and predicted seconds of each run, by (workers, staleness)."""
    one, two = model_of([runs[1, 0]]), model_of([runs[1, 0], runs[2, 0]])
    rows = []
    for (workers, staleness), config in runs.items():
        measured = mean_step(config)
        predicted = {"from_one": one.step(workers, staleness), "from_two": two.step(workers, staleness)}
        errors = {f"error_{name}": value / measured - 1 for name, value in predicted.items()}
        rows.append({"workers": workers, "staleness": staleness, "measured": measured, **predicted, **errors})
    return rows


def main() -> int:
    """Prints the comparison."""
    options = arguments(__doc__, "1, 2 and 4 workers at staleness 0 and 1, 10 steps each")
    counts, ages, steps = ((1, 2, 4), (0, 1), 10) if options.quick else ((1, 2, 3, 4), (0, 1, 2), 24)
    with tempfile.TemporaryDirectory() as folder:
        runs = {(count, age): settings(count, age, steps, Path(folder)) for age in ages for count in counts}
        for config in runs.values():
            asyncio.run(simulate(config))
        rows = compared(runs)
    columns = ("workers", "staleness", "step s", "from one", "error", "from two", "error")
    keys = ("staleness", "measured", "from_one", "error_from_one", "from_two", "error_from_two")
    table = [[str(row["workers"]), *(row[key] for key in keys)] for row in rows]
    notes = [f"{steps} steps of {PROMPTS} x {GROUP_SIZE} trajectories; engines and learner are simulated by waits"]
    print_metrics({"rows": rows}, options.json, columns, table, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
