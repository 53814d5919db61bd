"""Runs inside the sandbox: takes one program, then one test after another, and hands back what the program put out.

It is read into a bare interpreter (no site-packages, no other module of ours). Invariants:

- It holds the program and the inputs of the tests seen so far, never an expected output, so nothing that a program does
  to it can turn a wrong answer into a right one. Whoever reads its replies treats them as the program's own words.
- The program runs in a fork, one for each test, which has neither the channel (closed) nor a way to reach it (no /proc,
  ptrace and its like refused by the kernel). Between two tests every other process of the namespace is killed.

Channel: descriptor 0, a stream socket. To us: 4 bytes of length, then `marshal`. From us: one byte when ready, then for
each test three numbers (wait status, bytes of output, bytes of error, bytes of value or 0xffffffff for none) and these
bytes. Who waits: we, for the next test, without bound; our parent kills us, and so does its death.
"""

from __future__ import annotations

import atexit
import builtins
import marshal
import os
import resource
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
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
    """The next message, or None at the end of the channel."""
    head = read_exactly(4)
    return marshal.loads(read_exactly(int.from_bytes(head, "big"))) if head else None


def read_exactly(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(CHANNEL, min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(CHANNEL, view) :]


def main() -> None:
    send(b"R")
    job = receive()
    if job is None:
        return
    words = set((job["prelude"] + job["program"]).replace(",", " ").replace(".", " ").split())
    for name in IMPORTED_EARLY:  # once, not once a test; the standard library only, before any line of the program ran
        if name in words:
            __import__(name)
    while (test := receive()) is not None:
        send(run(job, test))


def run(job: dict[str, Any], test: dict[str, Any]) -> bytes:
    """One test in a fork of its own; the reply to it."""
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
    """A file without a name that holds `content`, read from its start."""
    file = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def read_back(file: int, limit: int, from_end: bool = False) -> bytes:
    """At most `limit` bytes of what the program wrote, from the start or up to the end."""
    size = os.fstat(file).st_size
    start = max(0, size - limit) if from_end else 0
    return os.pread(file, min(limit, size - start), start)


def end_the_rest(pid: int) -> None:
    """Kill what the program left running: all of the namespace where it is ours, else the program's session."""
    try:
        if os.getpid() == 1:  # of our own process namespace: everything in it is the program's
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
    """In the fork: become the program. Never returns."""
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
    return open(number, mode, encoding="utf-8", errors="replace", closefd=False)


def restrict(limits: dict[str, int]) -> None:
    """Limits that hold for the program and whatever it starts; it cannot raise them again."""
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
    bound_to(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)  # a signal first, then the end
    bound_to(resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES)


def bound_to(kind: int, soft: int, hard: int) -> None:
    """Set a limit, or leave a tighter one that this process was born with."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def execute(job: dict[str, Any], test: dict[str, Any]) -> int:
    """Run the program and, where the test is a call, the call; returns the exit code."""
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
    """The function of that name, or the method of `Solution` as LeetCode has it."""
    if function in names:
        return names[function]
    if "Solution" in names:
        return getattr(names["Solution"](), function)
    raise NameError(f"the program defines no function {function}")


def finish(code: int) -> int:
    """What an interpreter does at its end, as far as a program can tell."""
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
    """`value` as JSON, its parts of exactly the plain types; tuples become lists. TypeError for anything else."""
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
