"""The process that holds other people's environments; `envs.own_process.process` starts it as a script.

Descriptor 0 is a stream socket. Both directions carry frames: 4 bytes of length, then JSON. The first frame names the
class to make; every later frame is one call, which is answered before the next is read:

| method | arguments | value |
|---|---|---|
| `make` | split, options, prompt, first_seed | rules, wording, the noise's two facts, the two limits of turns |
| `notes` | | the lines |
| `longest_openings` | | messages and tools of each |
| `group_rewards` | completions, completion_ids | (reward, success) of each, or why it has none |
| `reset` | seed, noise_seed | observation, task_key, task_kind, messages, tools |
| `read_action` | text | action, or null |
| `same_action` | two actions | whether they are the same |
| `step` | action | observation, reward, terminated, truncated, success |

Invariants:

- The class is imported at once, before the first call comes.
- A call runs for at most its `timeout_s`, and the import for `start_s`. A watchdog of the interpreter (a thread that
  needs no lock of Python) then writes the traceback and ends the process, also within C code, and also if the parent is
  gone.
- Descriptors 1 and 2 are a pipe to the parent, so that nothing that is printed reaches the terminal.
- Each environment has its own state of the global generators of `random` and NumPy: it is swapped in before a call and
  out after it, and `reset` seeds it from the task's seed. Environments that use the global generators are therefore
  deterministic, and do not affect each other.
- The process ends when the socket is closed.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import random
import resource
import socket
import sys
from dataclasses import asdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = 4
SEED_BITS = 32


class Generators:
    """The states of the global generators, one for each environment."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Any, Any]] = {}

    def enter(self, name: str) -> None:
        """Swap the state of environment `name` in; a new environment begins with a fixed state."""
        if name not in self._states:
            self.seed(0)
            return
        python, numpy = self._states[name]
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy"].random.set_state(numpy)

    def leave(self, name: str) -> None:
        """Keep the present state for environment `name`."""
        numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self._states[name] = random.getstate(), numpy

    def seed(self, seed: int) -> None:
        """Seed the generators."""
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**SEED_BITS)

    def forget(self, name: str) -> None:
        """Drop the state of an environment."""
        self._states.pop(name, None)


class Environments:
    """The environments of this process, by name."""

    def __init__(self, made_by: "Any") -> None:
        self._made_by = made_by
        self._held: dict[str, Any] = {}
        self._generators = Generators()

    def call(self, name: str, method: str, arguments: "list[Any]") -> "Any":
        """One call, under the environment's own state of the global generators."""
        self._generators.enter(name)
        try:
            return getattr(self, f"_{method}")(name, *arguments)
        finally:
            self._generators.leave(name)

    def forget(self, name: str) -> None:
        """Drop an environment."""
        self._held.pop(name, None)
        self._generators.forget(name)

    def _make(self, name: str, split: str, options: "dict[str, Any]", prompt: str, first_seed: int) -> "list[Any]":
        made = self._held[name] = self._made_by(split=split, **options)
        made.prompt, made.first_seed = prompt, first_seed
        made.check()
        if made.shows_pictures:
            raise ValueError("the environment shows pictures, which one in a process of its own cannot")
        words = None if made.wording is None else asdict(made.wording)
        noise = [bool(made.stochastic), bool(made.shared_noise)]
        return [str(made.rules()), words, noise, [int(made.max_turns), int(made.max_actions_per_turn)]]

    def _notes(self, name: str) -> "list[str]":
        return [str(line) for line in self._held[name].notes()]

    def _longest_openings(self, name: str) -> "list[Any]":
        return self._held[name].longest_openings()

    def _reset(self, name: str, seed: int, noise_seed: int) -> "list[Any]":
        self._generators.seed(seed)
        observation, info = self._held[name].reset(seed=seed, options={"noise_seed": noise_seed})
        return [observation, info["task_key"], info.get("task_kind"), info.get("messages"), info.get("tools")]

    def _group_rewards(self, name: str, completions: "list[str]", completion_ids: "list[list[int]]") -> "list[Any]":
        return self._held[name].group_rewards(completions, completion_ids)

    def _read_action(self, name: str, text: str) -> "str | None":
        action = self._held[name].read_action(text)
        return None if action is None else str(action)

    def _same_action(self, name: str, one: str, other: str) -> bool:
        return bool(self._held[name].same_action(one, other))

    def _step(self, name: str, action: str) -> "list[Any]":
        observation, reward, terminated, truncated, info = self._held[name].step(action)
        return [observation, float(reward), bool(terminated), bool(truncated), bool(info["success"])]


def main() -> None:
    """Serves calls until the socket is closed."""
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    job = receive(channel)
    if job is None:
        return
    sys.path[:] = job["path"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    faulthandler.dump_traceback_later(job["start_s"], exit=True)
    environments: Environments | None = None
    failure = b""
    with contextlib.suppress(ImportError):  # else a class that imports it in a method draws from an unseeded generator
        importlib.import_module("numpy")
    try:
        environments = Environments(found(job["target"]))
    except BaseException as error:  # SystemExit of foreign code included; the answer to every call
        failure = failed(error)
    faulthandler.cancel_dump_traceback_later()
    while (call := receive(channel)) is not None:
        faulthandler.dump_traceback_later(call["timeout_s"], exit=True)
        frame = failure if environments is None else answer_of(environments, call)
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        channel.sendall(len(frame).to_bytes(HEAD, "big") + frame)


def answer_of(environments: Environments, call: "dict[str, Any]") -> bytes:
    """The frame that answers a call."""
    try:
        for name in call["forget"]:
            environments.forget(name)
        value = environments.call(call["environment"], call["method"], call["arguments"])
        return json.dumps({"value": value}).encode()
    except BaseException as error:  # SystemExit of foreign code included; the parent raises it again
        return failed(error)


def failed(error: BaseException) -> bytes:
    """The frame that answers with an error."""
    return json.dumps({"error": type(error).__name__, "text": shown(error)}).encode()


def found(target: str) -> "Any":
    """The object `package.module:name`."""
    module, _, name = target.partition(":")
    return vars(importlib.import_module(module))[name]


def shown(error: BaseException) -> str:
    """The error's text, also if it cannot say it itself."""
    try:
        return str(error)[:2000]
    except Exception:
        return "an error without a text"


def receive(channel: socket.socket) -> "dict[str, Any] | None":
    """The next frame; None if the socket is closed."""
    head = exactly(channel, HEAD)
    body = exactly(channel, int.from_bytes(head, "big")) if head else b""
    return json.loads(body) if body else None


def exactly(channel: socket.socket, count: int) -> bytes:
    """`count` bytes of the socket; empty if it is closed."""
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 16))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
