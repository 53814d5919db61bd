"""The keys of settings: a tree of settings by dotted key, such as `filter.rho` and `environments[1].weight`, and
overrides of it. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import brief
from squelch.kit.untrusted.text import MAX_DEPTH, parse_yaml

OBSERVATION = "environment.options.observation_format"
PICTURED = ("picture", "both")
"""Its values under which observations have pictures."""


def read_yaml(text: str, what: str) -> Any:
    """The YAML as plain data; if it is invalid, UserError of one paragraph that begins with `what`."""
    with bad_files_are_the_users():
        return parse_yaml(text, what)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tree's values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for place, one in enumerate(value):
                found |= flat(one, f"{prefix}{key}[{place}].")
        else:
            found[f"{prefix}{key}"] = value
    return found


def below(key: str, places: Collection[str]) -> bool:
    """Whether a key is one of the settings, or lies in one of the blocks of settings."""
    return any(key == place or key.startswith(f"{place}.") for place in places)


def labels_of(settings: Mapping[str, Any]) -> list[str]:
    """The labels of a run's several environments, of its settings by dotted key; none for an only environment."""
    return [str(settings.get(f"{key}.label") or settings[f"{key}.name"]) for key in _entries(settings)]


def weights_of(settings: Mapping[str, Any]) -> list[float]:
    """The weights of a run's several environments, of its settings by dotted key."""
    return [float(settings.get(f"{key}.weight", 1.0)) for key in _entries(settings)]


def environment_name(settings: Mapping[str, Any]) -> str | None:
    """What a run plays, of its settings by dotted key: its environment's name, or the labels of several."""
    return " + ".join(labels_of(settings)) or settings.get("environment.name")


def _entries(settings: Mapping[str, Any]) -> Iterator[str]:
    keys = (f"environments[{place}]" for place in itertools.count())
    return itertools.takewhile(lambda key: f"{key}.name" in settings, keys)


def override_in(tree: dict[str, Any], override: str) -> None:
    """Sets the value of an override, e.g. `filter.rho=0.5` or `environments[1].weight=2`, in a recipe's tree. UserError
    if it has no such form, or leads through a value."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {brief(override)} is not of the form key.sub=value, e.g. filter.rho=0.5")
    *parents, leaf = key.split(".")
    if len(parents) >= MAX_DEPTH:
        raise UserError(f"override {brief(override)} has more than {MAX_DEPTH} levels")
    node = tree
    for parent in parents:
        name, place = _place_in(parent)
        if node.get(name) is None:  # null: a block that is off
            node[name] = {}
        node = _listed(node[name], name, place, override) if place is not None else node[name]
        if not isinstance(node, dict):
            raise UserError(f"override {brief(override)}: {parent} holds a value, not a block of settings")
    node[leaf] = read_yaml(text, f"override {brief(override)}: {brief(text)}")


def _place_in(part: str) -> tuple[str, int | None]:
    """`environments[1]` as the name of a list and a place in it; another part of a key has no place."""
    found = re.fullmatch(r"(\w+)\[(\d{1,4})\]", part)
    return (found[1], int(found[2])) if found else (part, None)


def _listed(node: Any, name: str, place: int, override: str) -> Any:
    if not isinstance(node, list) or place >= len(node):
        has = f"has {len(node)} entries, counted from 0" if isinstance(node, list) else "is no list here"
        raise UserError(f"override {brief(override)}: {name} {has}; set the whole, e.g. '{name}=[{{name: NAME}}]'")
    return node[place]


def unplaced(key: str) -> str:
    """The key of an environment's setting as if the environment were the only one."""
    return re.sub(r"^environments\[\d+\]", "environment", key)


def of_each(settings: Mapping[str, Any], key: str) -> list[Any]:
    """The values of a setting of `environment`, of a run's settings by dotted key: one for each environment that has
    it."""
    return [value for own, value in settings.items() if unplaced(own) == key]


def where_of(path: tuple[int | str, ...]) -> str:
    """The key of a setting, with places in lists as `environments[1]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
