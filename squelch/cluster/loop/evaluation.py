"""Measures the success of checkpoints and models on the same fixed validation tasks, of a run or of a recipe."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from squelch.actors.pretrained.source import PACKAGED
from squelch.cluster.config import RunConfig, load
from squelch.cluster.fleet.bootstrap import connect, disconnect
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.cluster.fleet.ray_watch import ray_watched
from squelch.cluster.fleet.supervision import Supervisor, Watchdog
from squelch.cluster.loop.initial_policy import prepare_model
from squelch.cluster.loop.interventions import document, say_interventions, swaps_of, write
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.cluster.loop.persistence.state import read_state
from squelch.cluster.loop.stopping import interruptible
from squelch.cluster.loop.tickets.playing import Play, causes, failed_text, failures
from squelch.cluster.loop.watchers.validation import fixed_tickets
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.gain import mean_interval, parts_of, pass_at, success_interval, success_of, weighted_gain
from squelch.cluster.runs.logs import log_folder, quiet
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.diagnosis.interventions import Intervention, LeftOut, Swap
from squelch.kit.models.model_folder import check_model_folder
from squelch.kit.process.signals import listening
from squelch.kit.process.terminal import aligned, say_json
from squelch.kit.records.failures import Failure
from squelch.learner.checkpoint.manifest import EXPORT

log = logging.getLogger(__name__)
OWN, _STEP = ("best", "last", "initial"), re.compile("[0-9]{1,9}")
"""Words for a run's own checkpoints, and the number of one."""


@dataclass(frozen=True)
class Weights:
    """A model folder. `name`: in a table; `step`: that of a run's checkpoint, 0 of the initial policy; None of a model
    that is no checkpoint of the run."""

    folder: Path
    name: str
    step: int | None


@dataclass(frozen=True)
class Asked:
    """What is evaluated. `checkpoints`: `best`, `last`, `initial`, the number of a step, or what `model.path` takes;
    the first is that with which the others are compared. `samples`: trajectories of each task."""

    checkpoints: Sequence[str]
    tasks: int = 512
    temperature: float = 0.5
    samples: int = 1
    intervene: bool = False
    as_json: bool = False
    overrides: Sequence[str] = ()


def evaluate(
    asked: Asked, source: Path | str, say: Callable[[str], None], fetch: Callable[[str], None] | None = None
) -> int:
    """Plays the same validation tasks with the weights of each checkpoint; prints success and its interval, and the
    paired gain over the first.

    Args:
        source: whose tasks are played: the folder of a run, or a recipe.
        fetch: copies a folder of the run, given its key, to its folder, which is then a passing copy of a run in a
            store.
    """
    chosen = [f"validation.tasks={asked.tasks}", f"validation.temperature={asked.temperature}"]
    overrides = [*asked.overrides, *chosen, "scorer.probe.tasks=null"]
    if isinstance(source, str):
        config = load(source, overrides)
        run_dir = Path(config.runs_dir) / f"{config.name}-eval"
    else:
        run_dir, config = source, RunFolder(source).config(overrides)
    swaps = swaps_of(config) if asked.intervene else []
    results, played = list[dict[str, Any]](), list[Played]()
    with listening() as signals, quiet() as output:
        aloud = _silent if asked.as_json else output.aloud(say)
        signals.last_words = lambda number: output.aloud(say)(f"stopped by {number.name}, at once")
        weights = [weights_of(config, run_dir, one, aloud, fetch or _nothing) for one in asked.checkpoints]
        output.keep(run_dir, "eval")
        try:
            with ExitStack() as watching:
                watch = partial(watching.enter_context, ray_watched(log.error if asked.as_json else aloud))
                connect(config, aloud, learning=False, joined=watch)
                for own in weights:
                    playing = _play(config, own.folder, log_folder(run_dir), asked.samples, swaps)
                    played.append(asyncio.run(interruptible(playing, signals, aloud)))
                    results.append(_result(config, own.name, played[-1], played[0]))
                    if len(weights) > 1:
                        aloud(_text(results[-1]))
        finally:
            disconnect()
    steps = [own.step if fetch is None and run_dir == source else None for own in weights]
    _say(asked, results, played, run_dir, steps, say)
    return 0


