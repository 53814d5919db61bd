"""`squelch config`: prints every setting of a recipe, or the list of recipes."""

from __future__ import annotations

import argparse

from cluster.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = "Prints every setting of a recipe, with your overrides applied, as YAML that `train` accepts."
    parser.add_argument("recipe", nargs="?", default="frozenlake")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--list", action="store_true", help="print the names of the shipped recipes")


def run(options: argparse.Namespace) -> int:
    """Prints the recipe, or the names of all recipes."""
    from cluster.config import dump, load, recipe_names

    say("\n".join(recipe_names()) if options.list else dump(load(options.recipe, options.overrides)).rstrip())
    return 0
