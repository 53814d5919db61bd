"""The first lines of a run: what is trained, on what, how, where it is written, and what to type in another terminal.
Pure, but for the headers of the model's weights."""

from __future__ import annotations

import shlex
from pathlib import Path

from squelch.cluster.config import RunConfig
from squelch.kit.models.model_folder import num_parameters
from squelch.learner.objective.algorithms import as_written, departures


def opening_lines(config: RunConfig, model_dir: Path, url: str) -> list[str]:
    """The lines. `url`: where the metrics are exported."""
    loop, place = config.loop, shlex.quote(str(config.run_dir))
    size = num_parameters(model_dir)
    files = f"{config.run_dir}" + (f", copied to {config.store}" if config.store else "")
    rows = {
        "model": f"{config.model.path}, {_count(size)} parameters ({_short(model_dir)})",
        "environment": f"{_environments(config)}, {loop.steps} steps of {loop.prompts} tasks with "
        f"{config.sampling.group_size} attempts each",
        "algorithm": _algorithm(config),
        "filter": _filter(config),
        "files": files,
        "metrics": url,
        "elsewhere": f"squelch watch {place}    squelch inspect {place}",
    }
    return [config.name, *(f"  {name:12s} {value}" for name, value in rows.items())]


def _environments(config: RunConfig) -> str:
    """What is played; of several environments with the share of each."""
    mixture = config.mixture
    shares = mixture.shares
    return " + ".join(f"{entry.name}{f' {shares[entry.label]:.0%}' * bool(entry.label)}" for entry in mixture.entries)


def _short(folder: Path) -> Path:
    """The folder as seen from the working directory, if it is below that."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:  # three digits of less would be 1000 of the smaller unit
            return f"{number / size:.3g} {unit}"
    return str(number)


def _algorithm(config: RunConfig) -> str:
    """The algorithm, and in words in what the run departs from it."""
    name = config.learner.algorithm
    found = departures(name, config.learner.model_dump(mode="json"))
    words = [f"{_name(key)} {as_written(ours)} instead of {as_written(theirs)}" for key, theirs, ours in found]
    return f"{name}, with {', '.join(words)}" if words else name


def _name(key: str) -> str:
    """A learner's setting in words: `kl coefficient`, `aggregation`."""
    return key.removeprefix("objective.").replace(".", " ").replace("_", " ")


def _filter(config: RunConfig) -> str:
    """What a step learns from."""
    chosen = config.filter
    if chosen.rule == "none":
        return "none: a step learns from all groups"
    rho = "" if chosen.rule == "band" else f" {chosen.rho:g}"
    words = f"{chosen.rule}{rho} by {chosen.statistic.replace('_', ' ')}"
    if chosen.target == "groups":
        return words if chosen.keep == "largest" else f"{words}, keep {chosen.keep}"
    term = _TERMS[chosen.target]
    return f"{words}, keep {chosen.keep}, target {chosen.target}: the other groups are spared {term} alone"


_TERMS = {"regulariser": "the regularisers", "task": "the policy term"}
