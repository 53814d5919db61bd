"""How a run that paused at an alarm goes on: the command of the next run, and its one change. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.kit.filter.rules import stricter
from squelch.learner.objective.algorithms import ALGORITHMS, as_written


def ways_on(config: RunConfig, kept: int | None) -> str:
    """The two ways, with their commands. `kept`: step of the checkpoint from before the fall, if there is one."""
    source = ["squelch", "train", str(config.run_dir / "config.yaml"), f"name={config.name}-again"]
    begins = "from its beginning"
    if kept is not None and config.learner.export is not None:
        begins = "from that checkpoint"
        seeds = [f"{entry.key}.train_seed=100000" for entry in config.mixture.entries]
        source += [f"model.path={config.run_dir}/checkpoints/step-{kept}/hf", "model.warmup=null", *seeds]
    what, settings = change(config)
    command = shlex.join([*source, *(f"{key}={as_written(value)}" for key, value in settings.items())])
    return f"Go on with --resume, or {begins} with {what}: {command}"


def change(config: RunConfig) -> tuple[str, dict[str, Any]]:
    """What the next run changes, in words and as settings by dotted key: the filter where its rule can be stricter,
    else the entropy bonus, else the learning rate."""
    if settings := _stricter_filter(config):
        return "a stricter filter", settings
    bonus, rate = config.learner.objective.entropy_coefficient, config.learner.optimizer.learning_rate
    if bonus > 0:
        return "a smaller entropy bonus", {"learner.objective.entropy_coefficient": bonus / 2}
    return "a smaller learning rate", {"learner.optimizer.learning_rate": rate / 2}


def _stricter_filter(config: RunConfig) -> dict[str, Any]:
    if config.sampling.group_size == 1:  # its reward has no variance
        return {}
    found = {f"filter.{key}": value for key, value in stricter(config.filter, _ranked_together(config)).items()}
    has_its_own = config.learner.algorithm_filter and ALGORITHMS[config.learner.algorithm].filter
    return {"learner.algorithm_filter": False} | found if found and has_its_own else found


def _ranked_together(config: RunConfig) -> int:
    """Groups that the filter ranks at once; where each environment's are ranked alone, the fewest."""
    size = config.filter.window_size if config.filter.window == "sliding" else config.loop.prompts
    share = min(config.mixture.shares.values()) if config.filter.scope == "environment" else 1.0
    return max(1, int(size * share))
