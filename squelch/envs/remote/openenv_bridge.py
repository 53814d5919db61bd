"""Serves an environment of OpenEnv (github.com/meta-pytorch/OpenEnv) to Squelch, from a virtual environment of its own.

OpenEnv's packages cannot be installed beside Squelch's. In a virtual environment that has `openenv` (whose packages
include Starlette and uvicorn) and no Squelch, run this file from Squelch's checkout, or with `server.py` beside it:

    python -m venv openenv && openenv/bin/pip install openenv
    PYTHONPATH=SQUELCH openenv/bin/python -m squelch.envs.remote.openenv_bridge \\
        docs.examples.openenv_words:ReversedWord docs.examples.openenv_words:Say --field text \\
        --rules "Say the word backwards . The action is the word ." --port 8802
    squelch train http model.path=MODEL environment.options.url=http://127.0.0.1:8802

The two names are OpenEnv's `Environment` class and its `Action` class. A policy's text becomes the action's field
`--field`; without it, the text must be the action as a JSON object. A text that is no action changes nothing and pays
0. The policy reads the observation's fields, or the one that `--observation` names. `reset` gets the seed of the task;
the client keeps training and validation apart by the first observation. A token for other hosts is read from the
variable SQUELCH_ENVIRONMENT_TOKEN.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from squelch.envs.remote.server import TOKEN_VARIABLE, Description, EnvironmentServer

HIDDEN = {"done", "reward", "metadata"}
"""Fields of an observation that are no part of what the policy reads."""


@dataclass(frozen=True)
class Bridged:
    """How an environment of OpenEnv is played as text."""

    environment: Any
    """The class of the environment, or a function that makes one."""
    action: Any
    """The class of its actions."""
    field: str | None = None
    """The field of an action that holds the policy's text; None: the text is JSON."""
    observation: str | None = None
    """The field of an observation that the policy reads; None: all of them, by name."""
    success_reward: float = 1.0
    """Least last reward of a solved episode."""


class OpenEnvSession:
    """One environment of OpenEnv, as `envs.remote.server.Served`."""

    def __init__(self, bridged: Bridged) -> None:
        self._how, self._environment = bridged, bridged.environment()

    def reset(self, split: str, seed: int, noise_seed: int) -> tuple[str, str | None, str | None]:
        """Starts the episode of `seed`; OpenEnv knows one seed, so the noise follows from it, too."""
        return self._shown(self._environment.reset(seed=seed % 2**31)), None, None

    def step(self, action: str) -> tuple[str, float, bool, bool, bool]:
        """Plays the action that the text means."""
        try:
            given = {self._how.field: action} if self._how.field is not None else json.loads(action)
            made = self._how.action(**given)
        except (TypeError, ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
            return f"This is not an action : {' '.join(str(error).split())[:200]}", 0.0, False, False, False
        found = self._environment.step(made)
        reward, done = float(found.reward or 0.0), bool(found.done)
        return self._shown(found), reward, done, False, done and reward >= self._how.success_reward

    def close(self) -> None:
        """Frees what the environment holds, if it can."""
        if hasattr(self._environment, "close"):
            self._environment.close()

    def _shown(self, observation: Any) -> str:
        fields = observation.model_dump(mode="json")
        if self._how.observation is not None:
            return str(fields[self._how.observation])
        return "\n".join(f"{name}: {value}" for name, value in fields.items() if name not in HIDDEN)


def bridge(bridged: Bridged, rules: str, max_turns: int, token: str | None = None) -> EnvironmentServer:
    """The server of the environment."""
    one = bridged.environment()
    about = one.get_metadata()
    described = Description(str(about.name), str(about.version), rules, max_turns=max_turns)
    return EnvironmentServer(described, lambda: OpenEnvSession(bridged), token)


def found(path: str) -> Any:
    """The object `package.module:name`. Raises ValueError if there is none."""
    module, _, name = path.partition(":")
    try:
        return vars(importlib.import_module(module))[name]
    except (ImportError, KeyError, ValueError) as error:
        raise ValueError(f"{path!r} is not of the form package.module:Class, or cannot be imported: {error}") from error


def main() -> int:
    """Serves until it is stopped; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m squelch.envs.remote.openenv_bridge")
    parser.add_argument("environment", help="package.module:Class of the environment")
    parser.add_argument("action", help="package.module:Class of its actions")
    parser.add_argument("--field", help="the action's field that holds the policy's text; by default the text is JSON")
    parser.add_argument("--observation", help="the observation's field that the policy reads; by default all")
    parser.add_argument("--success-reward", type=float, default=1.0, help="least last reward of a solved episode")
    parser.add_argument("--rules", required=True, help="the task and its actions, for the system message")
    parser.add_argument("--max-turns", type=int, default=10)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8802)
    given = parser.parse_args()
    try:
        classes = found(given.environment), found(given.action)
        bridged = Bridged(*classes, given.field, given.observation, given.success_reward)
        token = os.environ.get(TOKEN_VARIABLE) or None
        bridge(bridged, given.rules, given.max_turns, token).serve(given.host, given.port)
    except ValueError as error:
        sys.stderr.write(f"openenv_bridge: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
