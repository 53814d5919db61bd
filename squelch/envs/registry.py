"""The environments by name. An environment, and Gymnasium, are imported only when the environment is requested.

A table entry is `name: "module:Class"`. `package.module:Class` itself is a name too, and needs no entry.
"""

from __future__ import annotations

import importlib
import logging
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment, Judged, Twinned, lacking
from squelch.envs.options import nearest, read_options
from squelch.envs.wording import PromptName
from squelch.kit.base.package import needs_installation
from squelch.kit.base.user_files import with_absolute_paths
from squelch.kit.records.judge import Judge
from squelch.kit.records.splits import Split, check_split
from squelch.kit.untrusted.files import brief, reason

log = logging.getLogger(__name__)

ENVIRONMENTS: dict[str, str] = {
    "Countdown": "squelch.envs.countdown.environment:Countdown",
    "DeepCoder": "squelch.envs.deep_coder.environment:DeepCoder",
    "FrozenLake": "squelch.envs.grid_worlds.frozen_lake:FrozenLake",
    "MetaMathQA": "squelch.envs.meta_math_qa.environment:MetaMathQA",
    "SearchQA": "squelch.envs.search_qa.environment:SearchQA",
    "Sokoban": "squelch.envs.grid_worlds.sokoban:Sokoban",
    "WebShop": "squelch.envs.web_shop.environment:WebShop",
}
"""The paper's seven. Each is a `TextEnv` with every capability; Gymnasium knows it as `squelch/<name>-v0`."""
ADAPTERS: dict[str, str] = {
    "Agent": "squelch.envs.agent.environment:Agent",
    "Gymnasium": "squelch.envs.adapters.gymnasium_text:GymnasiumText",
    "Http": "squelch.envs.adapters.http:Http",
    "OwnProcess": "squelch.envs.adapters.own_process:AnyInItsProcess",
    "Prompts": "squelch.envs.prompt_file.environment:Prompts",
    "ReasoningGym": "squelch.envs.adapters.reasoning_gym:ReasoningGym",
    "TextArena": "squelch.envs.adapters.textarena:TextArena",
}
"""What others bring: agents, files of prompts, and third-party environments. They can be played, but have no
demonstrations."""


def environment_names() -> list[str]:
    """Names of Squelch's own environments, sorted."""
    return sorted(ENVIRONMENTS)


def plays_whole_turns(chosen: EnvironmentConfig) -> bool:
    """Whether its turns are in the model's own format; an agent may let them be Squelch's (`options.turns`)."""
    return environment_class(chosen.name).whole_turns is True and chosen.options.get("turns") != "squelch"


def environment_class(name: str) -> type[Environment]:
    """The class of a name in the tables, or of `package.module:Class`.

    Raises:
        ValueError: the name is unknown (the text names the nearest one), its module cannot be imported, or the class
            is no environment (the text names what it lacks).
    """
    tables = {**ENVIRONMENTS, **ADAPTERS}
    if name not in tables and ":" not in name:
        raise ValueError(f"environment.name is {brief(name)}, which is unknown; {nearest(name, sorted(tables))}")
    module, _, attribute = tables.get(name, name).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(f"environment.name is {brief(name)}, which is not of the form package.module:Class")
    try:
        found = vars(importlib.import_module(module)).get(attribute)
    except Exception as error:  # the module may be the user's own, and unfinished
        raise ValueError(f"environment.name is {name!r}, but {module!r} cannot be imported: {_cause(error)}") from error
    if not isinstance(found, type):
        raise ValueError(f"environment.name is {name!r}, but {module!r} defines no environment class {attribute!r}")
    if missing := lacking(found, Environment) or sorted(getattr(found, "__abstractmethods__", ())):
        raise ValueError(
            f"environment.name is {name!r}, but {attribute} is no environment: it lacks {', '.join(missing)}; derive "
            "it from envs.contract.Environment"
        )
    return found


def has_twins(name: str) -> bool:
    """Whether the environment of that name has near variations of its tasks. Raises as `environment_class`."""
    return not lacking(environment_class(name), Twinned)


@lru_cache(maxsize=32)
def judge_of(environment: str) -> Judge | None:
    """The judge of an environment by its name; None if it has none, or if this host lacks the environment, which a log
    line says once: the scorer's host need not be able to play."""
    try:
        found = environment_class(environment)
    except ValueError as error:
        log.warning("reasonings are not judged: %s", error)
        return None
    return None if lacking(found, Judged) else cast("type[Judged]", found).judge()


def _cause(error: Exception) -> str:
    """The error of an import in one line, with its file and line number if the text lacks them."""
    if isinstance(error, ImportError):
        return needs_installation(error) or reason(error)
    if isinstance(error, ValueError):
        return reason(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{type(error).__name__}: {reason(error)}{place}"


def make(
    name: str,
    split: Split = "train",
    options: dict[str, Any] | None = None,
    prompt: PromptName = "tiny",
    first_seed: int = 0,
) -> Environment:
    """The environment of that name, whose messages are in the style `prompt`, for a run whose first training task has
    the seed `first_seed`. Raises ValueError for an unknown name, split or option, and for options that the style cannot
    express."""
    made = constructed(name, split, options or {})
    made.prompt, made.first_seed = prompt, first_seed
    made.check()
    return made


def constructed(name: str, split: Split, options: dict[str, Any]) -> Environment:
    """The environment of that name as its constructor leaves it: without a style, and without `check`. Raises
    ValueError for an unknown name, split or option."""
    environment = environment_class(name)
    check_split(split)
    read_options(name, environment.Options, options)  # first, so that no option is taken for another argument
    return environment(split=split, **options)


def resolved(config: EnvironmentConfig, made: Environment | None = None) -> EnvironmentConfig:
    """`config` with the environment's own numbers where the format does not set them, and with absolute paths of the
    user's files in its options. `made`: the environment, whose numbers may follow from its options; without it they are
    those of its class."""
    form = config.format.resolved(made or environment_class(config.name))
    return config.model_copy(update={"format": form, "options": _from_any_folder(config.name, config.options)})


def _from_any_folder(name: str, options: dict[str, Any]) -> dict[str, Any]:
    found = with_absolute_paths(environment_class(name).Options, options)
    inner = found.get("options")
    if name == "OwnProcess" and isinstance(inner, dict):
        found["options"] = _from_any_folder(found["environment"], inner)
    return found
