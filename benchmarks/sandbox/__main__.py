"""Measures the sandbox: programs per second by number of callers, cost of a program and a test, lateness.

    python -m benchmarks.sandbox [--other DIR] [--blocks N] [--quick] [--json]

Lateness is the time from a program's limit until its caller has the answer and all of its processes and files are gone:
of every program of the hostile corpus (tests/envs/sandbox/hostile) that reaches its limit, floods of files included.
With `--other DIR` the benchmark instead compares this checkout with another one in alternating blocks, each in its own
process with the back end that its checkout chooses. It prints the geometric mean of the ratios of the time and of the
CPU time of a program (this checkout / other) with 95% t-intervals over the pairs of blocks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.common import parser_of, print_figures
from benchmarks.sandbox import block_worker, lateness
from squelch.envs.sandbox import Pool
from squelch.envs.sandbox.backends import STRONGEST_FIRST, Backend, choose, probe_all

COSTS = {f"s a program, {callers} callers": f"programs_per_second_{callers}" for callers in block_worker.CALLERS}
COSTS |= {"s a test": "tests_per_second"}


def back_ends() -> list[Backend]:
    """The chosen back end, and the others that work."""
    chosen = choose(allow_unsafe=False)
    found = [probe_all((maker,)).backend for maker in STRONGEST_FIRST]
    return [chosen, *(backend for backend in found if backend is not None and backend.name != chosen.name)]


def measure(backend: Backend, quick: bool) -> dict[str, Any]:
    """All figures of one back end."""
    figures = block_worker.measure(backend, 40 if quick else 300)
    pool = Pool(backend, warm=4)
    try:
        late = lateness.measure(pool, 1 if quick else 3)
    finally:
        pool.close()
    return {"backend": backend.name, "not_to_be_had": list(pool.missing), **figures, "lateness": late}


def show(figures: list[dict[str, Any]], as_json: bool) -> None:
    """Prints the figures of the back ends."""
    names = [f"programs_per_second_{callers}" for callers in block_worker.CALLERS]
    names += ["cpu_ms_per_program", "tests_per_second"]
    rows = [[figure["backend"], *(figure[name] for name in names)] for figure in figures]
    notes = [note for figure in figures for note in late_notes(figure["backend"], figure["lateness"])]
    notes.append("Programs a second fall with the load of the machine; CPU a program does not.")
    notes.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    columns = ["back end", *(f"programs/s, {callers} callers" for callers in block_worker.CALLERS)]
    print_figures({"backends": figures}, as_json, [*columns, "CPU ms a program", "tests/s, 20 each"], rows, notes)


def late_notes(name: str, late: dict[str, Any]) -> list[str]:
    """The lateness of one back end in words."""
    slowest = ", ".join(f"{one['name']} {one['seconds'] * 1000:.0f} ms" for one in late["slowest"])
    return [
        f"{name}: {late['runs']} runs of {late['programs']} programs ended {late['median_s'] * 1000:.0f} ms (median) "
        f"and at most {late['largest_s'] * 1000:.0f} ms after their limit; floods of files "
        f"{late['floods_median_s'] * 1000:.0f} and {late['floods_largest_s'] * 1000:.0f} ms",
        f"{name}: the slowest were {slowest}",
    ]


def compare(other: Path, blocks: int, count: int) -> dict[str, Any]:
    """Runs the blocks in turn; returns the ratios of the costs."""
    command = [sys.executable, "-P", block_worker.__file__, str(count)]
    pairs = paired.alternating(other, blocks, lambda at, _: json.loads(paired.run_in(at, command, 600.0)))
    parts = {cost: paired.ratio([(1 / a[rate], 1 / b[rate]) for a, b in pairs]) for cost, rate in COSTS.items()}
    parts["CPU ms a program"] = paired.ratio([(a["cpu_ms_per_program"], b["cpu_ms_per_program"]) for a, b in pairs])
    return {"parts": parts, "blocks": blocks, "back_ends": [side["backend"] for side in pairs[0]]}


def show_ratios(found: dict[str, Any], as_json: bool) -> None:
    """Prints the ratios."""
    notes = [f"{found['blocks']} blocks a side; back ends: {found['back_ends'][0]} here, {found['back_ends'][1]} there"]
    print_figures(found, as_json, ("cost", *paired.COLUMNS), paired.rows(found["parts"]), notes)


def main() -> None:
    """Prints the figures of each back end that works, or the ratios to another checkout."""
    parser = parser_of(__doc__, "40 programs instead of 300, and two blocks")
    parser.add_argument("--other", type=Path, help="another checkout to compare with")
    parser.add_argument("--blocks", type=int, default=8, help="blocks a side, with --other")
    options = parser.parse_args()
    if options.other is None:
        show([measure(backend, options.quick) for backend in back_ends()], options.json)
        return
    blocks, count = (2, 40) if options.quick else (options.blocks, 150)
    show_ratios(compare(options.other.resolve(), blocks, count), options.json)


if __name__ == "__main__":
    main()
