"""Measures the sandbox: programs per second by number of callers, cost of a program and a test, end of endless loops.

python -m benchmarks.sandbox [--quick] [--json]
"""

from __future__ import annotations

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.common import arguments, print_figures
from envs.sandbox import Limits, Pool, Question
from envs.sandbox.backends import STRONGEST_FIRST, Backend, choose, probe_all

PATIENT = Limits(wall_s=30, total_s=60)
CALLERS = (1, 2, 3)
TRIVIAL = "print(int(input()) + 1)"
ENDLESS = {
    "one loop": "while True: pass",
    "one loop, signals ignored": "import signal\nfor n in range(1, 64):\n  try: signal.signal(n, signal.SIG_IGN)\n"
    "  except (OSError, ValueError): pass\nwhile True: pass",
    "eight processes": "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
    "sleep": "import time\ntime.sleep(999)",
}


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


def lateness(pool: Pool, program: str, limit_s: float, count: int) -> tuple[float, float]:
    """(mean, largest) seconds from the limit until the caller has its answer and all processes are dead."""
    limits = Limits(wall_s=limit_s, total_s=60)
    late = []
    for _ in range(count):
        start = time.perf_counter()
        outcome = pool.run(program, [Question()], limits)[0].outcome
        late.append(time.perf_counter() - start - limit_s)
        if outcome != "late":
            raise RuntimeError(f"a program without end was {outcome}")
    return sum(late) / count, max(late)


def cpu_s() -> float:
    """CPU seconds of this process and of all sandboxes that have ended, which are its reaped descendants."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(backend: Backend, quick: bool) -> dict[str, Any]:
    """All figures of one back end."""
    count, pool = (40 if quick else 300), Pool(backend, warm=4)
    programs_per_second(pool, 10, 2)
    cpu, own = cpu_s(), time.process_time()
    rates = {f"{callers}_callers": programs_per_second(pool, count, callers) for callers in CALLERS}
    figures: dict[str, Any] = {
        "backend": backend.name,
        "not_to_be_had": list(pool.missing),
        "programs_per_second": rates,
        "cpu_ms_per_program": (cpu_s() - cpu) / (count * len(CALLERS)) * 1000,
        "of_it_outside_the_sandbox": (time.process_time() - own) / (count * len(CALLERS)) * 1000,
        "tests_per_second_20_a_program": 20 * programs_per_second(pool, max(4, count // 10), 2, tests=20),
        "late_seconds_mean_and_largest": {
            name: lateness(pool, program, 0.3, 3 if quick else 10) for name, program in ENDLESS.items()
        },
    }
    pool.close()
    return figures


def main() -> None:
    """Prints the figures of each back end that works."""
    options = arguments(__doc__, "40 programs instead of 300; a quarter of a minute")
    chosen = choose(allow_unsafe=False)
    backends = [chosen]
    for maker in STRONGEST_FIRST:
        found = probe_all((maker,)).backend
        if found is not None and found.name != chosen.name:
            backends.append(found)
    figures = [measure(backend, options.quick) for backend in backends]
    rows = []
    for figure in figures:
        rates = [figure["programs_per_second"][f"{callers}_callers"] for callers in CALLERS]
        costs = [figure["cpu_ms_per_program"], figure["tests_per_second_20_a_program"]]
        rows.append([figure["backend"], *rates, *costs])
    notes = [
        f"{figure['backend']}: {name} ends {mean * 1000:.0f} ms after its limit (largest {largest * 1000:.0f} ms)"
        for figure in figures
        for name, (mean, largest) in figure["late_seconds_mean_and_largest"].items()
    ]
    notes.append("Programs a second fall with the load of the machine; CPU a program does not.")
    notes.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    columns = ["back end", *(f"programs/s, {n} callers" for n in CALLERS), "CPU ms a program", "tests/s, 20 a program"]
    print_figures({"backends": figures}, options.json, columns, rows, notes)


if __name__ == "__main__":
    main()
