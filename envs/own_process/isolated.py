"""The base of wrappers whose environment runs in a process of its own.

    class Game(Environment): ...                        # imports and calls the foreign package

    class GameInItsProcess(OwnProcess):
        Options = GameOptions                           # the options of `Game`, and those of `ProcessOptions`
        inside = "package.module:Game"

The parent never imports the foreign package. A call that raises, hangs, ends the process, or answers with something of
the wrong type fails its own trajectory, with the reason; `envs.own_process.process` says what happens to the others.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any, ClassVar

from pydantic import Field

from envs.contract import Environment
from envs.own_process.process import CallError, ProcessLost, Session, Target, TimedOut, shared_process
from envs.settings import Settings
from envs.splits import Split

GIB = 2**30
_CONSTRUCTED = itertools.count()


class ProcessOptions(Settings):
    """The process in which the environments run."""

    timeout_s: float = Field(8.0, gt=0)
    """Most seconds for one call of the foreign environment; then its process is ended, and the trajectory fails. Keep
    it below `environment_actor.step_timeout_s`."""
    memory_gib: float = Field(8.0, ge=0.25)
    """Address space of the process in GiB; an environment that wants more gets a MemoryError."""
    processes: int = Field(1, ge=1)
    """Processes over which an environment actor spreads its environments. More than one helps with slow environments
    and more than one of `environment_actor.step_threads`."""


class OwnProcess(Environment):
    """An environment whose calls are made in another process."""

    Options: ClassVar[type[ProcessOptions]] = ProcessOptions
    options: ProcessOptions
    inside: ClassVar[str]
    """`package.module:Class` of the environment that the process makes with the same options."""
    needs: ClassVar[tuple[str, str] | None] = None
    """(the module that must be there, the extra of `squelch-rl` that installs it)."""
    max_action_length: ClassVar[int] = 20_000

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        self._check_installed()
        settings = self.options
        number = next(_CONSTRUCTED) % settings.processes
        target = Target(self.inside, settings.timeout_s, int(settings.memory_gib * GIB), number)
        self._session = Session(shared_process(target), split, self._inner_options())
        try:
            self._rules = self._session.rules()
            self.stochastic, self.replayable, self.shared_noise = self._session.noise
        except CallError as error:
            text = error.text if error.kind == "ValueError" else str(error)
            raise ValueError(text) from error
        except (ProcessLost, TimedOut) as error:
            raise ValueError(f"environment {type(self).__name__} cannot be made: {error}") from error

    def rules(self) -> str:
        """The environment's own rules."""
        return self._rules

    def read_action(self, text: str) -> str | None:
        """The text without white space around it; None if it is empty or too long."""
        said = text.strip() if len(text) <= 2 * self.max_action_length else ""
        return said if 0 < len(said) <= self.max_action_length else None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """As `Environment.reset`."""
        observation, key, kind = self._session.reset(seed, options["noise_seed"])
        return observation, {"task_key": key, "task_kind": kind}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `Environment.step`."""
        observation, reward, terminated, truncated, success = self._session.step(action)
        return observation, reward, terminated, truncated, {"success": success}

    def _inner_options(self) -> dict[str, Any]:
        """The options without those of the process, as plain data."""
        return self.options.model_dump(mode="json", exclude=set(ProcessOptions.model_fields))

    def _check_installed(self) -> None:
        if self.needs is not None and importlib.util.find_spec(self.needs[0]) is None:
            module, extra = self.needs
            raise ValueError(
                f"environment {type(self).__name__} needs the package {module}, which is not installed; run "
                f"pip install 'squelch-rl[{extra}]'"
            )
