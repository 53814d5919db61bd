"""The Ray actor around any class: its process alone imports the class's module, with torch, transformers or vLLM, so
that the driver, which creates the actors, starts about ten seconds sooner on a slow core.

    shell = asynchronous("RolloutWorker", "squelch.actors.rollout.worker:RolloutWorker", {"ready": 1, "submit": 1})
    handle = shell.options(num_cpus=1).remote(name, model, config)  # the arguments of the class
    await handle.ready.remote()

| call | waits for | on time-out |
|---|---|---|
| any, of a class with functions | the call before it | the caller's bound |
| any, of a class with coroutines | nothing: calls run at the same time, in one event loop | the caller's bound |
| `progress` | nothing: it is answered in the middle of another call | the caller's bound |
| `beside`, of a class with functions | the same before it, in a thread beside all other calls | the caller's bound |
| `live` | nothing: it never returns, and fails when the process ends | |

The class has a method `progress`, a function. The actor has the name that Ray's dashboard and `ps` show, and one method
for each function of the class that is called from outside.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

from squelch.actors.process.imports import importing
from squelch.kit.process.progress_marks import WATCHING, Progress


def _made(target: str, arguments: tuple[Any, ...]) -> Any:
    """An object of the class MODULE:CLASS."""
    module, _, name = target.partition(":")
    with importing():
        held = importlib.import_module(module)
    return getattr(held, name)(*arguments)


class _Threads:
    """Runs one function at a time, and answers `live` and `progress` in threads of their own."""

    target: str

    def __init__(self, *arguments: Any) -> None:
        self.held = _made(self.target, arguments)

    @ray.method(concurrency_group="watch")
    def live(self) -> None:
        """Never returns."""
        threading.Event().wait()

    @ray.method(concurrency_group="watch")
    def progress(self) -> Progress:
        """The progress so far."""
        return self.held.progress()

    @ray.method(concurrency_group="beside")
    def beside(self, method: str, *arguments: Any) -> Any:
        """The result of a function of the class, which may run beside the others."""
        return getattr(self.held, method)(*arguments)


class _Coroutines:
    """Runs the class's coroutines in one event loop."""

    target: str

    def __init__(self, *arguments: Any) -> None:
        self.held = _made(self.target, arguments)

    async def live(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()

    async def progress(self) -> Progress:
        """The progress so far."""
        return self.held.progress()


def threaded(name: str, target: str, methods: Mapping[str, int]) -> Any:
    """The Ray actor class around a class with functions. `methods`: number of results of each, by its name."""

    def function(method: str) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            return getattr(self.held, method)(*arguments)

        return call

    return ray.remote(concurrency_groups=WATCHING | {"beside": 1})(_shell(_Threads, name, target, methods, function))


def asynchronous(name: str, target: str, methods: Mapping[str, int]) -> Any:
    """The Ray actor class around a class with coroutines; as `threaded`. Its option `max_concurrency` must exceed the
    number of its callers."""

    def coroutine(method: str) -> Any:
        async def call(self: Any, *arguments: Any) -> Any:
            return await getattr(self.held, method)(*arguments)

        return call

    return ray.remote(_shell(_Coroutines, name, target, methods, coroutine))


def _shell(base: type, name: str, target: str, methods: Mapping[str, int], forward: Callable[[str], Any]) -> type:
    calls = {method: ray.method(num_returns=returns)(forward(method)) for method, returns in methods.items()}
    return type(name, (base,), {"target": target, **calls})
