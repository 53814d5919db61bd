"""Measures the peak memory of a learner rank, a rollout worker's engine and the scorer, beside what `squelch plan`
estimates for them.

    python -m benchmarks.memory [--quick] [--json]

The model has SmolLM2's shape (134.5 M parameters) and random weights, on CPU; `--quick` takes a tiny shape, whose
metrics are nearly all libraries. Each actor runs in processes of its own. `measured` is the largest resident memory of
its processes together, libraries included (a page that two of them share counts twice); `estimate` is what
`squelch plan` prints. `net` is the measured peak without what the process had before it made the actor's model, and
`net_estimate` is the estimate without its allowance for libraries. Resident memory holds only the pages of the engine's
cache of keys and values that were used.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.common import arguments, output_of, print_metrics
from squelch.actors.process.allocator import ALLOCATOR

GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
"""The C library returns freed memory at once; with a run's own settings it keeps some of it."""
TIMEOUT_S = 900.0
CASES: dict[str, dict[str, Any]] = {
    "learner rank, float32": {"role": "rank"},
    "learner rank, float32, recomputed activations": {"role": "rank", "activation_checkpointing": True},
    "learner rank, bfloat16, recomputed activations": {
        "role": "rank",
        "activation_checkpointing": True,
        "dtype": "bfloat16",
    },
    "scorer, float32": {"role": "scorer"},
    "scorer, bfloat16": {"role": "scorer", "dtype": "bfloat16"},
    "rollout worker, float32": {"role": "engine"},
    "rollout worker, bfloat16": {"role": "engine", "dtype": "bfloat16"},
}
QUICK = ("learner rank, float32", "scorer, float32")
COLUMNS = ("actor", "measured GiB", "estimate GiB", "of estimate", "net GiB", "net estimate", "of net estimate")


def measure(quick: bool, case: dict[str, Any]) -> dict[str, float]:
    """The metrics of one case, GiB, from a new process."""
    command = [sys.executable, "-m", "benchmarks.memory.actor_worker", json.dumps({**case, "quick": quick})]
    said = output_of(command, ALLOCATOR if case["role"] == "engine" else GIVE_BACK, TIMEOUT_S)
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    sys.stderr.write(f"{case}: {found}\n")
    return found


def row(name: str, found: dict[str, float]) -> list[str]:
    """The printed cells of a case."""
    measured, estimate, net, net_estimate = (found[key] for key in ("measured", "estimate", "net", "net_estimate"))
    shares = f"{measured / estimate:.0%}", f"{net / net_estimate:.0%}"
    return [name, f"{measured:.2f}", f"{estimate:.2f}", shares[0], f"{net:.2f}", f"{net_estimate:.2f}", shares[1]]


def main() -> None:
    """Prints the table."""
    options = arguments(__doc__, "a tiny shape, two actors")
    names = QUICK if options.quick else tuple(CASES)
    found = {name: measure(options.quick, CASES[name]) for name in names}
    print_metrics({"gib": found}, options.json, COLUMNS, [row(name, metrics) for name, metrics in found.items()], [])


if __name__ == "__main__":
    main()
