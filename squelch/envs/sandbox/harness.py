"""Runs inside the sandbox: receives one program, runs its tests one after another, and returns the program's output.

The harness is loaded into a bare interpreter (no site-packages, no other module of Squelch). Invariants:

- It has the program and the inputs of the tests so far, but never an expected output, so nothing that a program does to
  it can turn a wrong answer into a right one. Its replies are treated as output of the program.
- Each test runs the program in a new fork. The fork cannot access the channel: it is closed there, there is no /proc,
  and the kernel refuses ptrace and similar calls. Between two tests every other process of the namespace is killed.

Channel: descriptor 0, a stream socket. To the harness: 4 bytes of length, then `marshal`. From the harness: one byte
when it is ready, then for each test four numbers (wait status, bytes of output, bytes of error, bytes of value or
0xffffffff for none) and these bytes. The harness waits for the next test without a time-out; its parent kills it, and
it ends if its parent dies.
"""

from __future__ import annotations

import atexit
import builtins
import marshal
import os
import resource
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False  # importing `typing` takes longer than all other imports together
if TYPE_CHECKING:
    from typing import Any, NoReturn

CHANNEL = 0
VALUE = 3  # the descriptor of the file for a call's value
NOTHING = 0xFFFFFFFF
STACK_BYTES = 64 * 2**20
IMPORTED_EARLY = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading", "typing",
)  # fmt: skip


def receive() -> dict[str, Any] | None:
    """The next message; None if the channel is closed."""
    head = read_exactly(4)
    return marshal.loads(read_exactly(int.from_bytes(head, "big"))) if head else None


def read_exactly(count: int) -> bytes:
    """`count` bytes of the channel; empty if it is closed."""
    parts = []
    while count:
        part = os.read(CHANNEL, min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def send(data: bytes) -> None:
    """Writes all of `data` to the channel."""
    view = memoryview(data)
    while view:
        view = view[os.write(CHANNEL, view) :]


def main() -> None:
    """Receives the program, then runs tests until the channel is closed."""
    send(b"R")
    job = receive()
    if job is None:
        return
    words = set((job["prelude"] + job["program"]).replace(",", " ").replace(".", " ").split())
    for name in IMPORTED_EARLY:  # once rather than per test; only standard modules, before any line of the program runs
        if name in words:
            __import__(name)
    while (test := receive()) is not None:
        send(run(job, test))


def run(job: dict[str, Any], test: dict[str, Any]) -> bytes:
    """Runs one test in a fork of its own; returns the reply."""
    files = [scratch_file(test["stdin"]), scratch_file(b""), scratch_file(b""), scratch_file(b"")]
    pid = os.fork()
    if pid == 0:
        try:
            play(job, test, files)
        finally:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    end_the_rest(pid)
    limits = job["limits"]
    output = read_back(files[1], limits["output_bytes"] + 1)
    error = read_back(files[2], limits["error_bytes"], from_end=True)
    value = read_back(files[3], limits["output_bytes"] + 1)
    for file in files:
        os.close(file)
    sizes = (status, len(output), len(error), len(value) if value else NOTHING)
    return b"".join([*(size.to_bytes(4, "big") for size in sizes), output, error, value])


def scratch_file(content: bytes) -> int:
    """A file without a name that contains `content`, positioned at its start."""
    file = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def read_back(file: int, limit: int, from_end: bool = False) -> bytes:
    """At most `limit` bytes that the program wrote to `file`: the first bytes, or with `from_end` the last."""
    size = os.fstat(file).st_size
    start = max(0, size - limit) if from_end else 0
    return os.pread(file, min(limit, size - start), start)


def end_the_rest(pid: int) -> None:
    """Kill all processes that the program left: the whole namespace if the harness owns it, else the program's
    session."""
    try:
        if os.getpid() == 1:  # first process of its own namespace, where all others belong to the program
            os.kill(-1, 9)
        else:
            os.killpg(pid, 9)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def play(job: dict[str, Any], test: dict[str, Any], files: list[int]) -> NoReturn:
    """Runs the program in the fork. Never returns."""
    os.setsid()
    sys.stdin.close()
    for number, file in enumerate([os.dup(file) for file in files]):
        os.dup2(file, number)
    os.closerange(VALUE + 1, 256)
    sys.stdin = sys.__stdin__ = stream(0, "r")
    sys.stdout = sys.__stdout__ = stream(1, "w")
    sys.stderr = sys.__stderr__ = stream(2, "w")
    restrict(job["limits"])
    os._exit(finish(execute(job, test)))


def stream(number: int, mode: str) -> Any:
    """A text stream on a descriptor."""
    return open(number, mode, encoding="utf-8", errors="replace", closefd=False)


def restrict(limits: dict[str, int]) -> None:
    """Sets limits for the program and all processes that it starts; the program cannot raise them."""
    bounds = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if limits["num_tasks"]:
        bounds[resource.RLIMIT_NPROC] = limits["num_tasks"]
    for kind, bound in bounds.items():
        bound_to(kind, bound, bound)
    bound_to(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)  # SIGXCPU at the first, SIGKILL at the second
    bound_to(resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES)


def bound_to(kind: int, soft: int, hard: int) -> None:
    """Set a limit, or keep a tighter limit that this process has inherited."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def execute(job: dict[str, Any], test: dict[str, Any]) -> int:
    """Run the program and, if the test is a call, the call; returns the exit code."""
    module = type(sys)("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # what `site` gives to programs
    try:
        exec(job["prelude"], module.__dict__)
        exec(compile(job["program"], "program.py", "exec"), module.__dict__)
        if job["function"]:
            value = encode(find(module.__dict__, job["function"])(*test["arguments"]))
            with open(VALUE, "w", closefd=False) as file:
                file.write(value)
    except SystemExit as stop:
        return stop.code if type(stop.code) is int else int(stop.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def find(names: dict[str, Any], function: str) -> Any:
    """The function of that name, or the method of a class `Solution`, as LeetCode defines it."""
    if function in names:
        return names[function]
    if "Solution" in names:
        return getattr(names["Solution"](), function)
    raise NameError(f"the program defines no function {function}")


def finish(code: int) -> int:
    """Does at exit what an interpreter does, as far as the program can observe it; returns the exit code."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return code or 1
    return code & 0xFF


def encode(value: Any) -> str:
    """`value` as JSON. Its parts must have exactly the plain types; tuples become lists. Raises TypeError otherwise."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return repr(value)
    if kind is float:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is list or kind is tuple:
        return "[" + ",".join([encode(part) for part in value]) + "]"
    if kind is dict and all(type(key) in (str, int) for key in value):
        pairs = [encode_basestring_ascii(str(key)) + ":" + encode(part) for key, part in value.items()]
        return "{" + ",".join(pairs) + "}"
    raise TypeError(f"the call returned a {kind.__name__}, which is not plain data")


if __name__ == "__main__":
    main()
