"""`squelch import`: makes a recipe of another trainer's configuration, and says what became of each of its keys."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say

HELP = (
    "of verl: what `--cfg job --resolve` prints, or the run's folder .hydra; of prime-rl: the TOML; of OpenRLHF: the "
    "script or a file with its command line; of TRL: the script, or call squelch.trl.recipe(trainer, FILE) in it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Makes a recipe of the configuration of verl, prime-rl, OpenRLHF or TRL, and prints which setting each key "
        "became, where its meaning differs, and what has no counterpart. Nothing of it is executed: a value that a "
        "script computes is unknown. Exit code 2 if the group size, the batch, the learning rate, the model or the "
        "data is unknown; give it as key=value."
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help=HELP)
    given = "settings of the recipe, which win over the configuration"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=given)
    parser.add_argument("--out", metavar="FILE", type=Path, help="the recipe (default: NAME.yaml, NAME the run's)")


def run(options: argparse.Namespace) -> int:
    """Prints what became of each key, and writes the recipe."""
    from squelch.cluster.config import validated
    from squelch.kit.importing.recipe import imported
    from squelch.kit.importing.sources import read
    from squelch.kit.importing.values import nested

    made = imported(read(options.config), _given(options.overrides))
    out = options.out or Path(f"{made.settings['name']}.yaml")
    reward = out.with_name(f"{out.stem}_reward.py") if made.reward else None
    if reward is not None:
        made.settings.setdefault("environment.options.reward", f"{reward}:reward")
    say("\n".join(made.report()))
    made.require()
    validated(nested(_complete(made.settings)), [], str(out), lambda environment, seconds: None)
    if taken := [path for path in (out, reward) if path is not None and path.exists()]:
        raise UserError(f"{taken[0]} exists; give another --out FILE, or remove it")
    if reward is not None:
        write_whole(reward, made.reward)
    write_whole(out, made.recipe())
    beside = f" and {reward}, which calls the reward function" if reward else ""
    say(f"written: {out}{beside}\nnext: squelch plan {out} --gpus N --device-gib GIB; squelch train {out}")
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
