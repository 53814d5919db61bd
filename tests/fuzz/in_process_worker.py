"""Reads many inputs of one reader in this process, with a bound on time and memory for each.

    python -m tests.fuzz.in_process_worker TARGET SEED FIRST COUNT PROGRESS

prints one JSON line for each fault and one at the end. `PROGRESS` is a file that always holds the number of the input
under way, so that an input that ends the process is known. An input is a function of target, seed and number.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from squelch.kit.untrusted.decoder_process import one_interpreter
from tests.fuzz.target import Outcome, Target, outcome

HANG_S = 10.0
"""Seconds that an input may take."""
LAST_S = 20.0
"""Seconds after that at which the process ends, if native code never returns."""
MOST_GROWTH = 2**30
"""Bytes by which the process may grow over all of its inputs."""
_CEILING = 3 * 2**30
"""Bytes that the process may take in all, so that a fault does not use up the machine."""


class Hang(BaseException):
    """The input takes longer than `HANG_S`. No reader catches it."""


@dataclass
class Found:
    """What a run over inputs of one target found. `faults`: (number of the input, fault)."""

    target: str
    inputs: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    growth_mib: float = 0.0
    faults: list[tuple[int, str]] = field(default_factory=list)


def content(target: Target, seed: int, number: int) -> bytes:
    """The bytes of an input."""
    return target.make(random.Random(f"{target.name} {seed} {number}"))


def run(
    target: Target, seed: int, numbers: range, started: Callable[[int], None] = lambda _: None, hang_s: float = HANG_S
) -> Found:
    """Reads the inputs of these numbers one after another. `started` is told each number."""
    found, before = Found(target.name), _peak_bytes()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, one_interpreter():
        path = target.path(Path(folder))
        for number in numbers:
            started(number)
            path.write_bytes(content(target, seed, number))
            start = time.perf_counter()
            seen = _bounded(target, path, hang_s)
            found.slowest_s = max(found.slowest_s, time.perf_counter() - start)
            found.inputs += 1
            found.refused += seen.refused
            if seen.fault is not None:
                found.faults.append((number, seen.fault))
            found.growth_mib = (_peak_bytes() - before) / 2**20
            if found.growth_mib > MOST_GROWTH / 2**20:
                found.faults.append((number, f"the process grew by {found.growth_mib:.0f} MiB"))
                before = _peak_bytes()
    return found


def _bounded(target: Target, path: Path, hang_s: float) -> Outcome:
    try:
        with _alarm(hang_s):
            return outcome(lambda: target.read(path), target.named)
    except Hang:
        return Outcome(True, f"a hang: more than {hang_s:g} s")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises Hang after `seconds`; ends the process `LAST_S` later, if native code never returns."""
    before = signal.signal(signal.SIGALRM, _late)
    faulthandler.dump_traceback_later(seconds + LAST_S, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _late(_: int, __: FrameType | None) -> None:
    raise Hang


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(argv: list[str]) -> None:
    """Runs the inputs; see the module's head."""
    from tests.fuzz.readers import TARGETS

    name, seed, first, count, progress = argv[0], int(argv[1]), int(argv[2]), int(argv[3]), argv[4]
    resource.setrlimit(resource.RLIMIT_DATA, (_CEILING, _CEILING))
    target = next(one for one in TARGETS if one.name == name)
    with open(progress, "wb", buffering=0) as file:

        def note(number: int) -> None:
            os.pwrite(file.fileno(), b"%12d" % number, 0)

        found = run(target, seed, range(first, first + count), note)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
