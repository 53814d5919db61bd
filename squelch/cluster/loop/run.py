"""Wires a run, from its configuration to its summary.

    actor              produces              waits for             unblocked by         on time-out
    coordinator        tickets, all calls    windows, decisions,   every actor below    see its module
                                             steps, updates
    environment actor  groups (Arrow),       tokens                rollout worker       the trajectory fails, with
                       summaries                                                        a reason
    rollout worker     tokens, log-probs     requests; weights     environment actor,   `collect` returns empty; an
                                             at a boundary         coordinator          late worker is replaced
    filter service     decisions, kept mass  summaries             coordinator          it is replaced
    learner ranks      weights v+1           kept groups; the      coordinator; gloo    new ranks rebuild the
                                             other ranks           or NCCL              weights
    scorer             MI proxies            groups and weights    coordinator          it is reported as late;
                                                                                        training continues
    archive            Parquet parts         disk                  disk                 the run ends after a bound;
                                                                                        awaited one step later
    uploads            the copy in `store`   closed files, store   coordinator, store   the run ends after a bound;
                                                                                        never awaited before the end
    control endpoint   requests of `squelch  the coordinator       `squelch scale`      its caller gets an error
                       scale`

docs/architecture.md has a diagram of the actors and of the data between them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from squelch.actors.formats.portable import small_files
from squelch.cluster.config import RunConfig, changes, dump, settings_of
from squelch.cluster.control.actor_errors import Refused
from squelch.cluster.control.calls import LOAD
from squelch.cluster.first_task import FirstTask, first_task, notes_on_slow_calls
from squelch.cluster.fleet import host_memory
from squelch.cluster.fleet.bootstrap import (
    check_address,
    check_fixed_scorer,
    check_machine,
    check_scoring,
    choose_scoring,
    connect,
    disconnect,
    starts_ray,
    weight_bytes,
)
from squelch.cluster.fleet.fleet import Fleet, actor_names
from squelch.cluster.fleet.gpu_memory import memory_of_a_gpu
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.cluster.fleet.token_budget import choose_token_budget
from squelch.cluster.idle_settings import notes_on_settings
from squelch.cluster.kept_secrets import without_secrets
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.exit_code import EXIT_FAILED, RunEnd, last_checkpoint, nothing_left, with_trace
from squelch.cluster.loop.first_lines import opening_lines
from squelch.cluster.loop.heartbeat import Heartbeat, beating, limits
from squelch.cluster.loop.initial_policy import prepare_model, with_date_of, with_date_of_start
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints, restore
from squelch.cluster.loop.persistence.state import (
    LoopState,
    check_folder,
    read_state,
    require_same_schedule,
    require_usable,
)
from squelch.cluster.loop.persistence.uploading import Uploads, open_uploads, watched
from squelch.cluster.loop.startup import FirstStep, Startup
from squelch.cluster.loop.stopping import interruptible
from squelch.cluster.loop.wiring import make_coordinator
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.runs.driver import Driver
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.folder import EARLIER_SUMMARY, SUMMARY, RunFolder
from squelch.cluster.runs.logs import Output, log_folder, quiet
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Entry
from squelch.envs.registry import plays_whole_turns
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.base.package import installed_version, needs_extra, version_text
from squelch.kit.metrics.exporter import PORTS, Recorder
from squelch.kit.metrics.loggers import Loggers, open_loggers, require_packages
from squelch.kit.metrics.served import serve
from squelch.kit.process.process_exit import before_leaving
from squelch.kit.process.signals import Interrupted, Signals, listening
from squelch.kit.untrusted.files import Unreadable
from squelch.learner.checkpoint.manifest import read_manifest, require_same_algorithm, require_same_folder
from squelch.learner.refusal import SettingRefused

log = logging.getLogger(__name__)


def train(
    config: RunConfig,
    resume: bool,
    say: Callable[[str], None],
    at_end: Callable[[], None] = lambda: None,
    shown: Callable[[], None] = lambda: None,
) -> int:
    """Runs the configuration to its end; returns the exit code (0 done, 1 failed, 128 + signal when stopped).

    Args:
        at_end: called once the run has ended with an exit code, before the last upload, which sends what it writes.
        shown: called once the run itself shows what it does.
    Raises:
        UserError: bad input. Every check that needs no actor is made before anything is started, or written outside of
            `store`.
    """
    check_folder(config.run_dir)
    _check_loggers(config)
    with listening() as signals, closing(Driver(config.run_dir)) as driver:
        signals.last_words = lambda _: say(f"stopping now; {last_checkpoint(config.run_dir)}")
        return _driven(config, resume, driver, signals, say, at_end, shown)


def _driven(
    config: RunConfig,
    resume: bool,
    driver: Driver,
    signals: Signals,
    say: Callable[[str], None],
    at_end: Callable[[], None],
    shown: Callable[[], None],
) -> int:
    """As `train`, by the driver of the run's folder."""
    if resume and (said := nothing_left(config)):  # before the store is touched: nothing may change
        say(said)
        return 0
    uploads = open_uploads(config, resume, say)

    def upload_rest(code: int) -> int:
        """The exit code after the last upload."""
        left = uploads.finish() if uploads is not None else None
        if uploads is None or not left:
            return code
        say(f"failed: {left}")
        return EXIT_FAILED if uploads.stopped_by is None else 128 + uploads.stopped_by

    def without_ray(code: int) -> int:
        at_end()
        code = upload_rest(code)
        if uploads is not None:
            uploads.close()
        return code

    with closing(uploads) if uploads is not None else nullcontext():
        code = EXIT_FAILED
        try:
            code = _run(config, resume, driver, uploads, signals, say, without_ray, shown)
            at_end()
        finally:
            code = upload_rest(code)
    return code


