"""A few hostile programs and a right one, run to show that the sandbox holds on this machine (`squelch doctor`).

Each hostile program prints HARM once it has done its harm. The corpus of the tests (tests/envs/sandbox/hostile) is
larger and also shows that its programs do their harm without the sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass

from squelch.envs.sandbox.limits import Limits
from squelch.envs.sandbox.pool import Pool, Question, Run
from squelch.envs.sandbox.verdicts import Test, judge

LIMITS = Limits(wall_s=5, total_s=20, cpu_s=5)
SHORT = LIMITS.model_copy(update={"wall_s": 0.5})
RIGHT = "print(sum(map(int, input().split())))"
HOSTILE = {
    "reads a file of the host": ("print('HARM', open('/etc/passwd').read())", ""),
    "opens a socket": ("import socket\nsocket.socket()\nprint('HARM')", ""),
    "sees other processes": ("import os\nos.listdir('/proc/self')\nprint('HARM')", ""),
    "changes the mode of a device": ("import os\nos.chmod('/dev/null', 0o666)\nprint('HARM')", ""),
    "changes the times of a device": ("import os\nos.utime('/dev/null')\nprint('HARM')", ""),
    "locks a shared file": ("import fcntl\nfcntl.flock(open('/dev/null'), fcntl.LOCK_EX)\nprint('HARM')", ""),
    "writes to its own image": ("open('/python/harness.pyc', 'ab').write(b'x')\nprint('HARM')", ""),
    "enters a new name space": ("import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('HARM')", ""),
    "takes 600 MiB of memory": ("x = bytearray(600 * 2**20)\nprint('HARM')", ""),
    "starts 30 processes": (
        "import os, time\nfor _ in range(30):\n    if os.fork() == 0: time.sleep(1); os._exit(0)\nprint('HARM')",
        "number of processes",
    ),
    "makes 20,000 files": ("for n in range(20_000): open(f'/tmp/{n}', 'x').close()\nprint('HARM')", "number of files"),
}
"""Program, and words of the bound that stops it where a back end may lack that bound."""
ENDLESS = "import os\nos.fork()\nwhile True: pass"
FORGED = "import os\nos.write(1, b'all tests passed')\nos._exit(0)"


@dataclass(frozen=True)
class Proof:
    """Results of the test programs. `tried`: their number; `broken`: descriptions of the forbidden actions that
    succeeded."""

    tried: int
    broken: tuple[str, ...]


def prove(pool: Pool) -> Proof:
    """Runs the programs; takes about two seconds. Raises RuntimeError if no interpreter can be had."""
    tried = {name: program for name, (program, bound) in HOSTILE.items() if not _lacks(pool, bound)}
    broken = [name for name, program in tried.items() if b"HARM" in _run(pool, program, LIMITS).output]
    if _run(pool, ENDLESS, SHORT).outcome != "late":
        broken.append("an endless program did not end at its limit")
    sums = [Test(Question("20 22\n"), ("42",)), Test(Question("1 2\n"), ("3",))]
    if any(verdict.passed for verdict in judge(pool, FORGED, sums, LIMITS)):
        broken.append("a program that solves nothing passes")
    right = judge(pool, RIGHT, sums, LIMITS)
    if not all(verdict.passed for verdict in right):
        broken.append(f"a right program fails: {right[0].reason} {right[0].detail}".strip())
    return Proof(len(tried) + 2, tuple(broken))


def _lacks(pool: Pool, bound: str) -> bool:
    """Whether the back end says that it lacks the bound that would stop a program."""
    return bool(bound) and any(bound in missing for missing in pool.missing)


def _run(pool: Pool, program: str, limits: Limits) -> Run:
    return pool.run(program, [Question()], limits)[0]
