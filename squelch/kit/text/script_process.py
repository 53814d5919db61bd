"""Runs a script of this folder in a process of its own, with bounded memory and CPU time and without this process's
environment: a template or a tokenizer is a program of the model folder's author."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

WAIT_S = 300.0
"""Longest wait for the process, which ends itself after its bound of CPU time: a loaded machine makes that long."""
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "TZ")
"""Environment variables of the child process: what the interpreter and a template's date need."""


@dataclass(frozen=True)
class Broken:
    """Why there is no answer."""

    reason: str
    by_chance: bool = False
    """Whether the machine's load decided, so that another trial may have an answer."""


def answer_of(script: str, request: bytes, memory_bytes: int, cpu_s: int) -> bytes | Broken:
    """What the script writes to its standard output, from `request` at its standard input. Its arguments are the
    bounds, which it sets for itself."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    command = [sys.executable, "-I", script, str(memory_bytes), str(cpu_s)]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=WAIT_S, env=kept, cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        return Broken(f"no answer within {WAIT_S:g} s", by_chance=True)
    if done.returncode == 0:
        return done.stdout
    if done.returncode == -signal.SIGXCPU:
        return Broken(f"it takes more than {cpu_s} s")
    reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200] or f"signal {-done.returncode}"
    return Broken(f"its process ended with {reason}", by_chance=done.returncode == -signal.SIGKILL)
