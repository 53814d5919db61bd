"""Squelch's own environments with the methods that only they have: solutions, task keys, demonstrations."""

from __future__ import annotations

from typing import Any

from squelch.envs.base import TextEnv
from squelch.envs.contract import Demonstrator, require
from squelch.envs.registry import make
from squelch.envs.wording import PromptName
from squelch.kit.records.splits import Split


def own_environment(
    name: str, split: Split = "train", options: dict[str, Any] | None = None, prompt: PromptName = "tiny"
) -> TextEnv:
    """As `make`; TypeError for a wrapper of a third-party environment."""
    env = make(name, split, options, prompt)
    if not isinstance(env, TextEnv):
        raise TypeError(f"environment {name} is not one of Squelch's own (envs.registry.ENVIRONMENTS)")
    return env


def demonstrator_of(env: TextEnv) -> Demonstrator:
    """The environment, typed as one that demonstrates how it is played."""
    return require(env.name, env, Demonstrator, "a benchmark of its demonstrations")
