"""Environments. Importing this package registers them with Gymnasium as `squelch/<name>-v0`; it imports neither torch
nor Ray."""

from envs.base import TextEnv, environment_class, environment_names, make, task_seeds
from envs.countdown import Countdown
from envs.deep_coder.environment import DeepCoder
from envs.frozen_lake import FrozenLake
from envs.meta_math_qa.environment import MetaMathQA
from envs.search_qa import SearchQA
from envs.sokoban import Sokoban
from envs.web_shop import WebShop
from envs.wording import DemonstrationQuality

__all__ = [
    "Countdown",
    "DeepCoder",
    "DemonstrationQuality",
    "FrozenLake",
    "MetaMathQA",
    "SearchQA",
    "Sokoban",
    "TextEnv",
    "WebShop",
    "environment_class",
    "environment_names",
    "make",
    "task_seeds",
]
