"""Every setting by its dotted key, with what it means and what it may be; read from the classes of the settings.

`squelch config --explain` prints some of them, docs/reference/settings.md lists all. Environments are imported only for
their own options.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from squelch.cluster.config import RunConfig
from squelch.cluster.other_names import answer, found, settings_named
from squelch.envs.mixture import Entry
from squelch.envs.registry import environment_class
from squelch.kit.base.settings import Settings

OPTIONS = "environment.options"
_KINDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "unset",
    Any: "anything",
}
_UNIONS = (Union, types.UnionType)
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


@dataclass(frozen=True)
class Setting:
    """One setting. `default`: as JSON; `values`: what it may be, in words; `keys`: its keys in a run, one for each
    environment that has it."""

    key: str
    default: str
    values: str
    meaning: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """The settings under one key, and what they are about."""

    title: str
    about: str
    settings: Sequence[Setting]


def of_run() -> list[Block]:
    """All settings of a run but the options of its environment, by their first key."""
    top, blocks = [], []
    for name, info in RunConfig.model_fields.items():
        if inner := _block(info):
            blocks.append(Block(name, _line(inner.__doc__), list(_settings(inner, f"{name}."))))
        else:
            top.append(_setting(name, info))
        if entry := _entry(info):
            own = (one for one in entry.model_fields if _is_own(entry, one))
            rows = [_setting(f"{name}[N].{one}", entry.model_fields[one]) for one in own]
            blocks.append(Block(f"{name}[N]", _line(entry.__doc__), rows))
    return [Block("The run", _line(RunConfig.__doc__), top), *blocks]


def of_environment(name: str) -> Block:
    """The options of an environment. ValueError if there is no such environment."""
    options = environment_class(name).Options
    return Block(f"{OPTIONS} of {name}", _line(options.__doc__), list(_settings(options, f"{OPTIONS}.")))


def every_setting(config: RunConfig) -> list[Setting]:
    """All settings of a run, with their keys in it, and the options of its environments."""
    entries = config.mixture.entries
    found = [_with_keys(one, entries) for block in of_run() for one in block.settings]
    for name in dict.fromkeys(entry.environment.name for entry in entries):
        own = [entry for entry in entries if entry.environment.name == name]
        found += [_with_keys(one, own) for one in of_environment(name).settings]
    return found


def _with_keys(one: Setting, entries: Sequence[Entry]) -> Setting:
    """The setting with its keys in a run in which these environments have it."""
    prefix, _, rest = one.key.partition(".")
    several = rest and prefix in ("environment", "environments[N]") and all(entry.label for entry in entries)
    return replace(one, keys=tuple(f"{entry.key}.{rest}" for entry in entries) if several else (one.key,))


def flag_meant(flag: str, value: str | None) -> str:
    """How to set what somebody gives as a flag, e.g. `--steps 6`; empty if no setting has its name."""
    name, _, own = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    keys = [one.key for block in of_run() for one in block.settings if name in (one.key, one.key.rpartition(".")[2])]
    meant = settings_named(found(name, 1))
    keys.sort(key=lambda key: key not in meant)
    if not keys:
        return answer(name)
    given = own or value or "VALUE"
    return f"settings are given as key=value: {' or '.join(f'{key}={given}' for key in keys[:3])}"


def _settings(block: type[Settings], prefix: str) -> Iterator[Setting]:
    for name, info in block.model_fields.items():
        if inner := _block(info):
            yield from _settings(inner, f"{prefix}{name}.")
        else:
            yield _setting(f"{prefix}{name}", info)


def _block(info: FieldInfo) -> type[Settings] | None:
    """The class of a setting that is a block of settings, maybe one that is off by default."""
    kind = info.annotation
    kinds = get_args(kind) if get_origin(kind) in _UNIONS else (kind,)
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, Settings)), None)


def _entry(info: FieldInfo) -> type[Settings] | None:
    """The class of the blocks in a list of blocks of settings."""
    inner = get_args(info.annotation) if get_origin(info.annotation) is tuple else ()
    return next((one for one in inner if isinstance(one, type) and issubclass(one, Settings)), None)


def _is_own(block: type[Settings], name: str) -> bool:
    """Whether the class adds the setting to those of the class that it extends."""
    return all(name not in base.model_fields for base in block.__mro__[1:] if issubclass(base, Settings))


def _setting(key: str, info: FieldInfo) -> Setting:
    default = "required" if info.is_required() else _default(info.get_default(call_default_factory=True))
    bounds = [f"{words} {getattr(one, at):g}" for at, words in _BOUNDS for one in info.metadata if hasattr(one, at)]
    return Setting(key, default, ", ".join([_kind(info.annotation), *bounds]), _line(info.description))


def _default(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str)


def _kind(kind: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in _UNIONS:
        return " or ".join(_kind(one) for one in inner)
    if origin is Annotated:
        return _kind(inner[0])
    if origin in (tuple, list):
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, Settings):
        return "blocks of settings"
    return _KINDS.get(kind) or getattr(kind, "__name__", str(kind))  # an environment's own type


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
