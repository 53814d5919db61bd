"""Trees of settings by dotted keys, such as `actor.optim.lr`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of nested mappings that the dotted keys describe."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree
