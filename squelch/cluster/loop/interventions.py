"""`squelch eval --interventions`: whether the agent does something else if it has reasoned something else.

The tasks are the fixed validation tasks; each has `CANDIDATES` further validation tasks, none of which another task
has, among which its donor is sought. The result is printed, and written into the run's folder as
`interventions/step-NNNNNN.json` (step 0: the initial policy).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop.tickets.playing import counted, interventions_failed
from squelch.cluster.loop.watchers.validation import fixed_tickets
from squelch.envs.registry import environment_class
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.interventions import ARMS, Arm, Effect, Intervention, LeftOut, Swap, effects

CANDIDATES = 8
"""Tasks among which a donor is sought: with four equally likely best answers all are the same in one of 4^8 cases."""
FOLDER = "interventions"
ROWS: Mapping[Arm, str] = {"second": "second own", "donor": "the donor's", "blank": "none (not judged)"}
COLUMNS = {"own": "own", "donors": "donor's", "another": "another", "none": "no action", "valid": "well formed"}


def swaps_of(config: RunConfig) -> list[Swap]:
    """The validation tasks with the candidates for their donors. UserError for an environment whose turns hold no
    actions that it could read."""
    for entry in config.mixture.entries:
        if environment_class(entry.environment.name).whole_turns:
            raise UserError(
                f"--interventions compares actions, and environment {entry.name} reads whole turns "
                "(whole_turns in envs.contract.Environment); leave the option out"
            )
    num = config.validation.tasks
    found = []
    for place, ticket in enumerate(fixed_tickets(config)):
        first = config.mixture.labelled(ticket.task.label).environment.validation_seed + num
        seeds = range(first + place % num * CANDIDATES, first + (place % num + 1) * CANDIDATES)
        found.append(Swap(ticket, tuple(replace(ticket.task, seed=seed) for seed in seeds)))
    return found


def document(found: Sequence[Intervention | LeftOut], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The result as JSON: `facts`, and the effect in each environment by its label, which is empty for the only one."""
    return {**facts, "interventions": {label: effect.data() for label, effect in effects(found).items()}}


def write(run_dir: Path, step: int, result: Mapping[str, Any]) -> Path:
    """Writes the result of a checkpoint, 0 for the initial policy, into the run's folder."""
    path = run_dir / FOLDER / f"step-{step:06d}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(result, indent=1) + "\n")
    return path


def say_interventions(
    found: Sequence[Intervention | LeftOut], written: Path | None, say: Callable[[str], None]
) -> None:
    """Says the result, a table for each environment, what failed, and where it was written."""
    for label, effect in effects(found).items():
        say(_table(label, effect))
    if failed := interventions_failed(found):
        say(f"WARNING: {len(failed)} of {len(found)} interventions failed and are left out: {counted(failed)}")
    if written is not None:
        say(f"written to {written}")


def _table(label: str, effect: Effect) -> str:
    left_out = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in effect.left_out.items())
    lines = [
        f"interventions{f' in {label}' if label else ''}: first turns of {effect.tasks} tasks"
        f"{f' (left out: {left_out})' if left_out else ''}, {effect.twins} donors are near twins",
        f"well formed: {effect.valid.text} of these turns",
        f"change {effect.change.text}: the action differs under the donor's reasoning in "
        f"{effect.answers['donor']['differs'].text}, under a second own reasoning in "
        f"{effect.answers['second']['differs'].text}",
        f"follow {effect.follow.text}: so much more often the first action is the donor's after the donor's reasoning",
        f"{'reasoning':<18}" + "".join(f"  {name:<20}" for name in COLUMNS.values()).rstrip(),
    ]
    for arm in ARMS:
        cells = "".join(f"  {effect.answers[arm][name].text:<20}" for name in COLUMNS)
        lines.append(f"{ROWS[arm]:<18}{cells}".rstrip())
    return "\n".join(lines)
