"""Serves one of Squelch's environments, or your own class, over HTTP (`envs.remote.server`).

    python -m squelch.envs.remote FrozenLake --options '{"slip_rate": 0.1}' --port 8801

Beyond loopback a token is needed: put it into the variable SQUELCH_ENVIRONMENT_TOKEN on both ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, get_args

from squelch.envs.contract import Environment, refuse_own_format
from squelch.envs.registry import make
from squelch.envs.remote.server import TOKEN_VARIABLE, Description, EnvironmentServer, Observation
from squelch.envs.wording import PromptName
from squelch.kit.records.picture_files import json_of
from squelch.kit.records.splits import SPLITS, Split
from squelch.kit.untrusted.text import parse_object


class ServedEnvironment:
    """An environment of Squelch as the server plays it: one for each split, made when needed."""

    def __init__(self, name: str, options: dict[str, Any], prompt: PromptName = "tiny") -> None:
        self._name, self._options, self._prompt = name, options, prompt
        self._made: dict[Split, Environment] = {}
        self._playing: Environment | None = None

    def reset(self, split: str, seed: int, noise_seed: int) -> tuple[Observation, str | None, str | None]:
        """As `envs.remote.server.Served.reset`."""
        (wanted,) = [one for one in SPLITS if one == split]
        if wanted not in self._made:
            self._made[wanted] = make(self._name, wanted, self._options, self._prompt)
        self._playing = self._made[wanted]
        observation, info = self._playing.reset(seed=seed, options={"noise_seed": noise_seed})
        return json_of(observation), info["task_key"], info.get("task_kind")

    def step(self, action: str) -> tuple[Observation, float, bool, bool, bool]:
        """As `envs.remote.server.Served.step`; a text that is no action changes nothing and pays 0."""
        if self._playing is None:
            raise RuntimeError("step() was called before reset()")
        read = self._playing.read_action(action)
        if read is None:
            return "This is not an action .", 0.0, False, False, False
        observation, reward, terminated, truncated, info = self._playing.step(read)
        return json_of(observation), reward, terminated, truncated, info["success"]

    def close(self) -> None:
        """Drops the environments."""
        self._made.clear()


def server_of(
    name: str, options: dict[str, Any], token: str | None = None, timeout_s: float = 10.0, prompt: PromptName = "tiny"
) -> EnvironmentServer:
    """The server of one environment in one style. Raises ValueError for an unknown name or option, and for options that
    the style cannot express."""
    environment = make(name, "train", options, prompt)
    refuse_own_format(name, environment, "the HTTP contract")
    described = Description(
        name=name,
        version=f"{name} {prompt} {sorted(options.items())}",
        rules=environment.rules(),
        stochastic=environment.stochastic,
        shared_noise=environment.shared_noise,
        task_key=True,
        splits=True,
        pictures=environment.shows_pictures,
        max_turns=environment.max_turns,
        max_actions_per_turn=environment.max_actions_per_turn,
    )
    return EnvironmentServer(described, lambda: ServedEnvironment(name, options, prompt), token, timeout_s)


def main() -> int:
    """Serves until it is stopped; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m squelch.envs.remote", description=__doc__.splitlines()[0])
    parser.add_argument("environment", help="its name, or package.module:Class")
    parser.add_argument("--options", default="{}", help="its options as a JSON object")
    parser.add_argument("--prompt", choices=get_args(PromptName), default="tiny", help="style of its messages")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8801)
    parser.add_argument("--timeout-s", type=float, default=10.0, help="most seconds for one call of the environment")
    given = parser.parse_args()
    try:
        options = parse_object(given.options.encode(), "--options")
        token = os.environ.get(TOKEN_VARIABLE) or None
        server = server_of(given.environment, options, token, given.timeout_s, given.prompt)
        server.serve(given.host, given.port)
    except ValueError as error:
        sys.stderr.write(f"squelch.envs.remote: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
