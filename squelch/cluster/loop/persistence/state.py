"""Loop state: the part of a checkpoint besides the learner's shards, from which a run is resumed.

A checkpoint of step n means that steps 1..n are complete. A resumed run first removes later steps from the archive,
and then issues the tickets that were open at the checkpoint again with the same ids and tasks, so that every task is
trained on once.

A checkpoint may come from somebody else: the types of its loop state are checked, and its tickets play the
configuration's environment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import task_of
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.runs.folder import LOOP_FILE
from squelch.cluster.setting_keys import labels_of, weights_of
from squelch.envs.mixture import Entry, Mixture
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import FilterChanged, make_window
from squelch.kit.records.records import Ticket
from squelch.kit.untrusted.files import brief, reason, require_own
from squelch.learner.checkpoint.manifest import EXPORT, read_loop

ANEW = {
    "validation": "the validation's tasks or temperature have changed: everything that is paired by task starts over",
    "probe": "the fixed probe's tasks, or how they are scored, have changed: its metrics and alarms start over",
    "answers": "the fixed probe's scored answers have changed: the alarm on D (dependence) starts over",
    "scorings": "the scoring of steps has changed: the alarm on scorer steps and the judge's baseline start over",
}
"""What may start over in a resumed run (`LoopState.with_tasks`), in words."""
OLDER = frozenset({"scorer_figures", "early_stop"})
"""Fields of the loop state of older checkpoints."""
READS_OLDER = "03d7dc21"
"""The last commit that reads the loop state of older checkpoints."""


@dataclass
class LoopState:
    """State of the loop after `clock` completed steps, as JSON-able data."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    clock: int = 0
    version: int = 0
    cursor: int = 0
    optimizer_steps: int = 0
    seconds: float = 0.0
    """Wall seconds of training so far, over all processes of the run."""
    totals: dict[str, float] = field(default_factory=dict)
    open_tickets: list[dict[str, Any]] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=lambda: {"ended": []})
    filter: dict[str, Any] | None = None
    bad_steps: int = 0
    """Steps in a row that the learner refused."""
    carried: dict[str, float] = field(default_factory=dict)
    """Metrics that the next step reports."""
    watchers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The state of each watcher that has one, by name (`cluster.loop.watchers.watcher`)."""
    fixed_tasks: dict[str, str] = field(default_factory=dict)
    """The fixed tasks of the validation and of the probe, and how they are sampled (`with_tasks`); empty in a new
    run."""

    @property
    def best_step(self) -> int:
        """The step of the best validation; -1 before the first."""
        return self.watchers.get("validation", {}).get("best_step", -1)

    def with_tasks(self, config: RunConfig) -> list[str]:
        """Stores the configuration's fixed tasks, and how they and the steps are scored. Returns the keys of ANEW whose
        measurement has changed or ended, so that they start over: gains, the best step and warnings are paired by
        task, and alarms compare with a level. `Watcher.restore` resets them."""
        checked, scorer, probe = config.validation, config.scorer, config.scorer.probe
        entries = [(entry, entry.environment) for entry in config.mixture.entries]
        seen = [fact for entry, env in entries for fact in (*_named(entry), env.name, dict(env.options), env.prompt)]
        seen += [config.scored.label] if config.environments else []
        base = [*seen, *(env.validation_seed for _, env in entries)]
        facts = {
            "validation": [*base, checked.tasks, checked.temperature],
            "probe": [
                *(*base, probe.num_tasks(checked.tasks), probe.num_samples, config.sampling.temperature),
                *(scorer.enabled and probe.every > 0, scorer.model),
            ],
            "answers": [probe.scores_answers, probe.answer_tasks, probe.answer_references],
            "scorings": [*seen, scorer.enabled, scorer.model],
        }
        tasks = {name: json.dumps(fact, sort_keys=True, default=str) for name, fact in facts.items()}
        anew = [name for name, now in tasks.items() if self.fixed_tasks.get(name, now) != now]
        self.fixed_tasks = tasks
        return [name for name in anew if name != "answers" or "probe" not in anew]  # answers are a part of the probe

    def tickets(self, mixture: Mixture) -> list[Ticket]:
        """The open tickets, in order of issue, with their ids, steps and seeds.

        Environment and options are those of the configuration, and not the checkpoint's: they decide, for example,
        whether programs run in the sandbox. ValueError if the run has no environment of a ticket's label.
        """
        opened = _TICKETS.validate_python(self.open_tickets)
        return [replace(t, task=task_of(mixture.labelled(t.task.label), t.task.seed, "train")) for t in opened]


_STATE, _TICKETS = TypeAdapter(LoopState), TypeAdapter(list[Ticket])


def pack_ticket(ticket: Ticket) -> dict[str, Any]:
    """A ticket as plain data; that of a run's only environment names none."""
    packed = asdict(ticket)
    if not ticket.task.label:
        del packed["task"]["label"]
    return packed


