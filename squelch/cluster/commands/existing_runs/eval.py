"""`squelch eval`: measures the success of a run's checkpoint on the fixed validation tasks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from squelch.cluster.commands.arguments import add_changed, add_run_place, in_store, run_folder
from squelch.kit.commands.arguments import positive
from squelch.kit.process.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Plays the validation tasks with a run's checkpoint (the best one by default) and prints success with its 95% "
        "interval (Wilson)."
    )
    add_run_place(parser)
    add_changed(parser)
    parser.add_argument("--checkpoint", default="best", help="best, last, initial, or a step number (default: best)")
    parser.add_argument(
        "--tasks", type=positive(int), default=512, help="number of validation tasks (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature", type=positive(float), default=0.5, help="sampling temperature (default: %(default)s)"
    )
    parser.add_argument(
        "--interventions",
        action="store_true",
        help="also sample the actions of first turns again after the reasoning of another task: does the agent do "
        "something else (docs/guide/probe.md)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the tasks that were solved")


def run(options: argparse.Namespace) -> int:
    """Plays the tasks and prints the result."""
    if not in_store(options.run_dir):
        return _evaluate(run_folder(Path(options.run_dir)), options, None)
    from squelch.cluster.runs.in_store.reading import local_copy

    with local_copy(options.run_dir) as copy:
        copy.fetch(lambda key: key == "config.yaml" or key.endswith("/loop.json"))
        return _evaluate(copy.folder, options, lambda folder: copy.fetch(lambda key: key.startswith(f"{folder}/")))


def _evaluate(run_dir: Path, options: argparse.Namespace, fetch: Callable[[str], None] | None) -> int:
    from squelch.cluster.loop.evaluation import evaluate

    chosen = options.checkpoint, options.tasks, options.temperature, options.json
    return evaluate(run_dir, *chosen, say, fetch, options.interventions, options.overrides)
