"""Measures the sandbox: programs per second by number of callers, cost of a program and a test, lateness.

    python -m benchmarks.sandbox [--quick] [--json]

Lateness is the time from a program's limit until its caller has the answer and all of its processes and files are gone:
of every program of the hostile corpus (tests/envs/sandbox/hostile) that reaches its limit, floods of files included.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.common import arguments, print_metrics
from benchmarks.sandbox import lateness, programs
from squelch.envs.sandbox import Pool
from squelch.envs.sandbox.backends import STRONGEST_FIRST, Backend, choose, probe_all


def back_ends() -> list[Backend]:
    """The chosen back end, and the others that work."""
    chosen = choose(allow_unsafe=False)
    found = [probe_all((maker,)).backend for maker in STRONGEST_FIRST]
    return [chosen, *(backend for backend in found if backend is not None and backend.name != chosen.name)]


def measure(backend: Backend, quick: bool) -> dict[str, Any]:
    """All metrics of one back end."""
    metrics = programs.measure(backend, 40 if quick else 300)
    pool = Pool(backend, warm=4)
    try:
        late = lateness.measure(pool, 1 if quick else 3)
    finally:
        pool.close()
    return {"backend": backend.name, "not_to_be_had": list(pool.missing), **metrics, "lateness": late}


def show(metrics: list[dict[str, Any]], as_json: bool) -> None:
    """Prints the metrics of the back ends."""
    names = [f"programs_per_second_{callers}" for callers in programs.CALLERS]
    names += ["cpu_ms_per_program", "tests_per_second"]
    rows = [[metric["backend"], *(metric[name] for name in names)] for metric in metrics]
    notes = [late_note(metric["backend"], metric["lateness"]) for metric in metrics]
    notes.append("Programs a second fall with the load of the machine; CPU a program does not.")
    notes.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    columns = ["back end", *(f"programs/s, {callers} callers" for callers in programs.CALLERS)]
    print_metrics({"backends": metrics}, as_json, [*columns, "CPU ms a program", "tests/s, 20 each"], rows, notes)


def late_note(name: str, late: dict[str, Any]) -> str:
    """The lateness of one back end in words."""
    return (
        f"{name}: {late['runs']} runs of {late['programs']} programs ended {late['median_s'] * 1000:.0f} ms (median) "
        f"and at most {late['largest_s'] * 1000:.0f} ms after their limit; floods of files "
        f"{late['floods_median_s'] * 1000:.0f} and {late['floods_largest_s'] * 1000:.0f} ms"
    )


def main() -> None:
    """Prints the metrics of each back end that works."""
    options = arguments(__doc__, "40 programs instead of 300")
    show([measure(backend, options.quick) for backend in back_ends()], options.json)


if __name__ == "__main__":
    main()