@dataclass(frozen=True)
class Played:
    """What was played with one checkpoint. `solved`: (num_tasks, num_samples) bool."""

    solved: np.ndarray
    failed: list[Failure]
    interventions: list[Intervention | LeftOut]


def _say(
    asked: Asked,
    results: list[dict[str, Any]],
    played: list[Played],
    run_dir: Path,
    steps: Sequence[int | None],
    say: Callable[[str], None],
) -> None:
    """Says the results; those of interventions are written to the run's folder, of a checkpoint that has a step
    there."""
    written: list[Path | None] = [None] * len(results)
    if asked.intervene:
        for place, (result, own, step) in enumerate(zip(results, played, steps, strict=True)):
            results[place] = document(own.interventions, result)
            written[place] = None if step is None else write(run_dir, step, results[place])
    if asked.as_json:
        say_json(results[0] if len(results) == 1 else {"checkpoints": results})
        return
    if len(results) > 1:
        say("\n".join(aligned(_table(results))))
    for result, own, place in zip(results, played, written, strict=True):
        if len(results) == 1:
            say(_text(result))
        if text := failed_text(own.failed, own.solved.size):
            say(f"WARNING: {result['checkpoint']}: {text}" if len(results) > 1 else f"WARNING: {text}")
        if asked.intervene:
            say_interventions(own.interventions, place, say)


def _result(config: RunConfig, step: str, played: Played, first: Played) -> dict[str, Any]:
    """The success on the validation tasks, for --json."""
    parts, solved = parts_of(config.mixture, config.validation.tasks), played.solved
    samples, shares = solved.shape[1], solved.mean(axis=1)
    if samples == 1:
        success, (low, high) = success_of(solved[:, 0], parts), success_interval(solved[:, 0], parts)
    else:
        success, low, high = mean_interval(shares, parts)
    by_label = {part.label: float(shares[part.place].mean()) for part in parts if part.label}
    found = {
        "run": config.name,
        "checkpoint": step,
        "tasks": len(solved),
        "temperature": config.validation.temperature,
        "success": success,
        "low": low,
        "high": high,
        "failed": dict(causes(played.failed)),
        "solved": np.flatnonzero(solved.all(axis=1)).tolist(),
        **({"environments": by_label} if by_label else {}),
    }
    if samples > 1:
        draws = [1 << power for power in range(samples.bit_length())]
        found["samples"] = samples
        found["pass_at"] = {k: mean_interval(pass_at(solved, k), parts) for k in dict.fromkeys([*draws, samples])}
    if played is not first:
        gain = weighted_gain(first.solved.mean(axis=1), shares, parts)
        found |= dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True))
    return found


def _text(result: dict[str, Any]) -> str:
    """The success in words."""
    interval, own = f"[{result['low']:.3f}, {result['high']:.3f}]", result.get("environments", {})
    samples = f" x {result['samples']} samples" if "samples" in result else ""
    return (
        f"{result['run']} at {result['checkpoint']}: success {result['success']:.3f}  95% {interval}  "
        f"{result['tasks']} tasks{samples}, T = {result['temperature']:g}"
        + "".join(f"  pass@{k} {mean:.3f} [{low:.3f}, {high:.3f}]" for k, (mean, low, high) in _passes(result))
        + "".join(f"  {name} {success:.3f}" for name, success in own.items())
    )


def _passes(result: dict[str, Any]) -> list[tuple[int, tuple[float, float, float]]]:
    """pass@k of each k above 1, which is the success."""
    return [(k, found) for k, found in result.get("pass_at", {}).items() if k > 1]