@dataclass(frozen=True)
class _Context:
    """What a run works with until its end. `checkpoint`: None if it begins anew."""

    resume: bool
    state: LoopState
    checkpoint: Path | None
    driver: Driver
    signals: Signals
    uploads: Uploads | None
    recorder: Recorder
    output: Output
    startup: Startup
    end: RunEnd

    @property
    def recorded(self) -> int:
        """The last step whose records stay. -1 without a checkpoint: validation before step 1 is repeated."""
        return self.state.clock if self.checkpoint else -1


def _run(
    config: RunConfig,
    resume: bool,
    driver: Driver,
    uploads: Uploads | None,
    signals: Signals,
    say: Callable[[str], None],
    after_ray: Callable[[int], int],
    shown: Callable[[], None],
) -> int:
    """As `train`, without the store's part. `after_ray` ends that part, if the process must leave Ray behind."""
    state, checkpoint = find_run(config, resume)
    if resume:
        driver.hold(say)
        restore(config.run_dir)
        state, checkpoint = find_run(config, resume)  # again: now nobody else writes there
        if said := nothing_left(config):
            say(said)
            return 0
    with (
        closing(_open_recorder(config)) as recorder,
        quiet() as output,
        closing(Startup(output.aloud(say), output.screen, config.run_dir, lambda: driver.hold(say))) as startup,
    ):
        shown()
        before_leaving(startup.close)  # else the bar would stay below the last line
        output.apart = startup.paused
        end = _end_of(config, startup, uploads, after_ray)
        signals.last_words = end.at_once
        run = _Context(resume, state, checkpoint, driver, signals, uploads, recorder, output, startup, end)
        end.config, model_dir, notes = _prepare(config, checkpoint, resume, startup)
        code = EXIT_FAILED
        try:
            with signals.meant():
                code = _on_ray(end.config, model_dir, notes, run)
        except Interrupted as interrupted:
            startup.say(f"stopped by {interrupted.signal.name} before the actors were ready")
            code = 128 + interrupted.signal
        except Exception as error:
            code = _ended_by(error, end)
        finally:
            if code != EXIT_FAILED:
                recorder.set("squelch_run_ended", 1)
            signals.first_does(end.already)
            end.unwatch()
            startup.stage("ending Ray")
            disconnect()
            end.close()
            startup.stage("waiting for the last scrape by Prometheus")
            recorder.close()
    return code


