"""An agent as a command: one process, with all that it starts, for one trajectory.

The process gets its task as JSON on standard input, and the endpoint in the variables that OpenAI's and Anthropic's
clients read (`environment_variables.py`). Its result is the last line of its standard output, or the file
`SQUELCH_RESULT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from squelch.envs.agent.ending import AgentEnded
from squelch.envs.agent.environment_variables import hidden, of_trajectory, shared
from squelch.envs.agent.folders import TASK, end_started_in
from squelch.envs.agent.kept import Kept
from squelch.envs.contract import Access, AgentFailed
from squelch.kit.untrusted.files import MIB, Unreadable, is_file, read_bytes
from squelch.kit.untrusted.text import parse_object

KEY = "environment.options.command"
_SCRIPTS = (".py", ".js", ".mjs", ".ts", ".sh")
MAX_RESULT = MIB
"""Bytes of a result, and of the end of standard output that is kept."""


def check_command(command: Sequence[str]) -> None:
    """Raises ValueError if there is no such program, or no such script among its arguments."""
    if shutil.which(command[0], path=shared()["PATH"]) is None:
        raise ValueError(
            f"{KEY}: there is no program {command[0]!r} (searched in PATH, and beside the run's Python); give its path"
        )
    for argument in command[1:]:
        if os.path.isabs(argument) and argument.endswith(_SCRIPTS) and not os.path.lexists(argument):
            raise ValueError(f"{KEY}: there is no file {argument}")


async def run_command(
    command: Sequence[str],
    task: Mapping[str, Any],
    access: Access,
    folder: str,
    memory_gib: float | None,
    keep_home: Sequence[str] = (),
) -> dict[str, Any]:
    """The object that the command reports. `folder`: for its files. Raises AgentFailed; cancelled, it ends the command
    first."""
    surroundings = of_trajectory(access, folder, keep_home)
    Path(surroundings[TASK]).write_text(json.dumps(task), encoding="utf-8")
    stdin = os.open(surroundings[TASK], os.O_RDONLY | os.O_CLOEXEC)
    try:
        kept = Kept(command, surroundings, stdin, memory_gib, MAX_RESULT, folder)
    finally:
        os.close(stdin)
    try:
        how = await kept.ended()
    finally:
        await kept.close()
        if kept.has_lost_keeper:
            await asyncio.to_thread(end_started_in, folder)
    if how:
        text = hidden(f"the agent's command {how}{kept.last_output()}", access)
        raise AgentFailed(text) if kept.exit_code is None else AgentEnded(text, (str(kept.exit_code),))
    try:
        return _reported(kept, Path(surroundings["SQUELCH_RESULT"]))
    except Unreadable as error:
        raise AgentFailed(hidden(f"{error}{kept.last_output()}", access)) from error


def _reported(kept: Kept, file: Path) -> dict[str, Any]:
    """The object in the file, or in the last line of standard output. Raises Unreadable."""
    if is_file(file):
        return parse_object(read_bytes(file, MAX_RESULT), "the agent's result file")
    lines = kept.output.written.rstrip().splitlines()
    if not lines:
        raise Unreadable(
            'the agent reported no result: the last line of its standard output must be a JSON object such as {"reward"'
            ": 1.0}, or the file that SQUELCH_RESULT names must hold one"
        )
    if len(lines) == 1 and kept.output.dropped:
        raise Unreadable(f"the last line of the agent's standard output is longer than {MAX_RESULT} bytes")
    return parse_object(lines[-1], "the last line of the agent's standard output")
