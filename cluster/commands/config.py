"""`squelch config`: prints every setting of a recipe, explains some, or prints the list of recipes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squelch.cluster.errors import UserError
from squelch.cluster.terminal import say

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig
    from squelch.cluster.settings import Setting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = "Prints every setting of a recipe, with your overrides applied, as YAML that `train` accepts."
    parser.add_argument("recipe", nargs="?", default="frozenlake")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--list", action="store_true", help="print the names of the shipped recipes")
    parser.add_argument(
        "--explain",
        nargs="+",
        metavar="WORD",
        help="print the settings whose key contains one of these words, e.g. rho or learner.lora, with their values in "
        "the recipe, what they may be, and what they mean",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the recipe, some of its settings, or the names of all recipes."""
    from squelch.cluster.config import dump, load, recipe_names

    if options.list:
        say("\n".join(recipe_names()))
        return 0
    config = load(options.recipe, options.overrides)
    say("\n\n".join(explained(config, options.explain)) if options.explain else dump(config).rstrip())
    return 0


def explained(config: RunConfig, words: list[str]) -> list[str]:
    """A paragraph for each setting whose key contains one of the words. UserError if a word matches no key."""
    from squelch.cluster.config import flat
    from squelch.cluster.settings import every_setting

    settings, values = every_setting(config.environment.name), flat(config.model_dump(mode="json"))
    for word in words:
        if not any(word in one.key for one in settings):
            raise UserError(f"--explain {word}: no setting has this in its key; `squelch config` prints every key")
    return [
        f"{one.key} = {_value(one, values)}\n    {one.values}; default {one.default}\n    {one.meaning}"
        for one in settings
        if any(word in one.key for word in words)
    ]


def _value(one: Setting, values: Mapping[str, Any]) -> str:
    """A setting's value; the default where an option is not given, and a word where its block is off."""
    off = next((block for block, value in values.items() if value is None and one.key.startswith(f"{block}.")), None)
    if off is not None:
        return f"off, because {off} is unset; {one.default} if another of its keys is set"
    return json.dumps(values[one.key]) if one.key in values else one.default