def _end_of(config: RunConfig, startup: Startup, uploads: Uploads | None, after_ray: Callable[[int], int]) -> RunEnd:
    """The run's end, which speaks as the start-up does, and so do the uploads from now on."""

    def without_ray(code: int) -> int:
        startup.close()
        return after_ray(code)

    if uploads is None:
        return RunEnd(config, startup.say, startup.began, without_ray)
    uploads.say = startup.say
    return RunEnd(config, startup.say, startup.began, without_ray, uploads.unsent)


def _on_ray(config: RunConfig, model_dir: Path, notes: list[str], run: _Context) -> int:
    """Starts or joins Ray's cluster, makes the run's folder, and trains."""
    say, resume = run.startup.say, run.resume
    if run.signals.arrived:  # as a warm-up ended
        raise Interrupted(run.signals.arrived[0])
    run.startup.stage("starting Ray" if not config.cluster.address else "joining the Ray cluster", "5 to 15 s")
    weights = weight_bytes(model_dir, config)
    if starts_ray(config) and (scarce := host_memory.note(config, weights)):
        notes.append(scarce)
    connect(config, say, weights=weights, joined=run.end.watch_ray)
    run.driver.hold(say)
    config = run.end.config = choose_token_budget(config, model_dir, resume, say, weights, memory_of_a_gpu)
    if not resume:
        find_run(config, resume)  # another process may have begun it meanwhile
    _begin(config, _first_screen(config, model_dir, run.recorder), notes, run.output, say)
    with _open_loggers(config, run.recorder, run.recorded) as loggers:
        loggers.exit_code = asyncio.run(_train(config, model_dir, loggers, run))
    return loggers.exit_code


def _ended_by(error: Exception, end: RunEnd) -> int:
    """The exit code of a run that an error ended. UserError if its user can mend it: a file or a setting."""
    begun = end.coordinator is not None
    if isinstance(error, (ArchiveError, Unreadable, UserError)) and not begun:  # e.g. a full disk
        raise UserError(str(error)) from error
    if _is_a_setting(error):
        raise UserError(with_trace(error, end.config.run_dir)) from error
    return end.failed(error)  # an actor failed or is late, or a bug: the trace shows which


def _prepare(
    config: RunConfig, checkpoint: Path | None, resume: bool, startup: Startup
) -> tuple[RunConfig, Path, list[str]]:
    """The configuration with what environment and scorer fix in it, the folder of the initial policy, and notes for the
    user."""
    check_address(config)  # this and the next three first, because a warm-up may take minutes
    check_machine(config)
    check_scoring(config)
    config, notes = _with_environments(config)
    startup.stage("preparing the model", "2 to 4 minutes once" if config.model.path == "tiny" else "")
    config = with_date_of_start(config, resume)
    model_dir = prepare_model(config, startup.say, startup.advance, partial(check_fixed_scorer, config))
    config = with_date_of(config, model_dir, startup.say)
    _check_model(checkpoint, model_dir)
    return choose_scoring(config, model_dir, resume, startup.say), model_dir, notes


def _begin(
    config: RunConfig, screen: Sequence[str], notes: Sequence[str], output: Output, say: Callable[[str], None]
) -> None:
    """Says what is trained and makes the run's folder, which keeps the output from then on."""
    for line in screen:
        say(line)
    create_run(config, say)
    output.keep(config.run_dir)
    log.info("new weights reach rollout workers %s", config.way_text)
    for note in notes:
        say(note)


