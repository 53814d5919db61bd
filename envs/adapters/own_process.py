"""Any environment in a process of its own, so that whatever it does costs at most its own trajectory.

    environment.name=OwnProcess
    environment.options='{environment: my_env:MyEnvironment, options: {size: 4}}'

`environment` is a name that `environment.name` takes. `envs.own_process` says what is bounded: every call, but not the
import of the class's module, which the parent makes too, to read the class's turns.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from envs.contract import Environment
from envs.own_process.isolated import OwnProcess, ProcessOptions
from envs.registry import constructed, environment_class
from envs.splits import Split


class AnyOptions(ProcessOptions):
    """The environment, and its process."""

    environment: str
    """Name of the environment, as in `environment.name`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of that environment."""


class AnyInItsProcess(OwnProcess):
    """The environment that the options name, in a process of its own."""

    Options = AnyOptions
    options: AnyOptions
    inside = f"{__name__}:made"
    max_turns = 20

    def __init__(self, split: Split = "train", **options: Any) -> None:
        chosen = AnyOptions(**options)
        found = environment_class(chosen.environment)
        self.max_turns, self.max_actions_per_turn = found.max_turns, found.max_actions_per_turn
        super().__init__(split, **options)


def made(split: Split, environment: str, options: dict[str, Any]) -> Environment:
    """The environment, in its process, which sets the style and checks it as `envs.registry.make` does."""
    return constructed(environment, split, options)
