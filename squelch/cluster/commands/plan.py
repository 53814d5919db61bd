"""`squelch plan`: the memory that each actor of a recipe needs, how many rollout workers its learner needs, and how a
number of GPUs is best split among them (`plan_split`).

Memory is always estimated, from the shapes of the model (`learner.memory`, `actors.rollout.memory`,
`actors.scorer.memory`); no weights are read. The time of a step is a model (`cluster.runs.timing.step_time`) with
constants from runs (`--run`), or counted from shapes and data sheets for recipes on GPUs
(`cluster.runs.timing.counted_step`). The output says which.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.arguments import run_folder
from squelch.cluster.commands.plan_memory import (
    DEVICES_GIB,
    Need,
    host_of,
    memory_lines,
    needs_on,
    shape_of,
    size_of,
    store_advice,
)
from squelch.cluster.commands.plan_split import Split, split_lines, splits_of, undivided
from squelch.cluster.runs.timing.step_time import NEARLY, Observed, StepModel, fitted, observed
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.base.gpu_split import of_each, shares
from squelch.kit.process.terminal import say, say_json

if TYPE_CHECKING:
    from squelch.actors.model_size import ModelSize
    from squelch.cluster.config import Make, RunConfig
    from squelch.envs.config import EnvironmentConfig
    from squelch.envs.contract import Environment
    from squelch.learner.memory import HostEstimate

GPU_GIB = 80.0
"""Memory of a GPU whose time is counted, GiB, unless `--device-gib` says another."""


@dataclass(frozen=True)
class StepRow:
    """The predicted step with one number of rollout workers. Shares of the time are in [0, 1]."""

    workers: int
    window_s: float
    step_s: float
    idle_workers: float
    idle_learner: float
    waits_for: str


@dataclass(frozen=True)
class Timing:
    """The model of a step's time with its origin and its predictions."""

    origin: str
    model: StepModel
    staleness: int
    enough: int
    rows: list[StepRow]


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    if options.gpus and options.runs:
        raise UserError("--gpus compares splits by counted times, and --run measures one of them: leave one out")
    gib: float = options.device_gib or GPU_GIB
    device = gib if options.device_gib or options.gpus else None
    tried = _Tried()
    config, moved = _given(options, device, tried)
    shape = shape_of(config, options.shape)
    size = None if shape is None else size_of(shape)
    splits, needs, store, host, whole = list[Split](), list[Need](), None, None, None
    if shape is not None and size is not None:
        if options.gpus:

            def load(own: list[str]) -> RunConfig:
                return _load(options, tried, [*moved, *own])

            splits = splits_of(load, config, shape, size, options.gpus, gib)
            whole = undivided(load, splits[0], shape, size, options.gpus, gib)
            config, needs = splits[0].config, splits[0].needs
        else:
            needs = list(needs_on(config, shape, size, [device] if device else list(DEVICES_GIB)))
        store, host = store_advice(config, size), host_of(config, shape)
    timing = _timing(config, size, options.runs, device)
    if options.json:
        say_json(_plain(config, needs, timing, store, host, splits), indent=2)
        return 0
    if tried.refused:
        say(f"planned without the environment, which cannot be made yet: {tried.refused}\n")
    if splits:
        say("\n".join([*split_lines(splits, options.gpus, gib, whole), ""]))
    elif moved and needs:
        say(f"this recipe runs on CPUs; planned as with {' '.join(moved)}")
    say("\n".join([*memory_lines(config, needs, store, host), "", *_timing_lines(config, timing, bool(splits))]))
    return 0


class _Tried:
    """Makes the recipe's environment if its files and functions are there. `refused`: why it could not be made."""

    refused = ""

    def __call__(self, chosen: EnvironmentConfig, timeout_s: float) -> Environment | None:
        from squelch.cluster.first_task import made

        try:
            return None if self.refused else made(chosen, timeout_s)
        except ValueError as error:
            self.refused = str(error)
            return None


def _given(options: argparse.Namespace, device: float | None, make: Make) -> tuple[RunConfig, Sequence[str]]:
    """The recipe, and the settings that put it on GPUs if it has none and a GPU is named."""
    config = _load(options, make)
    if device is None or any(actor.num_gpus for actor in (config.learner, config.rollout, config.scorer)):
        return config, ()
    size = config.rollout.tensor_parallel_size
    moved = [f"{key}={value}" for key, value in of_each(shares(size, scored=True, shared=False)).items()]
    return _load(options, make, moved), moved


def _load(options: argparse.Namespace, make: Make, beneath: Sequence[str] = ()) -> RunConfig:
    """The recipe with settings beneath the user's own."""
    from squelch.cluster.config import load

    return load(options.recipe, [*beneath, *options.overrides], make)


def _plain(
    config: RunConfig,
    needs: Sequence[Need],
    timing: Timing | None,
    store: str | None,
    host: HostEstimate | None,
    splits: Sequence[Split],
) -> dict[str, Any]:
    return {
        "recipe": config.name,
        "model": config.model.path,
        "memory": [asdict(need) for need in needs],
        "learner_host": None if host is None else asdict(host),
        "object_store": store,
        "step": None if timing is None else asdict(timing),
        "splits": [split.plain() for split in splits],
    }


# -- time --------------------------------------------------------------------------------------------------------------


