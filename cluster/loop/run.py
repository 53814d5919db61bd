"""Wires a run: one screen from configuration to summary.

    actor              produces              waits for             unblocked by         on time-out
    coordinator        tickets, all calls    windows, decisions,   every actor below    see its module
                                             steps, updates
    environment actor  groups (Arrow),       tokens                rollout worker       the trajectory fails, with
                       summaries                                                        a reason
    rollout worker     tokens, log-probs     requests; weights     environment actor,   `collect` returns empty; an
                                             at a boundary         coordinator          update fails by name
    filter service     decisions, kept mass  summaries             coordinator          the run ends
    learner ranks      weights v+1           kept groups; one      coordinator; gloo    the run ends, the rank is
                                             another               or NCCL              named
    scorer             MI proxies            groups and weights    coordinator          reported late; nobody waits
    archive            Parquet parts         disk                  disk                 awaited one step later

The actors and what flows between them are drawn in docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from actors.archive.store import ArchiveError
from actors.archive.writer import Archive
from actors.metrics.exporter import Recorder
from actors.process.disk import write_whole
from actors.scorer.fixed_model import check_scorer_model
from cluster.config import RunConfig, changes, dump, load
from cluster.control.parties import Failed, Refused
from cluster.errors import UserError
from cluster.fleet.bootstrap import check_address, connect, disconnect, prepare_model
from cluster.fleet.fleet import Fleet, party_names
from cluster.fleet.ray_parties import RayParties
from cluster.loop.coordinator import Coordinator
from cluster.loop.state import LoopState, check_folder, checkpoints, read_state
from cluster.metrics import REGISTRY
from cluster.runs.ending import EndCause, Ending
from cluster.runs.logs import log_folder, quiet, write_trace
from cluster.runs.summary import summarise_run, summary_lines, write_summary
from envs.registry import make

EXIT_FAILED = 1


class Interrupted(Exception):
    """A signal came before the actors were ready."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


def train(config: RunConfig, resume: bool, say: Callable[[str], None]) -> int:
    """Runs the configuration to its end; returns the exit code (0 done, 1 failed, 128 + signal when stopped).

    Raises:
        UserError: bad input; whatever can be checked is checked before anything is started or written.
    """
    started = time.time()
    state, checkpoint = find_run(config, resume)
    check_folder(config.run_dir)
    with closing(_open_recorder(config)) as recorder, quiet() as standard_error:
        check_address(config)  # before the minutes that a warm-up may take
        model_dir = prepare_model(config, say)
        _check_scorer(config, model_dir)
        try:
            connect(config, say)
            create_run(config, say)
            standard_error.keep(config.run_dir)
            for note in make(config.environment.name, "train", config.environment.options).notes():
                say(note)
            return asyncio.run(_train(config, model_dir, state, checkpoint, recorder, started, say))
        except UserError:
            raise
        except ArchiveError as error:  # a full disk, a folder that may not be written
            raise UserError(str(error)) from error
        except (ValueError, Refused) as error:  # e.g. a token budget below one trajectory; or our fault
            raise UserError(_with_trace(error, config.run_dir)) from error
        except Interrupted as interrupted:
            say(f"stopped by {interrupted.signal.name} before the actors were ready")
            return 128 + interrupted.signal
        except Exception as error:  # a party that failed or is late, or our fault: its trace says which
            text = _with_trace(error, config.run_dir)
            say(f"failed: {text}. What was checkpointed is safe: continue with --resume")
            return EXIT_FAILED
        finally:
            disconnect()


def _with_trace(error: Exception, run_dir: Path) -> str:
    """The error as one paragraph that says where its whole trace, those of other processes included, was written."""
    return write_trace(run_dir, error, error.cause if isinstance(error, Failed) else None)


def _check_scorer(config: RunConfig, model_dir: str | Path) -> None:
    try:
        check_scorer_model(config.scorer.model if config.scorer.enabled else None, model_dir)
    except ValueError as error:
        raise UserError(str(error)) from error


def _open_recorder(config: RunConfig) -> Recorder:
    workers, actors = party_names(config)
    recorder = Recorder(config.recorder, REGISTRY, seeds={"worker": workers, "actor": actors})
    try:
        recorder.start()
    except ValueError as error:
        raise UserError(str(error)) from error
    names = {"run": config.name, "environment": config.environment.name, "filter": config.filter.rule}
    recorder.set("squelch_run_info", 1, **names)
    return recorder


