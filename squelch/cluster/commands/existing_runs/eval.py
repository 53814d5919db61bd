"""`squelch eval`: measures the success of checkpoints, or of any model, on the validation tasks of a run or recipe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.commands.arguments import add_changed, in_store, named, run_folder
from squelch.kit.commands.arguments import positive
from squelch.kit.process.terminal import say

if TYPE_CHECKING:
    from squelch.cluster.loop.evaluation import Asked

PLACE = (
    "the run's name or folder, e.g. runs/frozenlake, or its place in a store, e.g. s3://bucket/prefix/frozenlake; or a "
    "recipe, whose tasks are played"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Plays the validation tasks with a run's checkpoint (the best one by default) and prints success with its 95% "
        "interval (Wilson). With several checkpoints or models all play the same tasks, and a table has the paired "
        "gain of each over the first."
    )
    parser.add_argument("run_dir", type=named, metavar="RUN", help=PLACE)
    add_changed(parser)
    parser.add_argument(
        "--checkpoint",
        action="append",
        metavar="C",
        help="best, last, initial, or a step number of the run; or a model: the folder of a checkpoint or model, "
        "OWNER/NAME of the hub, smollm2. Several, for several (default: best; of a recipe initial)",
    )
    parser.add_argument(
        "--tasks", type=positive(int), default=512, help="number of validation tasks (default: %(default)s)"
    )
    parser.add_argument(
        "--samples",
        type=positive(int),
        default=1,
        metavar="N",
        help="trajectories of each task; above 1 also prints pass@k (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature", type=positive(float), default=0.5, help="sampling temperature (default: %(default)s)"
    )
    parser.add_argument(
        "--interventions",
        action="store_true",
        help="also sample the actions of first turns again after the reasoning of another task: does the agent do "
        "something else (docs/guide/reasoning.md)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the tasks that were solved")


def run(options: argparse.Namespace) -> int:
    """Plays the tasks and prints the result."""
    from squelch.cluster.loop.evaluation import evaluate

    place, recipe = options.run_dir, _recipe(options.run_dir)
    if recipe:
        from squelch.cluster.config import load

        config = load(recipe, options.overrides)
        return evaluate(_asked(options, "initial"), Path(config.runs_dir) / f"{config.name}-eval", recipe, say)
    if not in_store(place):
        return evaluate(_asked(options, "best"), run_folder(Path(place)), "", say)
    from squelch.cluster.runs.in_store.reading import local_copy

    with local_copy(place) as copy:
        copy.fetch(lambda key: key == "config.yaml" or key.endswith("/loop.json"))

        def fetch(folder: str) -> None:
            copy.fetch(lambda key: key.startswith(f"{folder}/"))

        return evaluate(_asked(options, "best"), copy.folder, "", say, fetch)


def _recipe(place: str) -> str:
    """The recipe that is meant; empty if a run is."""
    from squelch.cluster.config import recipe_names

    is_recipe = place.endswith((".yaml", ".yml")) or place in recipe_names()
    return place if is_recipe and not in_store(place) and not Path(place).is_dir() else ""


def _asked(options: argparse.Namespace, checkpoint: str) -> Asked:
    from squelch.cluster.loop.evaluation import Asked

    chosen = options.checkpoint or [checkpoint]
    numbers = options.tasks, options.temperature, options.samples
    return Asked(chosen, *numbers, options.interventions, options.json, options.overrides)
