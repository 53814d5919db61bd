"""`squelch eval`: measures the success of a run's checkpoint on the fixed validation tasks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from squelch.cluster.commands.arguments import in_store, run_folder
from squelch.kit.process.terminal import say


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
