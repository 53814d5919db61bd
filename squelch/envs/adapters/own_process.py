"""Any environment in a process of its own, so that whatever it does costs at most its own trajectory.

    environment.name=OwnProcess
    environment.options='{environment: my_env:MyEnvironment, options: {size: 4}}'

`environment` is a name that `environment.name` takes. `envs.own_process` says what is bounded: every call, and the
import of the class's module, which only the process makes.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from squelch.envs.contract import Environment, refuse_own_format
from squelch.envs.own_process.isolated import OwnProcess, ProcessOptions
from squelch.envs.registry import constructed
from squelch.kit.records.splits import Split


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
    """Until `check`, which sets the environment's own: they may follow from its options."""

    def check(self) -> None:
        """As `OwnProcess.check`; takes over the turns, and the actions of one answer."""
        super().check()
        self.max_turns, self.max_actions_per_turn = self._session.facts[3]


def made(split: Split, environment: str, options: dict[str, Any]) -> Environment:
    """The environment, in its process, which sets the style and checks it as `envs.registry.make` does. Raises
    ValueError for one with a format of its own: derive such a class from `envs.own_process.isolated.OwnProcess`."""
    inside = constructed(environment, split, options)
    refuse_own_format(environment, inside, "OwnProcess")
    return inside