def _timing(config: RunConfig, size: ModelSize | None, runs: Sequence[Path], device: float | None) -> Timing | None:
    """The model of the step's time; None if nothing says how fast the machines are."""
    if runs:
        model, origin = _measured(config, runs)
    elif size is not None and config.rollout.num_gpus > 0 and config.learner.num_gpus > 0:
        model, origin = _counted(config, size, device)
    else:
        return None
    staleness = config.loop.max_staleness
    enough = model.enough(staleness)
    rows = [_row(model, workers, staleness) for workers in _shown(enough, config.rollout.start_count)]
    return Timing(origin, model, staleness, enough, rows)


def _measured(config: RunConfig, runs: Sequence[Path]) -> tuple[StepModel, str]:
    from squelch.cluster.runs.folder import RunFolder

    found: list[Observed] = []
    sizes = set()
    for path in runs:
        folder = RunFolder(run_folder(path)).require()
        of_run = folder.config()
        if of_run.loop.max_staleness:
            raise UserError(
                f"{path} ran at loop.max_staleness={of_run.loop.max_staleness}, where the play of a step overlaps with "
                "training and cannot be timed; give a run with loop.max_staleness=0, a few steps are enough"
            )
        sizes.add(of_run.sampling.group_size)
        try:
            found += observed(folder.metrics(), of_run.loop.prompts)
        except ValueError as error:
            raise UserError(f"{path}: {error}; let it run for more steps without validation") from error
    if len(sizes) > 1:
        raise UserError(f"the runs have different sampling.group_size ({sorted(sizes)}); give runs that agree")
    with as_user_error(about="--run"):
        model = fitted(found)
    steps = sum(len(one.windows) for one in found)
    origin = f"measured in {steps} steps of {', '.join(str(path) for path in runs)}"
    ratio = config.sampling.group_size / sizes.pop()
    if (ratio, config.loop.prompts) != (1.0, model.groups):
        origin += f", scaled to {config.loop.prompts} prompts x {config.sampling.group_size}"
    return model.scaled(config.loop.prompts, ratio), origin


def _counted(config: RunConfig, size: ModelSize, device: float | None) -> tuple[StepModel, str]:
    from squelch.cluster.runs.timing.counted_step import PRODUCTS, READING, counted, device_of

    kind = device_of(device or GPU_GIB)
    origin = (
        f"estimated: counted operations at {PRODUCTS:.0%} of the products and {READING:.0%} of the bandwidth of one "
        f"{kind.name} for each actor, every turn at its limit, every group kept, no time in environments; "
        "a model below a billion parameters takes longer (docs/guide/cluster.md). Give --run for times of your own "
        "machines"
    )
    return counted(size, config, kind), origin


def _shown(enough: int, count: int) -> list[int]:
    """The numbers of rollout workers that the table shows."""
    doubled = {2**power for power in range(12) if 2**power <= 2 * enough}
    return sorted(doubled | {enough, count})


def _row(model: StepModel, workers: int, staleness: int) -> StepRow:
    return StepRow(
        workers,
        model.window(workers),
        model.step(workers, staleness),
        model.idle_workers(workers, staleness),
        model.idle_learner(workers, staleness),
        model.limit(workers, staleness),
    )


def _timing_lines(config: RunConfig, timing: Timing | None, split: bool) -> list[str]:
    if timing is None:
        return ["step time: give --run RUN_DIR, a run of a few steps: the speed of CPUs is not known beforehand"]
    model = timing.model
    lines = [
        f"step time, {timing.origin}",
        f"  a window of {model.groups} groups: {model.serial:.2f} s however many workers share it, and "
        f"{model.parallel:.2f} worker seconds",
        f"    ({model.split})",
        f"  learner: train {model.train:.2f} s, publish {model.publish:.2f} s, other {model.other:.2f} s",
        f"  predicted at max_staleness {timing.staleness}:",
        "  workers  window s    step s  idle workers  idle learner  waits for",
    ]
    for row in timing.rows:
        lines.append(
            f"  {row.workers:7d}  {row.window_s:8.2f}  {row.step_s:8.2f}  {row.idle_workers:12.0%}  "
            f"{row.idle_learner:12.0%}  {row.waits_for}"
        )
    return [*lines, f"  {_answer(config, timing, split)}"]


def _answer(config: RunConfig, timing: Timing, split: bool) -> str:
    """How many rollout workers are enough, and what to set; with the numbers of a `split` of GPUs nothing."""
    model, staleness, enough = timing.model, timing.staleness, timing.enough
    text = f"{enough} rollout worker{'s' * (enough > 1)} are enough" if enough > 1 else "1 rollout worker is enough"
    text += f": with more, a step gets at most {NEARLY - 1:.0%} shorter. "
    key = "max_count" if config.rollout.count == "auto" else "count"
    change = "" if split or enough == vars(config.rollout)[key] else f"Set rollout.{key}={enough}. "
    if model.limit(enough, staleness) == "learner":
        return text + change + "The learner is then busy all the time."
    better = model.step(model.enough(staleness + 1), staleness + 1)
    gain = 1 - better / model.step(enough, staleness)
    if gain < NEARLY - 1:
        return text + change.rstrip()
    return (
        text
        + change
        + f"loop.max_staleness={staleness + 1} would let play overlap with training: {better:.2f} s a step "
        f"with {model.enough(staleness + 1)}, {gain:.0%} less."
    )
