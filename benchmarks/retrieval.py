"""Measures search and shopping without a model: building and querying an index, and steps of SearchQA and WebShop.

python -m benchmarks.retrieval [--quick] [--json] [--passages N]

Worlds and shop are generated. The index for searches is built once and kept in the folder that the variable
SQUELCH_CACHE names, else in the user's cache folder; the index of `built_passages` is built each time, in a temporary
folder. Episodes are played by the demonstrator, which errs, and by the solver; resets and the players' own time are
included, in CPU seconds of one process on one core. Hostile actions have the right form with odd arguments, half-open
brackets, or a megabyte of text.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import parser_of, print_metrics
from benchmarks.environments.own import demonstrator_of, own_environment
from squelch.envs.base import TextEnv
from squelch.envs.registry import make
from squelch.envs.retrieval import open_index
from squelch.envs.search_qa.world import World
from squelch.envs.wording import DEFAULT_QUALITY
from tests.envs.hostile_searches import hostile_searches

PASSAGES, PRODUCTS = 100_000, 10_000
FRESH_SEED = 30_000_000  # above every other seed used here, so that no cached task improves a metric
VERBS = {"SearchQA": ("search", "answer"), "WebShop": ("search", "click")}
TARGET = 300  # steps per second


def play(env: TextEnv, next_action: Callable[[], str], steps: int) -> tuple[float, float]:
    """(steps per CPU second, share of episodes that succeed)."""
    seed, played, episodes, solved = FRESH_SEED, 0, 0, 0
    start = time.process_time()
    while played < steps:
        env.reset(seed=seed, options={"noise_seed": 0})
        seed, episodes = seed + 1, episodes + 1
        for _ in range(env.max_turns):
            played += 1
            _, _, terminated, _, info = env.step(next_action())
            if terminated:
                solved += info["success"]
                break
    return played / (time.process_time() - start), solved / episodes


def slowest_action(env: TextEnv, count: int) -> tuple[float, str]:
    """(seconds of the slowest of `count` hostile actions, that action)."""
    slowest, what = 0.0, ""
    env.reset(seed=0, options={"noise_seed": 0})
    for number, text in enumerate(hostile_searches(random.Random(0), count, VERBS[env.name])):
        start = time.perf_counter()
        terminated = env.step(text)[2]
        took = time.perf_counter() - start
        if took > slowest:
            slowest, what = took, f"{len(text)} characters, {text[:20]!a}"
        if terminated:
            env.reset(seed=number, options={"noise_seed": 0})
    return slowest, what


def measure_environment(name: str, options: dict[str, Any], steps: int, hostile: int) -> dict[str, Any]:
    """All metrics of one environment."""
    env, rng = own_environment(name, "train", options), random.Random(0)
    demonstrator = demonstrator_of(env)
    rate, success = play(env, lambda: demonstrator.demonstrate(rng, DEFAULT_QUALITY)[1][0], steps)
    solver_rate, solver_success = play(env, lambda: (env.solution() or ["search[?]"])[0], steps)
    slowest, what = slowest_action(env, hostile)
    return {
        "environment": name,
        "steps_per_cpu_second": rate,
        "success_demonstrator": success,
        "steps_per_cpu_second_solver": solver_rate,
        "success_solver": solver_success,
        "hostile_actions": hostile,
        "slowest_hostile_action_s": slowest,
        "slowest_hostile_action": what,
    }


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
    parser = parser_of(__doc__, "fewer steps and hostile actions")
    parser.add_argument("--passages", type=int, default=PASSAGES, help=f"passages to search (default {PASSAGES:,})")
    arguments = parser.parse_args()
    steps, hostile = (2_000, 4_000) if arguments.quick else (10_000, 100_000)
    index = measure_index(arguments.passages, 5_000 if arguments.quick else 50_000, steps // 2)
    played = {"SearchQA": {"num_passages": arguments.passages}, "WebShop": {"num_products": PRODUCTS}}
    environments = [measure_environment(name, options, steps, hostile) for name, options in played.items()]
    rows = [[key, *(one[key] for one in environments)] for key in environments[0] if key != "environment"]
    notes = [f"index: {key} {value if isinstance(value, int) else f'{value:,.4g}'}" for key, value in index.items()]
    notes.append(f"target: {TARGET} steps/s on one core, resets included")
    metrics = {"index": index, "environments": environments}
    print_metrics(metrics, arguments.json, ("", *played), rows, notes)


if __name__ == "__main__":
    main()
