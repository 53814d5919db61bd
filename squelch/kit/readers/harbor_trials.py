"""The folder of a trial of Harbor: the trajectories that stand beside its result.

    TRIAL/result.json                                what `trajectory_rows.harbor` reads
    TRIAL/agent/trajectory.json                      the agent's; `trajectory.cont-1.json` and so on continue it
    TRIAL/steps/STEP/agent/trajectory.json           those of a task with steps

Subagents' trajectories (`trajectory.summarization-…`) are not read. An agent writes into these folders, so what it
names there is not followed.
"""

from __future__ import annotations

import re
from pathlib import Path

from squelch.kit.readers.records import Record, object_in
from squelch.kit.readers.trajectory_rows import TRAJECTORIES, WHOLE
from squelch.kit.untrusted.files import state

_CONTINUES = re.compile(r"trajectory\.cont-(\d{1,9})\.json")


def trajectories_beside(result: Path) -> Record:
    """The trajectories of the trial whose result is at a path, by the step of its task."""
    agents = {WHOLE: result.parent / "agent"}
    agents |= {agent.parent.name: agent for agent in sorted(result.parent.glob("steps/*/agent"))}
    return {TRAJECTORIES: {name: [object_in(path) for path in _files_in(agent)] for name, agent in agents.items()}}


def _files_in(agent: Path) -> list[Path]:
    """The trajectory in an agent's folder, and what continues it, in order."""
    named = [(_CONTINUES.fullmatch(path.name), path) for path in agent.glob("trajectory.cont-*.json")]
    later = [path for _, path in sorted((int(found[1]), path) for found, path in named if found)]
    whole = agent / "trajectory.json"
    return [*([whole] if state(whole) else []), *later]