def _table(results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row a checkpoint."""
    passes = [k for k, _ in _passes(results[0])]
    head = ("checkpoint", "success", "95%", *(f"pass@{k}" for k in passes), f"gain over {results[0]['checkpoint']}")
    rows: list[tuple[str, ...]] = [head]
    for one in results:
        gain = f"{one['gain']:+.3f} [{one['gain_low']:+.3f}, {one['gain_high']:+.3f}]" if "gain" in one else "-"
        interval = f"[{one['low']:.3f}, {one['high']:.3f}]"
        own = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for _, (mean, low, high) in _passes(one))
        rows.append((one["checkpoint"], f"{one['success']:.3f}", interval, *own, gain))
    return rows


def _nothing(_: str) -> None:
    """Fetches nothing: the folder is complete."""


def _silent(text: str) -> None:
    """Prints nothing: with --json the only output is the JSON object."""


def weights_of(
    config: RunConfig, run_dir: Path, checkpoint: str, say: Callable[[str], None], fetch: Callable[[str], None]
) -> Weights:
    """The weights of a checkpoint, as in `Asked`; the run's own before a model of the same name. `fetch`: as of
    `evaluate`. UserError if there are none."""
    is_model = os.path.lexists(checkpoint) or "/" in checkpoint or checkpoint == "tiny" or checkpoint in PACKAGED
    if checkpoint in OWN or _STEP.fullmatch(checkpoint) or not is_model:
        return saved_weights(config, run_dir, checkpoint, say, fetch, "; or give the folder of a model")
    path = Path(checkpoint) / EXPORT if (Path(checkpoint) / EXPORT).is_dir() else checkpoint
    model = config.model.model_copy(update={"path": str(path), "warmup": None})
    return Weights(prepare_model(config.model_copy(update={"model": model}), say), checkpoint, None)


def saved_weights(
    config: RunConfig,
    run_dir: Path,
    checkpoint: str,
    say: Callable[[str], None],
    fetch: Callable[[str], None] = _nothing,
    otherwise: str = "",
) -> Weights:
    """The weights of a run's checkpoint: `best`, `last`, `initial`, or the number of a step.

    Args:
        fetch: as of `evaluate`.
        otherwise: what the user may give instead, for the error.
    Raises:
        UserError: the run has no such checkpoint, or it holds no weights.
    """
    if checkpoint == "initial":
        return Weights(prepare_model(config, say), "initial", 0)
    saved = checkpoints(run_dir)
    if not saved:
        raise UserError(f"{run_dir} has no checkpoint yet; --checkpoint initial evaluates the policy it started from")
    steps = [step for step, _ in saved]
    if checkpoint == "best":
        step = read_state(saved[-1][1]).best_step
        if step == 0:
            say("the initial policy had the best validation success")
            return Weights(prepare_model(config, say), "initial", 0)
        if step not in steps:
            why = "because it was never validated" if step < 0 else f"because step-{step} is missing"
            say(f"the run has no best checkpoint, {why}; the last is evaluated, {steps[-1]}")
            step = steps[-1]
    elif checkpoint == "last":
        step = steps[-1]
    elif _STEP.fullmatch(checkpoint) and int(checkpoint) in steps:
        step = int(checkpoint)
    else:
        raise UserError(f"--checkpoint {checkpoint}: {run_dir} has best, last, initial and steps {steps}{otherwise}")
    fetch(f"{dict(saved)[step].relative_to(run_dir)}/{EXPORT}")
    folder = dict(saved)[step].resolve() / EXPORT
    if config.learner.export is None and not folder.is_dir():
        raise UserError(
            f"{folder} is missing: the checkpoint has no export (learner.export). Resume the run with "
            "learner.export=float32, and evaluate a checkpoint that it writes then"
        )
    with as_user_error():
        check_model_folder(folder)
    return Weights(folder, f"step {step}", step)


async def _play(config: RunConfig, model_dir: Path, logs: Path, samples: int, swaps: list[Swap]) -> Played:
    """Success of each task, the failures, and the interventions. A task's first sample is that of a validation."""
    fleet = Fleet(config, RayActors(config, model_dir, logs), _no_event)
    play, tasks = Play(config, fleet), fixed_tickets(config)
    more = [replace(one, ticket_id=f"{one.ticket_id}-{sample}") for one in tasks for sample in range(1, samples)]

    async def both() -> Played:
        solved, summaries = await play.validate([*tasks, *more])
        first, others = solved[: len(tasks), None], solved[len(tasks) :].reshape(len(tasks), samples - 1)
        swapped = await play.intervene(swaps) if swaps else []
        return Played(np.concatenate([first, others], axis=1), failures(summaries), swapped)

    try:
        await fleet.start(learning=False)
        return await Supervisor(fleet, Watchdog(_no_event, _no_event)).beside(both())
    finally:
        await fleet.stop()


def _no_event(*_: Any, **__: Any) -> None:
    """Drops the span or metric: an evaluation records none."""
