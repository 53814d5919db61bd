"""Creates the coordinator of a run and everything that it calls. A new watcher is one more line in `watchers`."""

from __future__ import annotations

from collections.abc import Callable

from squelch.cluster.config import RunConfig
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import Supervisor, Watchdog
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.learner_client.learning import Learning
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpointing import Checkpointing
from squelch.cluster.loop.persistence.run_log import RunLog, Work, unseen
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.scaling import Scaling
from squelch.cluster.loop.stopping import Stopping
from squelch.cluster.loop.tickets.open_steps import OpenSteps
from squelch.cluster.loop.tickets.playing import Play
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.counting_nothing import CountingNothing
from squelch.cluster.loop.watchers.decomposing import Decomposing
from squelch.cluster.loop.watchers.early_stopping import EarlyStopping
from squelch.cluster.loop.watchers.findings import FindingsWatcher
from squelch.cluster.loop.watchers.gaming_warning import GamingWarning
from squelch.cluster.loop.watchers.probing import Probing
from squelch.cluster.loop.watchers.scoring import LastScoring, Scoring
from squelch.cluster.loop.watchers.validation import Validation
from squelch.cluster.loop.watchers.watcher import Watcher
from squelch.kit.archive.writer import Archive
from squelch.kit.metrics.loggers import Loggers


def make_coordinator(
    config: RunConfig,
    fleet: Fleet,
    archive: Archive,
    recorder: Loggers,
    state: LoopState,
    say: Callable[[str], None],
    show: Callable[[Work], None] = unseen,
) -> Coordinator:
    """The coordinator over a started fleet; it continues from `state`. `show` shows what it does."""
    run_log = RunLog(archive, recorder, config.loop.steps, state.totals, say, show)
    run_log.carry(state.carried)
    watchdog, stopping = Watchdog(run_log.event, recorder.set), Stopping(config.loop.steps)
    archiving = Archiving(archive, fleet.actors.payloads, config.run_dir, say)
    learning = Learning(config, fleet, run_log, archiving, state, watchdog, say)
    play = Play(config, fleet)
    steps = OpenSteps(config, fleet, play, state, say)
    alarms, scaling = Alarms(config, run_log), Scaling(config, fleet, say)
    scoring = Scoring(config, fleet, run_log, alarms, stopping, steps.cancel)
    early_stopping, gaming = EarlyStopping(config), GamingWarning(config)
    validation = Validation(config, play, run_log, (early_stopping.validated, gaming.validated))
    watchers: list[Watcher] = [
        early_stopping,
        gaming,
        CountingNothing(config),
        validation,  # after those that may make the step the last
        scoring,
        Probing(config, play, scoring, run_log),
        LastScoring(scoring),  # waits for the probe's evaluation too
        alarms,  # reads the scorer's metrics of the step
        Decomposing(config, learning, play),
        scaling,
        FindingsWatcher(config, run_log),  # sees what the others found
    ]
    return Coordinator(
        config=config,
        fleet=fleet,
        state=state,
        run_log=run_log,
        steps=steps,
        learning=learning,
        archiving=archiving,
        checkpointing=Checkpointing(config, learning, archiving, run_log, validation, alarms),
        watchers=watchers,
        scaling=scaling,
        supervisor=Supervisor(fleet, watchdog, scoring.replace_dead),
        stopping=stopping,
    )
