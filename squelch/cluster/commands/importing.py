"""`squelch import`: makes a recipe of another trainer's configuration, and says what became of each of its keys."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from squelch.kit.base.disk import write_whole
from squelch.kit.base.dotted import nested


def run(options: argparse.Namespace) -> int:
    """Prints what became of each key, and writes the recipe."""
    from squelch.cluster.config import validated
    from squelch.kit.importing.recipe import imported
    from squelch.kit.importing.sources import read

    made = imported(read(options.config), _given(options.overrides))
    out = options.out or Path(f"{made.settings['name']}.yaml")
    reward = out.with_name(f"{out.stem}_reward.py") if made.reward else None
    if reward is not None:
        made.wrapped_in(reward)
    beside = {} if reward is None else {reward: lambda path: write_whole(path, made.reward)}

    def check() -> None:
        validated(nested(_complete(made.settings)), [], str(out), lambda environment, seconds: None)

    made.write(out, "after the file, e.g. {}=VALUE", beside, check)
    return 0


def _given(overrides: Sequence[str]) -> dict[str, Any]:
    """The user's settings by dotted key."""
    from squelch.cluster.setting_keys import flat, override_in

    tree: dict[str, Any] = {}
    for override in overrides:
        override_in(tree, override)
    return flat(tree)


def _complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with a reward function, as which any name passes: whether it is there is tried when a run starts."""
    if settings.get("environment.name") != "Prompts":
        return settings
    return {"environment.options.reward": "not.yet:known", **settings}
