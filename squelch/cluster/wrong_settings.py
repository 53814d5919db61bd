"""Wrong settings in words: the key, what it may be, and the key or value that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from squelch.cluster.other_names import answer, found, settings_named
from squelch.cluster.setting_keys import flat, unplaced, where_of
from squelch.envs.registry import environment_class
from squelch.kit.base.errors import did_you_mean
from squelch.kit.untrusted.files import brief, shortened

MAX_FAULTS = 8
"""Wrong settings that one error lists."""
OPTIONED = ("Prompts", "Agent", "Countdown", "MetaMathQA", "DeepCoder")
"""Environments whose options users give by their short names, those for which they look first."""
RECIPE_OF = {"Prompts": " (the recipe prompts)"}


def what_is_wrong(error: ValidationError, tree: type[BaseModel]) -> str:
    """What is wrong with each setting of a `tree` of settings, at most `MAX_FAULTS`, and what was meant."""
    lines = list[str]()
    for item in error.errors()[:MAX_FAULTS]:
        where = shortened(where_of(item["loc"]), 80)
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key. {_key_meant(tree, item['loc'], item['input'])}".strip())
        elif item["type"] in ("model_type", "model_attributes_type"):
            lines.append(f"{where}: is {brief(item['input'])}, but must be a block of settings, e.g. {where}.KEY=VALUE")
        else:
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "tuple_type":
                message = f"must be a list, e.g. {where}=[{shortened(str(item['input']), 40)}]"
            given = "" if isinstance(item["input"], dict | BaseModel) else f" (given {brief(item['input'])})"
            lines.append(f"{where}: {message}{given}{_meant_value(item)}{_quotes(item, where)}".removeprefix(": "))
    more = error.error_count() - len(lines)
    return "; ".join([*lines, *([f"and {more} more"] if more else [])])


def _quotes(error: ErrorDetails, where: str) -> str:
    """How to write text that YAML reads as another value, such as the name 7; else empty."""
    if error["type"] != "string_type" or not isinstance(error["input"], bool | int | float):
        return ""
    return f"; such text needs quotes, on the command line '{where}=\"...\"'"


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int):
            continue  # a place in a list, whose entries have this model
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def _key_meant(tree: type[BaseModel], path: tuple[int | str, ...], value: Any) -> str:
    """What another trainer's setting of this name is here, the environments with an option of this name, and the
    settings of this name in other blocks; else what resembles it in another trainer, else the nearest in this block,
    else all keys of this block."""
    word, key = str(path[-1]), where_of(path)
    named = settings_named(found(key, 1) or found(word, 1))
    elsewhere = [one for one in _keys(tree) if one.rpartition(".")[2] == word and one not in named]
    others = f"Other blocks have it: {', '.join(elsewhere)}." if elsewhere else ""
    sure = " ".join(filter(None, (answer(key, 1) or answer(word, 1), _option_meant(path), others)))
    if sure:
        return sure
    fields = _fields_at(tree, path[:-1])
    inner = flat(value, f"{key}.") if isinstance(value, dict) else {}
    known = " ".join(filter(None, (answer(one, 2) for one in list(inner or [key])[:MAX_FAULTS])))
    return known or did_you_mean(word, fields).strip() or answer(key) or f"Valid keys: {', '.join(fields)}."


def _option_meant(path: tuple[int | str, ...]) -> str:
    """Which environments have an option of this name, if the key is one of the run or of its environment."""
    block = unplaced(where_of(path[:-1])) or "environment"
    names = [name for name in OPTIONED if path[-1] in environment_class(name).Options.model_fields]
    if block != "environment" or not names:
        return ""
    shown = [f"{name}{RECIPE_OF.get(name, '')}" for name in names]
    return f"It is environment.options.{path[-1]} of {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}."


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all settings below a model."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _meant_value(error: ErrorDetails) -> str:
    """The question `Did you mean ...?` if a setting that takes one of a few names has another; else empty."""
    if error["type"] != "literal_error":
        return ""
    names = re.findall(r"'([^']*)'", error["ctx"]["expected"])
    return f". {did_you_mean(str(error['input']), names)}".rstrip(". ")
