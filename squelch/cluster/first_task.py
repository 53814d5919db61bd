"""Makes the run's environment and starts its first training task, in the driver and before any actor starts. The length
of its first prompt is measured, and an environment that cannot play is refused at once.

An environment may be anybody's code, which may raise any error or hang. So both calls run in a daemon thread of their
own, for at most `cluster.start_timeout_s`, and every error becomes a ValueError that says what to do.

    waits for                    unblocked by    on time-out
    the environment's own code   its thread      ValueError; the thread is abandoned and does not keep the process alive
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from squelch.cluster.daemon_thread import OwnThread
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment, Opening
from squelch.envs.data.files import NotCachedError, cached_only
from squelch.envs.episode import Episode, Message
from squelch.envs.registry import make

T = TypeVar("T")


@dataclass(frozen=True)
class FirstTask:
    """The environment after training task 0 was started in it. `messages`: the first prompt; `kind`: of the task, None
    if the environment declares none."""

    environment: Environment
    messages: list[Message]
    kind: str | None
    tools: list[dict[str, Any]] | None = None
    """JSON schemas that the first prompt shows."""

    def openings(self, longest: bool) -> list[Opening]:
        """The first prompt; with `longest`, the longest ones of any task if the environment knows them. Raises
        ValueError if it does not answer."""
        known = self.environment.longest_openings() if longest else []
        return known or [Opening(self.messages, self.tools)]


def made(chosen: EnvironmentConfig, timeout_s: float) -> Environment:
    """A new environment for training tasks. ValueError if it cannot be made in time."""
    return _bounded(lambda: _new(chosen), timeout_s, "cannot be made")


@dataclass
class MadeOfCache:
    """As `made`, without a download. `lacking`: ids of the data sets that are not in the local cache of the hub."""

    lacking: set[str] = field(default_factory=set)

    def __call__(self, chosen: EnvironmentConfig, timeout_s: float) -> Environment | None:
        """A new environment for training tasks; None without its data. ValueError if it cannot be made in time."""

        def new() -> Environment:
            with cached_only():  # in the thread that reads the data
                return _new(chosen)

        try:
            return _bounded(new, timeout_s, "cannot be made")
        except NotCachedError as error:
            self.lacking.add(error.dataset)
            return None


def first_task(chosen: EnvironmentConfig, timeout_s: float) -> FirstTask:
    """Training task 0, started. ValueError if it cannot be started in time."""

    def start() -> FirstTask:
        environment = _new(chosen)
        episode = Episode(environment, 0, 0, chosen.format)
        messages = episode.start()
        return FirstTask(environment, messages, episode.task_kind, episode.tools)

    return _bounded(start, timeout_s, "cannot start its first task")


def notes_on_slow_calls(environment: Environment, name: str, step_timeout_s: float) -> list[str]:
    """A warning if the environment's own settings let a call take longer than an actor waits for it."""
    longest_s, settings = environment.longest_call()
    if longest_s < step_timeout_s:
        return []
    return [
        f"WARNING: a call of {name} may take {longest_s:g} s (environment.options: {settings}), but "
        f"environment_actor.step_timeout_s={step_timeout_s:g} gives it up before that, and its trajectory is lost as "
        "step_timeout; raise that, or lower these"
    ]


def _new(chosen: EnvironmentConfig) -> Environment:
    return make(chosen.name, "train", chosen.options, chosen.prompt)


def _bounded(call: Callable[[], T], timeout_s: float, what: str) -> T:
    """The call's result. Its ValueErrors are raised as they are, because their texts say what to set."""
    future = OwnThread().submit(call)
    try:
        return future.result(timeout_s)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        late = isinstance(error, TimeoutError) and not future.done()
        why = f"no answer within cluster.start_timeout_s={timeout_s:g}" if late else f"{type(error).__name__}: {error}"
        raise ValueError(f"the environment {what}: {why}") from error
