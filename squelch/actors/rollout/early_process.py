"""The process of an engine, begun before vLLM is imported here, so that both processes import it at the same time.

vLLM begins its engine's process only after its own import, and that process then imports the same modules: on two
cores the second import is most of what a run waits for. `EarlyProcess` begins at once, imports the modules, and waits
for the function that vLLM would have begun it with.

| waits | for | unblocked by |
|---|---|---|
| the engine's process | its function | vLLM's start of the process; without it `close`, or the end of this process |

The process gets the variables of vLLM's start before the function runs. Those that are read when a process begins must
not have changed since; if they have, `serving` lets vLLM begin a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from squelch.actors.process.imports import importing
from squelch.kit.base.replaced import replaced

PRELOADED = "LD_PRELOAD"
"""The variable that the loader reads when a process begins, and that vLLM sets for an engine on CPU."""


class EarlyProcess(SpawnProcess):
    """A process that imports `modules` and then runs the function that it is given. `start` begins it when it is called
    first; called again, by vLLM, it hands the function over."""

    def __init__(self, modules: Sequence[str], preloaded: str) -> None:
        theirs, self._ours = multiprocessing.Pipe(duplex=False)
        super().__init__(target=_wait, args=(theirs, modules), name="EngineCore")
        self.preloaded = preloaded
        self._theirs: Connection | None = theirs
        self._given: tuple[Callable[..., None], Mapping[str, Any]] | None = None

    def start(self) -> None:
        """Begins the process, or hands over what `give` was called with."""
        if self._theirs is not None:
            with _variable(PRELOADED, self.preloaded):
                super().start()
            self._theirs.close()
            self._theirs = None
        else:
            assert self._given is not None, "vLLM starts the process that it has made"
            # The pipe holds little, and the process reads it only after its imports.
            work = (dict(os.environ), *self._given)
            threading.Thread(target=self._send, args=(work,), name="engine-start", daemon=True).start()

    def give(self, target: Callable[..., None], kwargs: Mapping[str, Any]) -> None:
        """The function that the next `start` hands over."""
        self._given = target, kwargs

    def close(self) -> None:
        """Ends the process if no function was given to it."""
        if self._given is None and self.is_alive():
            self.kill()
            self.join()

    def _send(self, work: tuple[Any, ...]) -> None:
        try:
            self._ours.send(work)
        except BrokenPipeError:
            return  # the process has died, as vLLM notices


def _wait(work: Connection, modules: Sequence[str]) -> None:
    """What the process runs."""
    with suppress(ImportError):  # vLLM's titles need the package, which finds its place only before variables change
        importlib.import_module("setproctitle").getproctitle()
    with importing():
        for module in modules:
            importlib.import_module(module)
    try:
        environment, target, kwargs = work.recv()
    except EOFError:
        return
    # The others stay where they are: a title is written beside them, so that it needs the first of them in its place.
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
    target(**kwargs)


def begun(modules: Sequence[str]) -> EarlyProcess:
    """A process that imports the modules from here on."""
    process = EarlyProcess(modules, preloaded())
    process.start()
    return process


@contextmanager
def serving(early: EarlyProcess | None, module: Any) -> Iterator[None]:
    """While vLLM's `module` makes the processes of an engine in this context, the first is the early one, if there is
    one."""
    if early is None:
        yield
        return

    class Context(SpawnContext):
        def Process(self, target: Callable[..., None], kwargs: Mapping[str, Any], **named: Any) -> SpawnProcess:
            if early._given is not None or os.environ.get(PRELOADED, "") != early.preloaded:
                return SpawnProcess(target=target, kwargs=kwargs, **named)
            early.give(target, kwargs)
            return early

    with replaced(module, get_mp_context=Context):
        yield


def inspecting_here(registry: Any) -> AbstractContextManager[None]:
    """While vLLM's module `registry` inspects the class of a model in this context, it does so in this process. Usually
    it begins another, which imports vLLM once more, to leave a GPU untouched; on a CPU nothing needs that."""
    return replaced(registry, _run_in_subprocess=lambda look: look())


def preloaded() -> str:
    """The LD_PRELOAD that vLLM's CPU platform sets: torch's OpenMP and, before it, vLLM's allocator, if they come with
    the packages. Imports neither."""
    found = os.environ.get(PRELOADED, "")
    torch, vllm = _folder("torch"), _folder("vllm")
    if not any(name in found for name in ("libomp", "libgomp", "libiomp")):
        found = _joined(found, _first([torch.parent / "torch.libs", torch / "lib"], ["libgomp*.so*"]))
    if "libtcmalloc" not in found:
        found = _joined(_first([vllm / "libs"], ["libtcmalloc_minimal*.so*", "libtcmalloc.so*"]), found)
    return found


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    return Path(spec.origin).parent


def _first(folders: Sequence[Path], patterns: Sequence[str]) -> str:
    found = [str(path) for folder in folders for pattern in patterns for path in folder.glob(pattern)]
    return found[0] if found else ""


def _joined(first: str, second: str) -> str:
    return ":".join(part for part in (first, second) if part)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Sets a variable for the processes that begin meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
