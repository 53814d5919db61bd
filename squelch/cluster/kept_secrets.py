"""Secrets in the options of environments, such as `--api-key` in an agent's command: no file of a run holds them.

`config.yaml` and the archive hold `***` in their place (`kit.untrusted.secrets`). The process that was given the
options plays with them, and a resume gets them as it gets all its settings: from the command line or the recipe. What
reads a run's own `config.yaml` takes them

- from settings of this process, or of the sweep that started it, which hands them on in an environment variable;
- or else refuses, and names the setting to give again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.secrets import MASK, know_secrets, masked_settings, stand_for_secrets

VARIABLE = "SQUELCH_SECRET_OPTIONS"
"""Options of environments as JSON, which a sweep hands to its cells."""
_known: list[dict[str, Any]] = []


def without_secrets(tree: dict[str, Any]) -> dict[str, Any]:
    """A run's settings as its files hold them."""
    return _with_each(tree, lambda _, options: masked_settings(options))


def with_secrets(tree: dict[str, Any], recipe: str) -> dict[str, Any]:
    """Settings whose masks are replaced by what is known here. UserError, which names the recipe and the setting, for a
    mask that nobody knows."""

    secret: list[dict[str, Any]] = []

    def filled(place: str, options: dict[str, Any]) -> dict[str, Any]:
        whole = {name: _filled(name, value, f"{place}.options.{name}", recipe) for name, value in options.items()}
        if masked_settings(whole) != whole:
            secret.append(whole)
        return whole

    found = _with_each(tree, filled)
    for options in secret:  # once all are filled, so that none fills another environment's
        if options not in _known:
            _known.append(options)
            know_secrets(options)
    return found


def handed_on() -> dict[str, str]:
    """The environment variable for a process that reads a masked `config.yaml`; none without secrets."""
    return {VARIABLE: json.dumps(_known)} if _known else {}


def _filled(name: str, value: Any, key: str, recipe: str) -> Any:
    if not stand_for_secrets({name: value}):
        return value
    _take_handed_on()
    for options in _known:
        if name in options and masked_settings({name: options[name]}) == {name: value}:
            return options[name]
    raise UserError(
        f"configuration {recipe}: {key} holds {MASK} in the place of a secret, which no file of a run keeps; give it "
        f"again: {key}=..., or let the program read it from an environment variable"
    )


def _take_handed_on() -> None:
    found = os.environ.pop(VARIABLE, None)  # so that no process of the run inherits it
    if found is not None:
        _known.extend(json.loads(found))


def _with_each(tree: dict[str, Any], changed: Callable[[str, dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The tree with changed options of each environment, which is named too."""

    def of_entry(place: str, entry: Any) -> Any:
        known = isinstance(entry, dict) and isinstance(entry.get("options"), dict)
        return {**entry, "options": changed(place, entry["options"])} if known else entry

    found = dict(tree)
    if "environment" in found:
        found["environment"] = of_entry("environment", found["environment"])
    if isinstance(several := found.get("environments"), list):
        found["environments"] = [of_entry(f"environments[{i}]", entry) for i, entry in enumerate(several)]
    return found