def _named(entry: Entry) -> list[object]:
    """What an entry adds to the facts of a validation: its label and weight; nothing for an only environment."""
    return [entry.label, entry.weight] if entry.label else []


def read_state(checkpoint: Path) -> LoopState:
    """The loop state of a checkpoint.

    Raises:
        UserError: the file is damaged, or of a release that kept other state; the text names it.
    """
    try:
        loop = read_loop(checkpoint)
        if loop.keys() >= OLDER:
            raise UserError(
                f"{checkpoint / LOOP_FILE} is of an older Squelch, which kept other state of the loop. Continue "
                f"this run with commit {READS_OLDER}, or start a new one with model.path={checkpoint / EXPORT}"
            )
        state = _STATE.validate_python(loop)
        _TICKETS.validate_python(state.open_tickets)
        return state
    except ValueError as error:
        raise _damaged(checkpoint, _reason(error)) from error


def require_usable(state: LoopState, checkpoint: Path, config: FilterConfig) -> None:
    """Restores the parts that actors take over, for a trial, so that no actor has to start to refuse them.

    Raises:
        UserError: a part is damaged, or the filter's is of settings under which this run cannot go on.
    """
    try:
        Ledger.restore(state.ledger)
        if state.filter:
            make_window(config).restore(state.filter)
    except FilterChanged as error:
        raise UserError(f"{checkpoint / LOOP_FILE}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(checkpoint, f"{type(error).__name__}: {brief(str(error))}") from error


def require_same_schedule(before: Mapping[str, Any], mixture: Mixture, checkpoint: Path) -> None:
    """Raises UserError if a run that goes on has other environments, by label and weight, than it began with: which
    tasks its tickets have played follows from these. `before`: the settings that it began with, by dotted key."""
    old = dict(zip(labels_of(before), weights_of(before), strict=True))
    new = {entry.label: entry.weight for entry in mixture.entries if entry.label}
    if list(old.items()) != list(new.items()):
        raise UserError(
            f"environments: the run began with {_weights(old)}, and has {_weights(new)} now; the schedule of its tasks "
            f"follows from their order, labels and weights. Restore these, or start a new run with "
            f"model.path={checkpoint / EXPORT}"
        )


def _weights(labels: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {weight:g}" for label, weight in labels.items()) or "a single environment"


def _damaged(checkpoint: Path, why: str) -> UserError:
    return UserError(
        f"{checkpoint / LOOP_FILE} cannot be read ({why}); the checkpoint is damaged. Remove {checkpoint} to resume "
        "from the one before it."
    )


def _reason(error: ValueError) -> str:
    """The error as one line; of a pydantic error its first fault."""
    if not isinstance(error, ValidationError):
        return reason(error)
    first = error.errors()[0]
    return f"{brief('.'.join(str(part) for part in first['loc']))}: {first['msg']}"


def amend(checkpoint: Path, **facts: Any) -> None:
    """Replaces fields of the loop state in a complete checkpoint with values that became known later.

    Raises:
        UserError: the file cannot be written; the checkpoint has not changed.
    """
    path = checkpoint / LOOP_FILE
    try:
        write_whole(path, json.dumps(read_loop(checkpoint) | facts))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} could not be updated ({error}). The checkpoint is complete except for the scorer's latest "
            "results; free some disk space"
        ) from error


def check_folder(run_dir: Path) -> None:
    """Raises UserError if the folder of a run or a sweep cannot be written; no file is left by the check.

    WrongKind if a link in it leads out: a stranger's run that is resumed must not write elsewhere.
    """
    if run_dir.is_dir():
        require_own(run_dir)
    there = next(folder for folder in (run_dir, *run_dir.parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".writable-", dir=there):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write to {run_dir} ({error.strerror} in {there}): give a writable folder with runs_dir=FOLDER"
        ) from error
