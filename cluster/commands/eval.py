"""`squelch eval`: measures the success of a run's checkpoint on the fixed validation tasks."""

from __future__ import annotations

import argparse

from cluster.commands.arguments import add_run_dir, run_folder
from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Plays the validation tasks with a run's checkpoint (the best one by default) and prints success with its 95% "
        "interval (Wilson)."
    )
    add_run_dir(parser)
    parser.add_argument("--checkpoint", default="best", help="best, last, initial, or a step number (default: best)")
    parser.add_argument("--tasks", type=int, default=512, help="number of validation tasks (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.5, help="sampling temperature (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Plays the tasks and prints the result."""
    run_dir = run_folder(options.run_dir)
    from cluster.loop.evaluation import evaluate

    return evaluate(run_dir, options.checkpoint, options.tasks, options.temperature, options.json, say)
