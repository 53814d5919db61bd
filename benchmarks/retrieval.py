"""Measures building and querying an index of passages; `benchmarks.environments` has steps of SearchQA and WebShop.

python -m benchmarks.retrieval [--quick] [--json] [--passages N]

The world is generated. The index for searches is built once and kept in the folder that the variable SQUELCH_CACHE
names, else in the user's cache folder; the index of `built_passages` is built each time, in a temporary folder. Times
are CPU seconds of one process on one core.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from typing import Any

from benchmarks.common import parser_of, print_metrics
from squelch.envs.registry import make
from squelch.envs.retrieval import open_index
from squelch.envs.search_qa.world import World

PASSAGES = 100_000


def measure_index(passages: int, built: int, queries: int) -> dict[str, Any]:
    """Times building an index of `built` passages, and searching for names in an index of `passages`."""
    world, rng = World(0, passages), random.Random(0)
    start = time.process_time()
    make("SearchQA", "train", {"num_passages": passages})
    open_s = time.process_time() - start
    index = open_index("world", world.identity, world.passages)
    names = [world.name(world.entity(rng.randrange(passages))) for _ in range(queries)]
    start = time.process_time()
    found = sum(index.retrieve(name, 2)[0].title == name for name in names)
    took = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        open_index("benchmark", str(built), World(1, built).passages, folder)
        build_s = time.process_time() - start
    return {
        "passages": passages,
        "open_or_build_cpu_s": open_s,
        "queries_per_cpu_second": queries / took,
        "named_passage_found_first": found / queries,
        "peak_memory_mib": memory,
        "built_passages": built,
        "build_cpu_s": build_s,
    }


def main() -> None:
    """Prints the metrics."""
    parser = parser_of(__doc__, "fewer passages and queries")
    parser.add_argument("--passages", type=int, default=PASSAGES, help=f"passages to search (default {PASSAGES:,})")
    arguments = parser.parse_args()
    built, queries = (5_000, 1_000) if arguments.quick else (50_000, 5_000)
    index = measure_index(arguments.passages, built, queries)
    print_metrics({"index": index}, arguments.json, ("metric", "value"), list(index.items()), ())


if __name__ == "__main__":
    main()
