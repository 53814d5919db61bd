"""Measures the success of a run's checkpoint on the fixed validation tasks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from squelch.cluster.config import RunConfig
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
from squelch.cluster.runs.gain import parts_of, success_interval, success_of
from squelch.cluster.runs.logs import log_folder, quiet
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.diagnosis.interventions import Intervention, LeftOut, Swap
from squelch.kit.models.model_folder import check_model_folder
from squelch.kit.process.signals import listening
from squelch.kit.process.terminal import say_json
from squelch.kit.records.failures import Failure
from squelch.learner.checkpoint.manifest import EXPORT

log = logging.getLogger(__name__)


def evaluate(
    run_dir: Path,
    checkpoint: str,
    tasks: int,
    temperature: float,
    as_json: bool,
    say: Callable[[str], None],
    fetch: Callable[[str], None] | None = None,
    intervene: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    """Plays `tasks` validation tasks at `temperature` with a checkpoint's weights; prints success and its interval.
    `fetch`: copies a folder of the run, given its key, to `run_dir`, which is then a passing copy of a run in a store.
    `intervene`: also samples the actions of first turns again after other reasonings. `overrides`: settings that
    are not as in the run."""
    config = RunFolder(run_dir).config(
        [*overrides, f"validation.tasks={tasks}", f"validation.temperature={temperature}", "scorer.probe.tasks=null"]
    )
    swaps = swaps_of(config) if intervene else []
    with listening() as signals, quiet() as output:
        aloud = _silent if as_json else output.aloud(say)
        signals.last_words = lambda number: output.aloud(say)(f"stopped by {number.name}, at once")
        model_dir, step = _weights(config, run_dir, checkpoint, aloud, fetch or _nothing)
        output.keep(run_dir, "eval")
        try:
            with ExitStack() as watching:
                watch = partial(watching.enter_context, ray_watched(log.error if as_json else aloud))
                connect(config, aloud, learning=False, joined=watch)
                playing = _play(config, model_dir, log_folder(run_dir), swaps)
                solved, failed, found = asyncio.run(interruptible(playing, signals, aloud))
        finally:
            disconnect()
    result = _result(config, step, solved, failed)
    written = None
    if intervene:
        result = document(found, result)
        written = write(run_dir, step, result) if fetch is None else None
    if as_json:
        say_json(result)
        return 0
    say(_text(result))
    if text := failed_text(failed, len(solved)):
        say(f"WARNING: {text}")
    if intervene:
        say_interventions(found, written, say)
    return 0


def _result(config: RunConfig, step: str, solved: np.ndarray, failed: Sequence[Failure]) -> dict[str, Any]:
    """The success on the validation tasks, for --json."""
    parts = parts_of(config.mixture, config.validation.tasks)
    success, (low, high) = success_of(solved, parts), success_interval(solved, parts)
    by_label = {part.label: float(solved[part.place].mean()) for part in parts if part.label}
    return {
        "run": config.name,
        "checkpoint": step,
        "tasks": len(solved),
        "temperature": config.validation.temperature,
        "success": success,
        "low": low,
        "high": high,
        "failed": dict(causes(failed)),
        "solved": np.flatnonzero(solved).tolist(),
        **({"environments": by_label} if by_label else {}),
    }


def _text(result: dict[str, Any]) -> str:
    """The success in words."""
    interval, own = f"[{result['low']:.3f}, {result['high']:.3f}]", result.get("environments", {})
    return (
        f"{result['run']} at {result['checkpoint']}: success {result['success']:.3f}  95% {interval}  "
        f"{result['tasks']} tasks, T = {result['temperature']:g}"
        + "".join(f"  {name} {success:.3f}" for name, success in own.items())
    )


def _nothing(_: str) -> None:
    """Fetches nothing: the folder is complete."""


def _silent(text: str) -> None:
    """Prints nothing: with --json the only output is the JSON object."""


def _weights(
    config: RunConfig, run_dir: Path, checkpoint: str, say: Callable[[str], None], fetch: Callable[[str], None]
) -> tuple[Path, str]:
    if checkpoint == "initial":
        return prepare_model(config, say), "initial"
    saved = checkpoints(run_dir)
    if not saved:
        raise UserError(f"{run_dir} has no checkpoint yet; --checkpoint initial evaluates the policy it started from")
    steps = [step for step, _ in saved]
    if checkpoint == "best":
        step = read_state(saved[-1][1]).best_step
        if step == 0:
            say("the initial policy had the best validation success")
            return prepare_model(config, say), "initial"
        if step not in steps:
            why = "because it was never validated" if step < 0 else f"because step-{step} is missing"
            say(f"the run has no best checkpoint, {why}; the last is evaluated, {steps[-1]}")
            step = steps[-1]
    elif checkpoint == "last":
        step = steps[-1]
    elif re.fullmatch("[0-9]{1,9}", checkpoint) and int(checkpoint) in steps:
        step = int(checkpoint)
    else:
        raise UserError(f"--checkpoint {checkpoint}: {run_dir} has best, last, initial and steps {steps}")
    fetch(f"{dict(saved)[step].relative_to(run_dir)}/{EXPORT}")
    folder = dict(saved)[step].resolve() / EXPORT
    if config.learner.export is None and not folder.is_dir():
        raise UserError(
            f"{folder} is missing: the checkpoint has no export (learner.export). Resume the run with "
            "learner.export=float32, and evaluate a checkpoint that it writes then"
        )
    with as_user_error():
        check_model_folder(folder)
    return folder, f"step {step}"


async def _play(
    config: RunConfig, model_dir: Path, logs: Path, swaps: list[Swap]
) -> tuple[np.ndarray, list[Failure], list[Intervention | LeftOut]]:
    """Success of each task, the failures, and the interventions."""
    fleet = Fleet(config, RayActors(config, model_dir, logs), _no_event)
    play = Play(config, fleet)

    async def both() -> tuple[np.ndarray, list[Failure], list[Intervention | LeftOut]]:
        solved, played = await play.validate(fixed_tickets(config))
        return solved, failures(played), await play.intervene(swaps) if swaps else []

    try:
        await fleet.start(learning=False)
        return await Supervisor(fleet, Watchdog(_no_event, _no_event)).beside(both())
    finally:
        await fleet.stop()


def _no_event(*_: Any, **__: Any) -> None:
    """Drops the span or metric: an evaluation records none."""
