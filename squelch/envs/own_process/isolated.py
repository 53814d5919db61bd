"""The base of wrappers whose environment runs in a process of its own.

    class Game(Environment): ...                        # imports and calls the foreign package

    class GameInItsProcess(OwnProcess):
        Options = GameOptions                           # the options of `Game`, and those of `ProcessOptions`
        inside = "package.module:Game"

The parent imports only the wrapper's module, so keep imports of the foreign package out of it. A call that raises,
hangs, ends the process, or answers with something of the wrong type fails its own trajectory, with the reason;
`envs.own_process.process` says what happens to the others.

- What a policy's text means is the environment's own decision, wherever it runs: `read_action` is a call like `step`,
  under the same `timeout_s`. The player parses in a step thread, so the call holds up nothing else. No text makes it
  raise; a process that does not answer does, and costs the trajectory as in `step`.
- The environment is made when it is first used, by `check()` if `envs.registry.make` makes it: by then `prompt` and
  `first_seed` are known, with which it is made. Its own `check()` is called at once.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field, TypeAdapter

from squelch.envs.contract import Environment, Opening
from squelch.envs.own_process.process import CallError, ProcessLost, Session, Target, TimedOut, shared_process
from squelch.envs.wording import Wording
from squelch.kit.base.settings import Settings
from squelch.kit.records.splits import Split

GIB = 2**30
_CONSTRUCTED = itertools.count()
_WORDING: TypeAdapter[Wording | None] = TypeAdapter(Wording | None)


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

    def __init__(self, split: Split = "train", **options: Any) -> None:
        super().__init__(split, **options)
        self._check_installed()

    @cached_property
    def _session(self) -> Session:
        """The environment inside, made. Raises ValueError if it cannot be made."""
        settings = self.options
        number = next(_CONSTRUCTED) % settings.processes
        target = Target(self.inside, settings.timeout_s, int(settings.memory_gib * GIB), number)
        inner = settings.model_dump(mode="json", exclude=set(ProcessOptions.model_fields))
        session = Session(shared_process(target), self.split, inner, self.prompt, self.first_seed)
        with self._refused("cannot be made"):
            session.make()
        return session

    def check(self) -> None:
        """Makes the environment inside. Raises ValueError if it cannot be made, or says so in its own `check`."""
        _ = self._session

    def notes(self) -> list[str]:
        """The environment's own. Raises ValueError if it does, or if its process does not answer."""
        with self._refused("cannot be asked for its notes"):
            return self._session.ask("notes")

    def longest_openings(self) -> list[Opening]:
        """The environment's own. Raises ValueError if its process does not answer."""
        with self._refused("cannot be asked for its longest prompts"):
            return [Opening(*one) for one in self._session.ask("longest_openings")]

    def longest_call(self) -> tuple[float, str]:
        """After which the process is ended."""
        return self.options.timeout_s, "timeout_s"

    @property
    def stochastic(self) -> bool:
        """The environment's own."""
        return self._session.facts[2][0]

    @property
    def shared_noise(self) -> bool:
        """The environment's own."""
        return self._session.facts[2][1]

    @property
    def wording(self) -> Wording | None:
        """The environment's own."""
        return _WORDING.validate_python(self._session.facts[1])

    def rules(self) -> str:
        """The environment's own rules."""
        return self._session.facts[0]

    def read_action(self, text: str) -> str | None:
        """As the environment itself reads the text. Raises as `step` if its process does not answer."""
        return self._session.ask("read_action", text)

    def same_action(self, one: str, other: str) -> bool:
        """As the environment itself judges. Raises as `step` if its process does not answer."""
        return self._session.ask("same_action", one, other)

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """As `Environment.reset`."""
        observation, key, kind, messages, tools = self._session.reset(seed, options["noise_seed"])
        opening = {} if messages is None else {"messages": messages, "tools": tools}
        return observation, {"task_key": key, "task_kind": kind, **opening}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `Environment.step`."""
        observation, reward, terminated, truncated, success = self._session.step(action)
        return observation, reward, terminated, truncated, {"success": success}

    @contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        """Raises ValueError where the environment inside raises an error, or its process does not answer."""
        try:
            yield
        except CallError as error:
            text = error.text if error.kind == "ValueError" else str(error)
            raise ValueError(text) from error
        except (ProcessLost, TimedOut) as error:
            raise ValueError(f"environment {type(self).__name__} {what}: {error}") from error

    def _check_installed(self) -> None:
        if self.needs is not None and importlib.util.find_spec(self.needs[0]) is None:
            module, extra = self.needs
            raise ValueError(
                f"environment {type(self).__name__} needs the package {module}, which is not installed; run "
                f"pip install 'squelch-rl[{extra}]'"
            )
