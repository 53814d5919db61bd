"""Measures environments without a model: steps and tasks per second, overlap of the splits, hostile texts.

python -m benchmarks.environments [--env NAME] [--quick] [--json] [--write]

Steps take random words or the demonstrator's actions, with a new task at an episode's end and after 10 steps, on one
core; resets are included. On a busy machine, CPU seconds are more reliable than wall seconds. `--write` only writes one
played episode of each environment into docs/reference/episodes.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, print_targets
from benchmarks.environments.episodes import write_episodes
from benchmarks.environments.own import demonstrator_of, own_environment
from squelch.envs.format import parse
from squelch.envs.registry import environment_names
from squelch.envs.wording import DEFAULT_QUALITY
from squelch.kit.records.splits import Split
from tests.envs.hostile_text import hostile_actions, hostile_texts

FRESH_SEED = 10_000_000  # above every other seed used here, so that no cached task improves a metric
STEPS_PER_EPISODE = 10
SECONDS_PER_FIGURE = 300.0
"""Bound on the seconds of one metric: it uses fewer tasks or texts if they would take longer, and states how many."""
STEP_TARGETS = {"FrozenLake": 20_000, "Countdown": 20_000, "Sokoban": 5_000, "WebShop": 300, "SearchQA": 300}
TASK_TARGETS = {"Sokoban": 200}
STEP_OPTIONS: dict[str, dict[str, Any]] = {"SearchQA": {"num_passages": 100_000}}
"""Options for measuring steps if the target is not for the default options."""
PROGRAM_RUNNERS = ("DeepCoder",)
"""Environments whose steps run programs; `benchmarks.sandbox` measures those."""


class Stopwatch:
    """Sums the wall seconds, and the CPU seconds of this process, of the code inside `with`."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall


def stepping(name: str, count: int) -> dict[str, float]:
    """Steps per second with random words or the demonstrator's actions, without the demonstrator's own time.

    The demonstrator may fill caches that the environment then uses, so a second metric, a lower bound, includes its
    time.
    """
    env, rng, watch = own_environment(name, options=STEP_OPTIONS.get(name)), random.Random(0), Stopwatch()
    demonstrator, seed, played = demonstrator_of(env), FRESH_SEED, 0
    begun, begun_cpu = time.perf_counter(), time.process_time()
    while played < count and time.perf_counter() - begun < SECONDS_PER_FIGURE:
        with watch:
            env.reset(seed=seed, options={"noise_seed": seed})
        seed += 1
        for _ in range(STEPS_PER_EPISODE):
            action = rng.choice(env.actions) if env.actions else demonstrator.demonstrate(rng, DEFAULT_QUALITY)[1][0]
            with watch:
                ended = any(env.step(action)[2:4])
            played += 1
            if ended:
                break
    return {
        "steps_per_second": played / watch.wall,
        "steps_per_cpu_second": played / watch.cpu,
        "steps_per_cpu_second_players_too": played / (time.process_time() - begun_cpu),
        "steps": played,
    }


def draw_keys(name: str, split: Split, count: int) -> tuple[set[str], int, float]:
    """(digests of the distinct tasks drawn, number of tasks drawn, distinct tasks per second)."""
    env = own_environment(name, split)
    start = time.perf_counter()
    keys: set[str] = set()
    drawn = 0
    for seed in range(2 * FRESH_SEED, 2 * FRESH_SEED + count):
        env.reset(seed=seed, options={"noise_seed": 0})
        keys.add(env.task_key())
        drawn += 1
        if time.perf_counter() - start > SECONDS_PER_FIGURE:
            break
    return keys, drawn, len(keys) / (time.perf_counter() - start)


def attack(name: str, count: int) -> dict[str, Any]:
    """Sends hostile texts through the parser, and hostile actions through reading and reward (except programs)."""
    env, rng = own_environment(name), random.Random(0)
    demonstrator = demonstrator_of(env)
    env.reset(seed=0)
    known = list(env.actions) or [demonstrator.demonstrate(rng, DEFAULT_QUALITY)[1][0] for _ in range(100)]
    parsing = spent_on(hostile_texts(rng, count, known), lambda text: parse(text, 2, env.read_action).valid)
    metrics = {f"hostile_texts{key}": value for key, value in parsing.items()}
    if name in PROGRAM_RUNNERS:
        return metrics

    def play(text: str) -> bool:
        env.reset(seed=rng.randrange(100), options={"noise_seed": 0})
        return env.step(text)[4]["action_valid"]

    stepping = spent_on(hostile_actions(rng, count, known), play)
    return metrics | {f"hostile_actions{key}": value for key, value in stepping.items()}


def spent_on(texts: Iterator[str], use: Callable[[str], bool]) -> dict[str, float]:
    """Number of texts used, number of valid texts among them, and the seconds of the slowest text."""
    tried, valid, slowest, begun = 0, 0, 0.0, time.perf_counter()
    for text in texts:
        start = time.perf_counter()
        valid += use(text)
        slowest = max(slowest, time.perf_counter() - start)
        tried += 1
        if start - begun > SECONDS_PER_FIGURE:
            break
    return {"": tried, "_valid": valid, "_slowest_seconds": slowest}


def measure(name: str, tasks: int) -> dict[str, Any]:
    """All metrics of one environment; at most `tasks` tasks are drawn from each split."""
    train, num_train, train_rate = draw_keys(name, "train", tasks)
    validation, num_validation, validation_rate = draw_keys(name, "validation", tasks)
    metrics: dict[str, Any] = {"environment": name}
    if name not in PROGRAM_RUNNERS:
        metrics |= stepping(name, 5 * tasks)
    metrics |= {
        "train_tasks_per_second": train_rate,
        "validation_tasks_per_second": validation_rate,
        "train_tasks_drawn": num_train,
        "validation_tasks_drawn": num_validation,
        "train_tasks_distinct": len(train),
        "validation_tasks_distinct": len(validation),
        "tasks_in_both_splits": len(train & validation),
    }
    return metrics | attack(name, 10 * tasks)


def targets(name: str) -> dict[str, str]:
    """The targets of the metrics, as text."""
    found = {"tasks_in_both_splits": "0"}
    if name in STEP_TARGETS:
        found |= dict.fromkeys(("steps_per_second", "steps_per_cpu_second"), f">= {STEP_TARGETS[name]:,}")
    if name in TASK_TARGETS:
        found["train_tasks_per_second"] = f">= {TASK_TARGETS[name]:,}"
    return found


def main() -> None:
    """Prints the metrics, or writes the episodes."""
    parser = parser_of(__doc__, "500 tasks of each split instead of 10,000")
    parser.add_argument("--env", choices=environment_names(), help="this environment only; default all")
    parser.add_argument("--write", action="store_true", help="only write the episodes into docs/reference/episodes.md")
    arguments = parser.parse_args()
    if arguments.write:
        write_episodes(Path("docs/reference/episodes.md"))
        return
    for name in [arguments.env] if arguments.env else environment_names():
        print_targets(measure(name, 500 if arguments.quick else 10_000), arguments.json, targets(name))


if __name__ == "__main__":
    main()
