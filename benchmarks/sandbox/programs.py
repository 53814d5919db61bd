"""Trivial programs in the sandbox: how many a second, and what one costs."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ThreadPoolExecutor

from squelch.envs.sandbox import Limits, Pool, Question
from squelch.envs.sandbox.backends import Backend

PATIENT = Limits(wall_s=30, total_s=60)
CALLERS = (1, 2, 3)
TRIVIAL = "print(int(input()) + 1)"
TESTS = 20
WARM_UP = 10


def programs_per_second(pool: Pool, count: int, callers: int, tests: int = 1) -> float:
    """Programs per second, each in its own interpreter, with `callers` threads that submit them."""
    questions = [Question("41")] * tests
    start = time.perf_counter()
    with ThreadPoolExecutor(callers) as threads:
        runs = list(threads.map(lambda _: pool.run(TRIVIAL, questions, PATIENT), range(count)))
    seconds = time.perf_counter() - start
    wrong = sum(run.output != b"42\n" for tested in runs for run in tested)
    if wrong:
        raise RuntimeError(f"{wrong} of {count * tests} trivial tests went wrong")
    return count / seconds


def warm_pool(backend: Backend) -> Pool:
    """A pool that has run some programs."""
    pool = Pool(backend, warm=4)
    programs_per_second(pool, WARM_UP, 2)
    return pool


def cpu_s() -> float:
    """CPU seconds of this process and of its descendants that have ended and were reaped: all sandboxes of a closed
    pool."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(backend: Backend, count: int) -> dict[str, float]:
    """Programs per second by callers, CPU milliseconds of a program with all processes, and tests per second."""
    cpu, pool = cpu_s(), warm_pool(backend)
    metrics = {f"programs_per_second_{callers}": programs_per_second(pool, count, callers) for callers in CALLERS}
    pool.close()
    metrics["cpu_ms_per_program"] = (cpu_s() - cpu) / (count * len(CALLERS) + WARM_UP) * 1000
    pool = warm_pool(backend)
    metrics["tests_per_second"] = TESTS * programs_per_second(pool, max(4, count // 10), 2, tests=TESTS)
    pool.close()
    return metrics
