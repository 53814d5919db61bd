"""The command of a next run with one change: of a run that paused at an alarm, or for a finding. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.setting_keys import flat
from squelch.kit.filter.rules import stricter
from squelch.kit.findings.catalogue import catalogue
from squelch.kit.findings.finder import Finding
from squelch.kit.findings.words import next_settings
from squelch.learner.objective.algorithms import ALGORITHMS, as_written

Alternatives = Sequence[Mapping[str, Any]]
OF_AN_ALARM = "reasoning_ignores_prompt"
"""The finding whose change answers every alarm."""


def ways_on(config: RunConfig, kept: int | None, alternatives: Alternatives | None = None) -> str:
    """The two ways on of a run that paused, with their commands. `kept`: step of the checkpoint from before, if there
    is one; `alternatives`: the changes to choose from."""
    start, begins = [], "from its beginning"
    if kept is not None and config.learner.export is not None:
        begins = "from that checkpoint"
        seeds = [f"{entry.key}.train_seed=100000" for entry in config.mixture.entries]
        start = [f"model.path={config.run_dir}/checkpoints/step-{kept}/hf", "model.warmup=null", *seeds]
    settings = change(config, catalogue()[OF_AN_ALARM].settings if alternatives is None else alternatives)
    if not settings:
        return "Go on with --resume"
    return f"Go on with --resume, or {begins} with {_words(settings)}: {_command(config, settings, start)}"


def remedy(config: RunConfig, finding: Finding) -> str:
    """The command of the next run with the finding's change; where no setting is its change, what shows the rows."""
    settings = change(config, finding.entry.settings)
    return _command(config, settings) if settings else shlex.join(["squelch", "inspect", str(config.run_dir)])


def change(config: RunConfig, alternatives: Alternatives) -> dict[str, Any]:
    """The settings that the next run changes, by dotted key: the first alternative that changes something."""
    special = {"filter: stricter": lambda: _stricter_filter(config), "prompt: natural": lambda: _natural(config)}
    return next_settings(alternatives, flat(config.model_dump(mode="json")), special)


def _command(config: RunConfig, settings: Mapping[str, Any], start: Sequence[str] = ()) -> str:
    source = ["squelch", "train", str(config.run_dir / "config.yaml"), f"name={config.name}-again", *start]
    return shlex.join([*source, *(f"{key}={as_written(value)}" for key, value in settings.items())])


def _words(settings: Mapping[str, Any]) -> str:
    """What changes, in words."""
    if any(key.startswith("filter.") for key in settings):
        return "a stricter filter"
    names = {"entropy_coefficient": "entropy bonus", "learning_rate": "learning rate"}
    return "another " + " and ".join(names.get(last := key.rpartition(".")[2], last) for key in settings)


def _natural(config: RunConfig) -> dict[str, Any]:
    """The natural prompt, for a model that is not the tiny policy."""
    tiny = [entry.key for entry in config.mixture.entries if entry.environment.prompt == "tiny"]
    return {} if config.model.path == "tiny" else {f"{key}.prompt": "natural" for key in tiny}


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
