"""Measures what the metrics of a run cost: a scrape, a step, and memory over many steps and workers that come and go.

    python -m benchmarks.metrics [--quick] [--json]

The registry is that of a run, every metric has a value, and there are as many rollout workers and environment actors as
a large run has. `scrape_ms` is the median of whole HTTP requests (client and server), `step_ms` that of one step's
export, without and with TensorBoard, and `..._cpu_ms` the CPU time of the same; `growth_kib` is what the process gains
from the first tenth of the steps to the last, in which `changes` workers leave and others come. It needs none of Ray,
vLLM and torch.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.common import arguments, print_metrics
from squelch.cluster.control.membership import MemberState
from squelch.cluster.metrics import REGISTRY
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.loggers import Loggers, open_loggers
from squelch.kit.metrics.settings import RecorderConfig
from squelch.kit.metrics.specification import LabelValues

WORKERS, PLAYERS = 32, 64
CHANGES = 100
STEPS, QUICK_STEPS = 10_000, 1_000
SCRAPES = 30
WEIGHT_KEYS = (
    "seconds_fetched",
    "seconds_copied",
    "seconds_paused",
    "seconds_loaded",
    "seconds_probe",
    "parity",
    "parity_max",
    "version",
)
TARGETS = {"scrape_ms": 50.0, "growth_kib": 1024.0}
"""What must not be exceeded."""


def step_metrics(step: int, workers: list[str], players: list[str]) -> dict[str, float]:
    """Every metric that a step can report, with every worker's and environment actor's."""
    flat = dict.fromkeys(REGISTRY.known_keys, 0.5)
    for name in workers:
        flat |= {f"weights/{name}/{key}": 1.0 for key in WEIGHT_KEYS}
    flat |= {f"up/{name}": 1.0 for name in (*workers, *players)}
    return flat | {"step": float(step)}


def median_ms(call: Callable[[], object], times: int) -> float:
    """The median wall time of a call, ms."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def measure(steps: int) -> dict[str, float]:
    """All metrics of the benchmark."""
    workers, players = [f"rollout-{i}" for i in range(WORKERS)], [f"env-{i}" for i in range(PLAYERS)]
    recorder = Recorder(RecorderConfig(port=0), REGISTRY, {"worker": workers, "actor": [*workers, *players]})
    recorder.start()
    try:
        growth = _growth_kib(recorder, steps, workers, players)
        flat = step_metrics(steps, workers, players)
        names = (*workers, *players)
        states: dict[LabelValues, float | None] = {(name, state.value): 0.0 for name in names for state in MemberState}
        recorder.replace("squelch_actor_state", states)
        text = _scrape(recorder)
        return {
            "series": float(sum(not line.startswith("#") for line in text.splitlines())),
            "scrape_ms": median_ms(lambda: _scrape(recorder), SCRAPES),
            "scrape_cpu_ms": _cpu_ms(lambda: _scrape(recorder)),
            "step_ms": median_ms(lambda: recorder.step(steps, flat), SCRAPES),
            "step_cpu_ms": _cpu_ms(lambda: recorder.step(steps, flat)),
            "step_with_tensorboard_ms": _with_tensorboard_ms(recorder, flat),
            "steps": float(steps),
            "changes": float(CHANGES),
            "growth_kib": growth,
        }
    finally:
        recorder.close()


def _cpu_ms(call: Callable[[], object]) -> float:
    """The mean CPU time of a call in all threads of this process, ms; other processes do not change it much."""
    began = time.process_time()
    for _ in range(SCRAPES):
        call()
    return 1e3 * (time.process_time() - began) / SCRAPES


def _scrape(recorder: Recorder) -> str:
    with urllib.request.urlopen(recorder.url, timeout=10) as reply:
        return reply.read().decode()


def _growth_kib(recorder: Recorder, steps: int, workers: list[str], players: list[str]) -> float:
    """Resident memory gained between a tenth of the steps and the last; at regular steps one worker is replaced."""
    process, every, settled = psutil.Process(), max(1, steps // CHANGES), 0
    for step in range(1, steps + 1):
        if step % every == 0:
            gone = workers.pop(0)
            workers.append(f"rollout-{WORKERS + step}")
            for label in ("worker", "actor"):
                recorder.forget(label, {gone})
        recorder.step(step, step_metrics(step, workers, players))
        if step == steps // 10:
            gc.collect()
            settled = process.memory_info().rss
    gc.collect()
    return (process.memory_info().rss - settled) / 1024


def _with_tensorboard_ms(recorder: Recorder, flat: dict[str, float]) -> float:
    config = RecorderConfig(loggers=("tensorboard",))
    with tempfile.TemporaryDirectory() as folder:
        sinks = Loggers(recorder, open_loggers(config, REGISTRY, Path(folder), "run", {}, -1))
        with sinks:
            return median_ms(lambda: sinks.step(1, flat), SCRAPES)


def main() -> int:
    """Prints the metrics; returns 1 if one exceeds its target."""
    options = arguments(__doc__, f"{QUICK_STEPS} steps instead of {STEPS}")
    found = measure(QUICK_STEPS if options.quick else STEPS)
    reached = all(found[name] <= most for name, most in TARGETS.items())
    rows = [(name, value, TARGETS.get(name, "")) for name, value in found.items()]
    print_metrics(found | {"reached": reached}, options.json, ("metric", "value", "at most"), rows, ())
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
