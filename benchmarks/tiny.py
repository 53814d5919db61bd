"""Measures the tiny policy: the cost of its warm-up, its success, and whether RL can still improve or harm it.

python -m benchmarks.tiny [--env NAME] [--policy DIR] [--quick] [--json]

Options and token limits are those of the shipped recipe with the environment's name. The policy is built again, so that
the seconds are those of a first run, unless `--policy` names the folder of a policy. `--quick` alone builds a miniature
for FrozenLake, in seconds, which only shows that the benchmark runs; with `--env` it builds that environment's policy.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks import tiny_play
from benchmarks.common import parser_of, print_targets
from benchmarks.tiny_play import Played
from squelch.actors.play.codec import ChatCodec
from squelch.cluster.config import RunConfig, load
from squelch.envs.grid_worlds.base import GridEnv
from squelch.envs.registry import environment_class, environment_names
from squelch.learner.warmup import tiny
from squelch.learner.warmup.tiny_recipe import TinyRecipe

NUM_PROMPTS = 32
"""Tasks, each with a group of GROUP_SIZE episodes."""
GROUP_SIZE = 16
QUICK_TASKS = 64
MINIATURE = TinyRecipe(width=32, layers=2, heads=2, kv_heads=1, feed_forward=64, tokens=16_000, batch_tokens=512)
"""Meets no target."""
TARGETS = {
    "success_t05": "0.30 to 0.42",
    "groups_with_variance": ">= 0.4",
    "seconds": "<= 150 (FrozenLake), 240 (Sokoban)",
}
"""Targets on grid worlds."""
TEXT_TARGETS = {"format_valid": ">= 0.8", "groups_with_variance": ">= 0.1", "seconds": "<= 150"}
"""Targets elsewhere: the policy must be trainable, not good."""


def success(model: PreTrainedModel, codec: ChatCodec, config: RunConfig, num: int, t: float) -> float:
    """Share of the first `num` validation tasks that the model solves at temperature `t`, in one episode each."""
    tasks = range(config.environment.validation_seed, config.environment.validation_seed + num)
    tokens = config.sampling.max_tokens_per_turn
    played = tiny_play.play_tasks(model, codec, config.environment, tasks, temperature=t, max_tokens=tokens)
    return float(np.mean([one.success for one in played]))


def signal(groups: list[Played]) -> dict[str, float]:
    """Figures of groups of `GROUP_SIZE` at temperature 1: reward variance, format validity, and lengths."""
    returns = np.array([one.episode_return for one in groups]).reshape(-1, GROUP_SIZE)
    turns = sum(one.turns for one in groups)
    return {
        "groups_with_variance": float((returns.var(axis=1, ddof=1) > 1e-10).mean()),
        "reward_variance": float(returns.var(axis=1, ddof=1).mean()),
        "format_valid": sum(one.valid_turns for one in groups) / turns,
        "turns": turns / len(groups),
        "tokens_per_trajectory": float(np.mean([len(one.token_ids) for one in groups])),
    }


def measure(
    directory: Path, config: RunConfig, num_tasks: int, num_prompts: int, recipe: TinyRecipe | None = None
) -> dict[str, Any]:
    """All metrics of one environment's policy, which is built in `directory` unless that holds it, by its own recipe or
    the one that is given."""
    environment, tokens = config.environment, config.sampling.max_tokens_per_turn
    report = tiny.build_tiny(directory, environment, recipe=recipe)
    model, codec = tiny_play.load(directory)
    tasks = range(environment.train_seed, environment.train_seed + num_prompts)
    groups = tiny_play.play_tasks(
        model, codec, environment, tasks, split="train", group_size=GROUP_SIZE, temperature=1.0, max_tokens=tokens
    )
    return {
        "environment": environment.name,
        "options": json.dumps(environment.options),
        "threads": torch.get_num_threads(),
        "seconds": report.seconds,
        "seconds_demonstrations": report.seconds_demonstrations,
        "tokens": report.tokens,
        "optimizer_steps": report.optimizer_steps,
        "num_parameters": report.num_parameters,
        "loss": report.loss,
        "num_tasks": num_tasks,
        "success_t05": success(model, codec, config, num_tasks, 0.5),
        **({"success_t1": success(model, codec, config, num_tasks, 1.0)} if num_tasks > QUICK_TASKS else {}),
        **signal(groups),
    }


def main() -> None:
    """Prints the metrics of each environment's policy."""
    parser = parser_of(__doc__, "64 tasks and 8 groups, not 512 and 32, T = 0.5; without --env a miniature, 8 and 2")
    parser.add_argument("--env", choices=environment_names(), help="this environment only; default all")
    parser.add_argument("--policy", type=Path, help="folder of a policy that was built before; needs --env")
    arguments = parser.parse_args()
    if arguments.policy and not arguments.env:
        parser.error("--policy needs --env: which environment is it for?")
    logging.disable_progress_bar()
    num_tasks, num_prompts = (QUICK_TASKS, 8) if arguments.quick else (512, NUM_PROMPTS)
    miniature = MINIATURE if arguments.quick and not arguments.env else None
    if miniature:
        num_tasks, num_prompts = 8, 2
    named = ["FrozenLake"] if miniature else environment_names()
    for name in [arguments.env] if arguments.env else named:
        with tempfile.TemporaryDirectory() as fresh:
            directory = arguments.policy or Path(fresh) / name
            metrics = measure(directory, load(name.lower()), num_tasks, num_prompts, miniature)
        targets = TARGETS if issubclass(environment_class(name), GridEnv) else TEXT_TARGETS
        print_targets(metrics, arguments.json, {} if miniature else targets)


if __name__ == "__main__":
    main()
