"""Presets: settings of the paper, and of the scripts that its authors published, laid over any recipe (`preset=NAME`
among the overrides). Precedence: defaults, recipe, preset, command line.

A preset is a YAML file, a list of blocks with `settings` and, if they hold for some runs only, `where`: the values, or
lists of values, that other settings of the run must have, or whether it shows pictures (`pictures: true`). The lines'
sources are its comments.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from squelch.cluster.setting_keys import OBSERVATION, PICTURED, below, flat, override_in
from squelch.envs.config import EnvironmentConfig
from squelch.kit.base.errors import UserError, did_you_mean
from squelch.kit.untrusted.files import brief
from squelch.kit.untrusted.text import own_yaml
from squelch.learner.config import LearnerConfig
from squelch.learner.objective.algorithms import merged

PRESETS = Path(__file__).parent / "recipes" / "presets"
KEY = "preset"
DEFAULTS: Mapping[str, Any] = {
    "environment.name": EnvironmentConfig.model_fields["name"].default,
    "environment.prompt": EnvironmentConfig.model_fields["prompt"].default,
    "learner.algorithm": LearnerConfig.model_fields["algorithm"].default,
}
"""The settings that `where` may name, with their values where a run sets none."""
PICTURES = "pictures"
"""What `where` may name besides: whether pictures show the environment's boards."""


def preset_names() -> list[str]:
    """Names of the presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def named(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """(the preset's name, the other overrides); the name is empty if none is given. UserError for a name that does not
    exist, and for several presets."""
    own = [one for one in overrides if _key(one) == KEY]
    if not own:
        return "", list(overrides)
    if KEY in (one.strip() for one in own):
        raise UserError(f"override {KEY} is not of the form {KEY}=NAME. The presets are {', '.join(preset_names())}")
    given = list(dict.fromkeys(one.partition("=")[2].strip().strip("\"'") for one in own))
    if len(given) > 1:
        raise UserError(f"{' and '.join(own)}: a run has one preset; keep one of them")
    (name,) = given
    if name not in (names := preset_names()):
        raise UserError(
            f"no preset {brief(name)}. {did_you_mean(name, names)}The presets are {', '.join(names)}; leave {KEY} out "
            "for the recipe alone"
        )
    return name, [one for one in overrides if one not in own]


def settings_of(name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of the preset's settings for a run; each of several environments gets its own. `run`: the run's tree,
    with the overrides of the command line."""
    entries = run.get("environments")
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        return _laid(name, run)
    each = [_laid(name, {**run, "environment": entry}) for entry in entries]
    own = [merged(entry, found.pop("environment", {})) for entry, found in zip(entries, each, strict=True)]
    return {**each[0], "environments": own}


def layered(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The tree, over it the preset that the overrides name, if any, and over that the other overrides. Some settings of
    a preset follow from those, such as from the environment's name."""
    preset, own = named(overrides)
    run = _overridden(tree, own)
    if not preset:
        return run
    over = settings_of(preset, run)
    rest = [one for one in own if _key(one) != "environments"]
    if len(rest) < len(own) and "environments" in over:  # the whole list is given: its entries have the last word
        over["environments"] = [merged(*pair) for pair in zip(over["environments"], run["environments"], strict=True)]
        own = rest
    return _overridden(merged(tree, over), own)


def from_preset(tree: dict[str, Any], overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(name, its settings by dotted key) of the preset among the overrides of a recipe's tree, without those that other
    overrides set; an empty name and nothing if there is none."""
    preset, own = named(overrides)
    if not preset:
        return "", {}
    run, given = _overridden(tree, own), [_key(one) for one in own]
    without, result = flat(run), flat(layered(tree, overrides))
    return preset, {
        key: value
        for key, value in flat(settings_of(preset, run)).items()
        if not below(key, given)
        and result.get(key) == value
        and not (key.startswith("environments[") and without.get(key) == value)
    }


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _overridden(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the tree to which the overrides are applied."""
    made = copy.deepcopy(tree)
    for override in overrides:
        override_in(made, override)
    return made


def _laid(name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the blocks that hold for a run of one environment, merged in order."""
    found: dict[str, Any] = {}
    for where, settings in blocks(name):
        if all(_value(run, key) in values for key, values in where.items()):
            found = merged(found, settings)
    return copy.deepcopy(found)


def blocks(name: str) -> Iterator[tuple[Mapping[str, Sequence[Any]], Mapping[str, Any]]]:
    """(conditions, settings) of each block of a preset: which values `PICTURES` and each setting of `DEFAULTS` may
    have."""
    for block in own_yaml(PRESETS / f"{name}.yaml"):
        where = block.get("where", {})
        yield {key: value if isinstance(value, list) else [value] for key, value in where.items()}, block["settings"]


def _value(run: Mapping[str, Any], key: str) -> Any:
    if key == PICTURES:
        return _at(run, OBSERVATION) in PICTURED
    found = _at(run, key)
    return DEFAULTS[key] if found is None else found


def _at(run: Mapping[str, Any], key: str) -> Any:
    node: Any = run
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
