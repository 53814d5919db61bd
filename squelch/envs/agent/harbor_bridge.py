"""Tasks of Harbor 0.26 as agents: each trajectory is a trial of Harbor's, with its agent, environment and verifier.

It runs in a Python that has Harbor (3.12 or newer), as a file of its own. Written as

    python -m squelch.envs.agent.harbor_bridge PYTHON TASKS trial.yaml > tasks.jsonl
    squelch train RECIPE environment.name=Agent \
        environment.options='{data: tasks.jsonl, python: PYTHON, call: "squelch.envs.agent.harbor_bridge:play"}'

the first command writes the tasks of a folder, one a line, and the second plays them. `trial.yaml` is a configuration
of `harbor trial start` without its task: agent, environment, verifier, time-outs. The agent finds the policy in its own
variables (`agent.env`), which Harbor reads before those of the process, since trials of one process share theirs.

The reward is that of the trial's result. A trial whose reward Harbor does not call valid raises, and is no reward of 0.
Its folder is removed with the trajectory's; the tokens that are trained on are the endpoint's.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL = "openai/policy"
_USAGE = "usage: python -m squelch.envs.agent.harbor_bridge PYTHON TASKS trial.yaml > tasks.jsonl"


async def play(task: Mapping[str, Any], client: Any) -> dict[str, Any]:
    """Plays a line of `main`'s as one trajectory; returns its reward. Raises RuntimeError with Harbor's reason."""
    trials = await asyncio.to_thread(_imported)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trial = await trials.create(_configuration(task["trial"], client, folder))
        result = await trial.run()
    if not result.reward_valid:
        raised = result.recorded_exceptions()
        said = "; ".join(f"{one.exception_type}: {one.exception_message}" for one in raised)
        raise RuntimeError(f"Harbor's trial has no valid reward: {said or 'its verifier wrote none'}")
    return {"reward": _reward(result.verifier_result.rewards)}


def _imported() -> Any:
    """The class of trials, and what its first trial would import on the event loop, for seconds: LiteLLM."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks GitHub for prices; the policy has none
    _harbor("llms.litellm_config")
    return _harbor("trial.trial").Trial


def _harbor(name: str) -> Any:
    return importlib.import_module(f"harbor.{name}")


def _configuration(trial: Mapping[str, Any], client: Any, folder: str) -> Any:
    """The trial with the policy as its model."""
    config = _harbor("models.trial.config").TrialConfig.model_validate({**trial, "trials_dir": folder})
    config.agent.model_name = config.agent.model_name or MODEL
    for name, path in (("OPENAI", "/v1"), ("ANTHROPIC", "")):
        config.agent.env |= {f"{name}_BASE_URL": client.base_url + path, f"{name}_API_KEY": client.api_key}
    return config


def _reward(rewards: Mapping[str, float]) -> float:
    """That which is named `reward`, as of a `reward.txt`, or the only one."""
    if "reward" in rewards or len(rewards) == 1:
        return float(rewards.get("reward", next(iter(rewards.values()))))
    raise RuntimeError(f"Harbor's verifier wrote the rewards {', '.join(sorted(rewards))}; call one of them 'reward'")


def main(given: list[str]) -> None:
    """Writes the tasks of a folder, each with what `play` needs."""
    if len(given) == 3:
        os.execv(given[0], [given[0], __file__, *given[1:]])
    if len(given) != 2:
        raise SystemExit(_USAGE)
    yaml = importlib.import_module("yaml")
    tasks, trial = Path(given[0]).resolve(), yaml.safe_load(Path(given[1]).read_text(encoding="utf-8")) or {}
    for name in ("task", "trials_dir"):
        if name in trial:
            raise SystemExit(f"{given[1]}: leave {name} out; each task and each trajectory has its own")
    config = _harbor("models.trial.config").TrialConfig
    if unknown := trial.keys() - config.model_fields.keys():  # Harbor passes over them
        raise SystemExit(f"{given[1]}: a trial has no {', '.join(sorted(unknown))}")
    found = sorted(path.parent for path in [*tasks.glob("task.toml"), *tasks.glob("*/task.toml")])
    if not found:
        raise SystemExit(f"{given[0]} is no task of Harbor's and holds none: no task.toml in it or in its folders")
    for folder in found:
        one = {**trial, "task": {"path": str(folder)}}
        try:
            config.model_validate(one)
        except ValueError as error:
            raise SystemExit(f"{given[1]}: {error}") from None
        row = {"prompt": (folder / "instruction.md").read_text(encoding="utf-8"), "trial": one}
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == Path(__file__).stem and importlib.util.find_spec("harbor") is None:
    # A file of its own, loaded by `host.py`: nothing shall start. Its import takes seconds and waits for a task.
    raise ImportError(f"{sys.executable} has no Harbor: give environment.options.python one that has harbor 0.26")
