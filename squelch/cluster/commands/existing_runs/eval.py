"""`squelch eval`: measures the success of checkpoints, or of any model, on the validation tasks of a run or recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from squelch.cluster.commands.arguments import RUNS, in_store, run_folder
from squelch.kit.process.terminal import say


def run(options: argparse.Namespace) -> int:
    """Plays the tasks and prints the result."""
    from squelch.cluster.loop.evaluation import Asked, evaluate

    place, recipe = options.run_dir, _recipe(options.run_dir)
    chosen = options.checkpoint or ["initial" if recipe else "best"]
    numbers = options.tasks, options.temperature, options.samples
    asked = Asked(chosen, *numbers, options.interventions, options.json, options.overrides)
    if recipe and not recipe.endswith((".yaml", ".yml")) and not options.json:
        say(f"{RUNS} holds no run {recipe}: the recipe of that name is played, with {' and '.join(chosen)}")
    if recipe or not in_store(place):
        return evaluate(asked, recipe or run_folder(Path(place)), say)
    from squelch.cluster.runs.in_store.reading import local_copy

    with local_copy(place) as copy:
        copy.fetch(lambda key: key == "config.yaml" or key.endswith("/loop.json"))

        def fetch(folder: str) -> None:
            copy.fetch(lambda key: key.startswith(f"{folder}/"))

        return evaluate(asked, copy.folder, say, fetch)


def _recipe(place: str) -> str:
    """The recipe that is meant; empty if a run is."""
    from squelch.cluster.config import recipe_names

    is_recipe = place.endswith((".yaml", ".yml")) or place in recipe_names()
    return place if is_recipe and not in_store(place) and not Path(place).is_dir() else ""