async def _train(
    config: RunConfig,
    model_dir: Path,
    state: LoopState,
    checkpoint: Path | None,
    recorder: Recorder,
    started: float,
    say: Callable[[str], None],
) -> int:
    archive = Archive(config.run_dir)
    archive.truncate_after(state.clock if checkpoint else -1)  # the validation before step 1 is made again too
    fleet = Fleet(config, RayParties(config, model_dir, log_folder(config.run_dir)), archive.event)
    stop_signal: list[int] = []
    try:
        say(f"metrics at {recorder.url}; run folder {config.run_dir}")
        await _stoppable(_start(fleet, checkpoint), stop_signal)
        if checkpoint is not None:
            say(f"resumed from {checkpoint} after step {state.clock}")
        coordinator = Coordinator(config, fleet, archive, recorder, state, say)
        _stop_on_signals(coordinator, stop_signal)
        say(f"ready after {time.time() - started:.1f} s")
        await coordinator.run()
    finally:
        await fleet.stop()
        archive.close()
    return _close(config, coordinator, archive, stop_signal, time.time() - started, say)


async def _start(fleet: Fleet, checkpoint: Path | None) -> None:
    """Every actor ready, the learner as the checkpoint left it."""
    await fleet.start()
    if checkpoint is None:
        return
    try:
        await fleet.learner.load(checkpoint.resolve())
    except ValueError as error:
        raise UserError(str(error)) from error


def find_run(config: RunConfig, resume: bool) -> tuple[LoopState, Path | None]:
    """The state to start from: that of the newest checkpoint when resuming, else a new run's."""
    run_dir = config.run_dir
    if not resume and (run_dir / "metrics.jsonl").exists():
        raise UserError(
            f"{run_dir} already holds a run. Continue it with --resume, or choose another folder with name=NAME "
            f"(or remove {run_dir})."
        )
    if resume and not (run_dir / "config.yaml").exists():
        raise UserError(f"--resume: {run_dir} holds no run (no config.yaml); start it without --resume first")
    saved = checkpoints(run_dir) if resume else []
    return (read_state(saved[-1][1]), saved[-1][1]) if saved else (LoopState(), None)


def create_run(config: RunConfig, say: Callable[[str], None]) -> None:
    """Writes the resolved configuration; says which settings a resumed run does differently."""
    resolved = config.run_dir / "config.yaml"
    if resolved.exists():
        for change in changes(load(str(resolved)), config):
            say(f"changed since the run began: {change}")
    departures = config.algorithm_differences
    say(f"algorithm {config.learner.algorithm}" + (f", but {'; '.join(departures)}" if departures else ""))
    write_whole(resolved, dump(config))


async def _stoppable(work: Any, stop_signal: list[int]) -> None:
    """Runs the start-up; a signal during it ends the run at once."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def interrupt(number: int) -> None:
        stop_signal.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    try:
        await task
    except asyncio.CancelledError:
        raise Interrupted(signal.Signals(stop_signal[0])) from None


def _stop_on_signals(coordinator: Coordinator, stop_signal: list[int]) -> None:
    """The first signal ends the run after the step in training; a second one ends it now. `stop_signal`: holds the
    first already where it came when the start-up had just ended."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        coordinator.stop(Ending(EndCause.SIGNAL, signal.Signals(stop_signal[0]).name))

    def ask(number: int) -> None:
        stop_signal.append(number)
        if len(stop_signal) > 1:
            raise KeyboardInterrupt
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask, number)
    if stop_signal:
        stop()


def _close(
    config: RunConfig,
    coordinator: Coordinator,
    archive: Archive,
    stop_signal: list[int],
    wall_seconds: float,
    say: Callable[[str], None],
) -> int:
    archive.finish()
    summary = summarise_run(config, coordinator.outcome(), wall_seconds)
    write_summary(config.run_dir / "summary.json", summary)
    for line in summary_lines(summary):
        say(line)
    if not summary["ledger"]["balanced"]:
        say(f"failed: the ledger does not balance: {summary['ledger']}")
        return EXIT_FAILED
    ending = coordinator.ending
    if stop_signal and ending is not None:
        say(f"{ending.text} after step {summary['steps']}; continue with --resume")
        return 128 + stop_signal[0]
    say(f"done: {config.run_dir}" if ending is None else f"ended after step {summary['steps']}: {ending.text}")
    return 0 if ending is None or ending.complete else EXIT_FAILED
