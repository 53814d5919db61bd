"""Decodes files in an interpreter of its own, with its own environment and its own bound of memory.

Arrow chooses its allocator when it is imported. Its usual one reserves a gigabyte at once, which a bound of memory
counts as used, so a small file is refused or ends the process. In a process that has imported Arrow, or whose
environment names an allocator, Arrow therefore decodes nothing within a bound. The interpreter that is started here
imports Arrow with the allocator of the C library, and the environment of this process stays as it is.

    this process                                        interpreter
    one line: where, module:function, arguments  ──▶    calls the function, a generator, within the bound
    items, as they come                          ◀──    one line for each item, then the end, or what is at fault

Invariants:

- Arguments and items are JSON, and bytes; other values of a table (times, decimals) arrive as text.
- An interpreter answers one request at a time. It is kept for the next request only within `one_interpreter`.
- It ends with its request or its block, and at the end of its input, so that it never outlives this process for long.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, ParamSpec, TypeVar

from squelch.kit.untrusted.files import MIB, Unreadable, decoding
from squelch.kit.untrusted.memory import MOST_BYTES, memory_of_at_most

P = ParamSpec("P")
T = TypeVar("T")

_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from squelch.kit.untrusted.decoder_process import serve; serve()"
)
_ITEM, _END, _FAULT = b"+", b".", b"!"
"""First byte of a line of the answer."""
_BYTES = "\0bytes"
_ODD = "holds values that no reader expects"
_NO_MEMORY = (b"bad_alloc", b"MemoryError")


class _Interpreter:
    """One started interpreter."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **_VARIABLES},
        )
        self.is_idle = True
        self._send(sys.path)

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the missing answer says
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()

    def answers(self, where: str, function: str, arguments: Any) -> Iterator[Any]:
        """The items of one call. Raises Unreadable as `apart`."""
        self.is_idle = False
        self._send([where, function, arguments])
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, text = line[:1], line[1:]
            self.is_idle = kind in (_END, _FAULT)
            if kind == _END:
                return
            if kind == _FAULT:
                raise Unreadable(json.loads(text))
            with decoding(where, _ODD):
                item = json.loads(text, object_hook=_with_bytes if b"\\u0000bytes" in text else None)
            yield item
        raise self._lost(where)

    def _lost(self, where: str) -> Exception:
        """The error of an interpreter that ended without a whole answer: Unreadable, or a fault of the function."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read(MIB)
        if any(words in said for words in _NO_MEMORY):  # a thread of Arrow's ends the process where it gets no memory
            return Unreadable(f"{where}: reading takes more than {MOST_BYTES // MIB} MiB of memory; give less data")
        if code < 0:
            return Unreadable(f"{where}: the process that reads it was ended by {signal.Signals(-code).name}")
        return RuntimeError(f"{where}: the process that reads it ended:\n{said.decode(errors='replace')}")

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        with self._said, self._process:  # the latter closes the pipes and waits
            pass


_kept: list[_Interpreter] | None = None
"""Interpreters for the next request; None outside `one_interpreter`."""


@contextmanager
def bounded_reading(where: str) -> Iterator[None]:
    """Within the block a command reads the file or folder `where`: as `memory_of_at_most`, and with one interpreter for
    all that `apart` decodes."""
    with one_interpreter(), memory_of_at_most(where):
        yield


@contextmanager
def one_interpreter() -> Iterator[None]:
    """Within the outermost such block an interpreter answers request after request; it ends with the block."""
    global _kept
    outer, _kept = _kept, [] if _kept is None else _kept
    try:
        yield
    finally:
        kept, _kept = _kept, outer
        if outer is None:
            for one in kept:
                one.end()


def apart(where: str, function: Callable[P, Iterator[T]], *arguments: P.args, **_: P.kwargs) -> Iterator[T]:
    """The items that the function, a generator of a module, yields in an interpreter of its own, in which it may take
    `memory.MOST_BYTES`.

    Raises Unreadable, which names `where`: the function raised it, or needs more memory, or ended its process.
    """
    one = _kept.pop() if _kept else _Interpreter()
    try:
        yield from one.answers(where, f"{function.__module__}:{function.__qualname__}", arguments)
    finally:
        if one.is_idle and _kept is not None:
            _kept.append(one)
        else:
            one.end()


def serve() -> None:
    """In the interpreter: answers requests until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches this process too, and the other one speaks of it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets into the answer
    for line in sys.stdin.buffer:
        where, function, arguments = json.loads(line)
        module, _, name = function.partition(":")
        call = getattr(importlib.import_module(module), name)
        try:
            with memory_of_at_most(where):
                for item in call(*arguments):
                    with decoding(where, _ODD):
                        text = json.dumps(item, default=_plain)
                    _write(answers, _ITEM, text)
        except Unreadable as error:
            _write(answers, _FAULT, json.dumps(str(error)))
        else:
            _write(answers, _END)


def _write(answers: BinaryIO, kind: bytes, text: str = "") -> None:
    answers.write(kind)
    answers.write(text.encode())
    answers.write(b"\n")
    answers.flush()


def _plain(value: Any) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def _with_bytes(found: dict[str, Any]) -> Any:
    text = found.get(_BYTES)
    return base64.b64decode(text) if isinstance(text, str) and len(found) == 1 else found