def _first_screen(config: RunConfig, model_dir: Path, recorder: Recorder) -> list[str]:
    lines = opening_lines(config, model_dir, recorder.url)
    if recorder.has_moved:
        lines.append(f"port {PORTS[0]} is taken; deploy/prometheus.yml scrapes {recorder.port} as well")
    return lines


def _is_a_setting(error: Exception) -> bool:
    """Whether a setting is at fault, so that the user can correct it. Any other ValueError after the start is a bug, in
    the driver or in an actor (`Refused`)."""
    return isinstance(error.cause if isinstance(error, Refused) else error, SettingRefused)


def _check_model(checkpoint: Path | None, model_dir: Path) -> None:
    if checkpoint is not None:
        with as_user_error():
            require_same_folder(checkpoint, read_manifest(checkpoint).identity, model_dir)


def _with_environments(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """The configuration with the options that the environments fix for the whole run, and notes for the user."""
    played = [_started(entry, config) for entry in config.mixture.entries]
    pinned = {entry.key: first.environment.pinned() for entry, first, _ in played}
    notes = [note for _, _, own in played for note in own] + notes_on_settings(config)

    def fixed(entry: Entry) -> EnvironmentConfig:
        chosen = entry.environment
        return chosen.model_copy(update={"options": {**chosen.options, **pinned[entry.key]}})

    return config.with_each(fixed), notes


def _started(entry: Entry, config: RunConfig) -> tuple[Entry, FirstTask, list[str]]:
    """The environment with its first task started, and notes for the user: its own, and filter settings that it does
    not support. UserError if it cannot play."""
    chosen, selecting = entry.environment, config.filter
    try:
        first = first_task(chosen, config.cluster.start_timeout_s)
        notes = [*first.environment.notes()]
        notes += notes_on_slow_calls(first.environment, chosen.name, config.environment_actor.step_timeout_s)
    except ValueError as error:
        raise UserError(f"environment {entry.name}: {entry.keyed(str(error))}") from error
    if selecting.kind_floor and first.kind is None:
        notes.append(f"filter.kind_floor does nothing: {entry.name} declares no kinds of tasks (`task_kind`)")
    return entry, first, [entry.keyed(note) for note in notes]


def _open_recorder(config: RunConfig) -> Recorder:
    workers, actors = actor_names(config)
    seeds = {"worker": workers, "actor": actors, "environment": config.mixture.labels}
    names = {"run": config.name, "environment": config.mixture.name, "filter": config.filter.rule}
    with as_user_error():
        recorder = serve(config.recorder, REGISTRY, installed_version(), **names, seeds=seeds)
    limits(config, recorder)
    return recorder


def _check_loggers(config: RunConfig) -> None:
    extra = ",".join(config.recorder.loggers)
    with needs_extra(extra, f"recorder.loggers=[{extra}]"):
        require_packages(config.recorder)


def _open_loggers(config: RunConfig, recorder: Recorder, clock: int) -> Loggers:
    settings = without_secrets(config.model_dump(mode="json"))
    with as_user_error():
        return Loggers(recorder, open_loggers(config.recorder, REGISTRY, config.run_dir, config.name, settings, clock))


async def _train(config: RunConfig, model_dir: Path, loggers: Loggers, run: _Context) -> int:
    say, run.end.loop = run.startup.say, asyncio.get_running_loop()
    archive = Archive(config.run_dir)
    archive.truncate_after(run.recorded)
    archive.keep_tokenizer(model_dir)
    if any(plays_whole_turns(entry.environment) for entry in config.mixture.entries):
        archive.keep_format(small_files(model_dir))
    fleet = Fleet(config, RayActors(config, model_dir, log_folder(config.run_dir)), archive.event)
    if run.uploads is not None:
        run.uploads.begin()
    try:
        await interruptible(_start(fleet, run.checkpoint, run.startup), run.signals, say)
        if run.checkpoint is not None:
            say(f"resumed from {run.checkpoint} after step {run.state.clock}")
        coordinator = make_coordinator(config, fleet, archive, loggers, run.state, say, run.startup.work)
        run.end.coordinator = coordinator
        _stop_on_signals(coordinator, run.signals, say)
        coordinator.watchers.append(FirstStep(run.startup))
        say(f"ready after {time.time() - run.startup.began:.1f} s")
        watching = watched(run.uploads, archive, run.recorder, coordinator.stop)
        heartbeat = Heartbeat(fleet, coordinator.steps.ledger, config.run_dir, run.recorder)
        async with beating(heartbeat), watching:
            await coordinator.scaling.beside(coordinator.run())
    finally:
        run.signals.first_does(run.end.already)
        run.startup.stage("stopping the actors")
        await fleet.stop()
        archive.close()
    return run.end.done(archive, run.signals.arrived)


async def _start(fleet: Fleet, checkpoint: Path | None, startup: Startup) -> None:
    """Returns once every actor is ready and the learner has loaded the checkpoint, if there is one. UserError, with
    where its trace is, if an actor refuses the settings, the model or the checkpoint."""
    try:
        startup.stage("starting the actors", "20 to 60 s or more")
        await fleet.start(on_stage=startup.advance, resumes=checkpoint is not None)
        if checkpoint is not None:
            startup.stage("loading the checkpoint")
            assert fleet.learner is not None, "a run that trains starts its learner"
            await fleet.learner.call(LOAD, checkpoint.resolve())
    except (ValueError, Refused) as error:
        raise UserError(with_trace(error, fleet.config.run_dir)) from error


def find_run(config: RunConfig, resume: bool) -> tuple[LoopState, Path | None]:
    """The state to start from and its checkpoint: the newest checkpoint's if the run is resumed, else a new state.

    Raises:
        UserError: the folder already holds a run, or a run to be resumed is missing, damaged, or of other settings.
    """
    run_dir = config.run_dir
    if not resume and RunFolder(run_dir).has_begun():
        raise UserError(
            f"{run_dir} already holds a run. Continue it with --resume, or choose another name; without name= a run "
            "gets the next free one"
        )
    if resume and not (run_dir / "config.yaml").exists():
        missing = f"{run_dir} holds no run (no config.yaml)" + (
            f", and neither does {config.store}" if config.store else ""
        )
        raise UserError(f"--resume: {missing}; start it without --resume first")
    saved = checkpoints(run_dir) if resume else []
    if not saved:
        return LoopState(), None
    newest = saved[-1][1]
    with as_user_error():
        require_same_algorithm(newest, read_manifest(newest).algorithm, config.learner.algorithm)
    require_same_schedule(settings_of(run_dir / "config.yaml"), config.mixture, newest)
    state = read_state(newest)
    require_usable(state, newest, config.filter)
    return state, newest


def create_run(config: RunConfig, say: Callable[[str], None]) -> None:
    """Writes the resolved configuration and moves an earlier summary aside; prints which settings a resumed run has
    changed."""
    if (summary := config.run_dir / SUMMARY).exists():  # of the process before, which the run outlives
        summary.replace(summary.with_name(EARLIER_SUMMARY))
    resolved = config.run_dir / "config.yaml"
    if resolved.exists() and RunFolder(config.run_dir).has_begun():  # else a sweep wrote what it is to start with
        for change in changes(settings_of(resolved), config):
            say(f"setting changed since the run started: {change}")
    write_whole(resolved, f"# Written by Squelch {version_text()}.\n{dump(config)}")


def _stop_on_signals(coordinator: Coordinator, signals: Signals, say: Callable[[str], None]) -> None:
    """The first signal ends the run after the step in training, and is answered with a line at once, also while the
    loop is busy; so is one that arrived just after the start-up."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        say(f"{coordinator.last_work}; again to stop now")
        if not coordinator.is_ending:
            loop.call_soon_threadsafe(coordinator.stop, Ending(EndCause.SIGNAL, number.name))

    signals.first_does(stop)
    if signals.arrived:
        stop(signals.arrived[0])
