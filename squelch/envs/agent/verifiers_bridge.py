"""Environments of verifiers 0.4 (`verifiers.v1`) as agents: a user's `Taskset` under the null harness, in subprocesses.

It runs in a Python that has verifiers, as a file of its own: verifiers needs another `openai` than we do. Written as

    python -m squelch.envs.agent.verifiers_bridge PYTHON sums.py:Sums > tasks.jsonl
    squelch train RECIPE environment.name=Agent \
        environment.options='{data: tasks.jsonl, python: PYTHON, call: "squelch.envs.agent.verifiers_bridge:play"}'

the first command writes the taskset's tasks, one a line, and the second plays them. verifiers relays each call of its
harness to our endpoint, so the tokens that are trained on are the endpoint's; of its trace only the reward is used.

The null harness runs a script whose packages `uv` installs from the package index at its first use. `uv` is looked for
beside the interpreter first. A trajectory that verifiers does not call `ok` raises, and its reward is never used.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

NO_KEY = "SQUELCH_NO_KEY"
"""A variable that is not set: the token is in the address, as trajectories of one process share its variables."""
_LOADING = threading.Lock()
_SERVED: dict[Any, tuple[Any, asyncio.Future[Any]]] = {}
_USAGE = "usage: python -m squelch.envs.agent.verifiers_bridge PYTHON file.py:Taskset|module:Taskset > tasks.jsonl"


async def play(task: Mapping[str, Any], client: Any) -> dict[str, Any]:
    """Plays a line of `main`'s as one trajectory; returns its reward. Raises RuntimeError with verifiers' reason."""
    taskset = await asyncio.to_thread(loaded, task["taskset"])  # it may read whole data sets
    v1 = importlib.import_module("verifiers.v1")
    kind: Any = taskset.task_type()
    config = v1.AgentConfig(
        model="policy",
        client=v1.EvalClientConfig(base_url=f"{client.base_url}/t/{client.api_key}/v1", api_key_var=NO_KEY),
        harness={"id": "null"},
        runtime=v1.SubprocessConfig(),
    )
    async with v1.Agent(config) as agent:
        one = kind(kind.data_type().model_validate(task["task"]), taskset.config.task)
        trace = await agent.run(one, tools=await shared_tools(taskset))
    if not trace.ok:
        said = "; ".join(f"{error.type}: {error.message}" for error in trace.errors)
        raise RuntimeError(f"verifiers' rollout failed: {said or trace.stop_condition}")
    return {"reward": float(trace.reward)}


async def shared_tools(taskset: Any) -> Any:
    """The servers of the tools that all tasks share, started at the first task; they end with this process."""
    if taskset not in _SERVED:
        servers = taskset.toolsets(taskset.config)
        serving: Any = importlib.import_module("verifiers.v1.mcp").serve_shared(servers)
        _SERVED[taskset] = serving, asyncio.ensure_future(serving.__aenter__())
    try:
        return await asyncio.shield(_SERVED[taskset][1])
    except Exception:
        _SERVED.pop(taskset, None)  # the next task tries again
        raise


def loaded(name: str) -> Any:
    """As `made`, once for all trajectories that wait for it."""
    with _LOADING:
        return made(name)


@cache
def made(name: str) -> Any:
    """The taskset `file.py:Class` or `module:Class`, with the defaults of its configuration."""
    _find_uv()
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        path = Path(source).resolve()
        sys.path.insert(0, str(path.parent))
        os.environ["PYTHONPATH"] = str(path.parent)  # a server of tools is a process that imports its module
        source = path.stem
    found: Any = getattr(importlib.import_module(source), attribute)
    generic = importlib.import_module("verifiers.v1.utils.generic")
    v1 = importlib.import_module("verifiers.v1")
    return found((generic.concrete_type(found, v1.TasksetConfig) or v1.TasksetConfig)())


def _find_uv() -> None:
    """Puts the interpreter's folder first on the path of programs: an environment that is not activated has it not."""
    folder, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != folder:
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"


def main(given: list[str]) -> None:
    """Writes the tasks of a taskset, each with what `play` needs."""
    if len(given) == 2:
        os.execv(given[0], [given[0], __file__, given[1]])
    if len(given) != 1:
        raise SystemExit(_USAGE)
    taskset = made(given[0])
    if not taskset.bounded:
        raise SystemExit(f"{given[0]} yields tasks without end; write a subclass whose load() ends")
    for one in taskset:
        row = {
            "prompt": one.data.prompt_text,
            "taskset": given[0],
            "task": one.data.model_dump(mode="json", exclude_defaults=True),
        }
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == Path(__file__).stem and importlib.util.find_spec("verifiers") is None:
    # A file of its own, loaded by `host.py`: nothing shall start. Its import takes seconds and waits for a task.
    raise ImportError(f"{sys.executable} has no verifiers: give environment.options.python one that has verifiers 0.4")
