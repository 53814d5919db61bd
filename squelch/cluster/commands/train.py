"""`squelch train`: runs a recipe to its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.kit.process.terminal import not_silent, say

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig


def run(options: argparse.Namespace) -> int:
    """Trains; returns the exit code. The recipe is read before Ray is imported, so that a wrong key fails at once."""
    with not_silent("reading the settings, and the programs that a run needs") as shown:
        return _run(options, shown)


def _run(options: argparse.Namespace, shown: Callable[[], None]) -> int:
    """As `run`. `shown`: called once the run itself says what it does."""
    from squelch.cluster.config import load, read_recipe
    from squelch.cluster.presets import from_preset
    from squelch.kit.base.package import require_versions

    if options.submitted_by:
        from squelch.cluster.fleet.job_files import sent_overrides

        require_versions(options.submitted_by)
        options.overrides = [*options.overrides, *sent_overrides()]

    overrides = options.overrides + ([f"cluster.address={options.address!r}"] if options.address else [])
    config = load(options.recipe, overrides)
    if options.submitted_by:
        from squelch.cluster.fleet.job_files import adopt_policies

        adopt_policies(Path(config.model.cache))
    preset, its = from_preset(read_recipe(options.recipe), overrides)
    if preset:
        say(f"preset={preset} sets {len(its)} settings: `squelch config {options.recipe} preset={preset}` lists them")
    from squelch.cluster.commands.existing_runs.report import after_the_run
    from squelch.cluster.loop.run import train
    from squelch.cluster.loop.run_name import named

    with nullcontext(config) if _has_name(options, config) else named(config, options.resume, say) as own:

        def report() -> None:
            if own.recorder.report and (own.run_dir / "metrics.jsonl").is_file():
                with not_silent("writing the report"):
                    after_the_run(own.run_dir, say)

        return train(own, options.resume, say, report, shown)


def _has_name(options: argparse.Namespace, config: RunConfig) -> bool:
    """Whether the command line names the run: by `name=`, or, to resume it, by its own `config.yaml`."""
    own = options.resume and Path(options.recipe).resolve() == (config.run_dir / "config.yaml").resolve()
    return own or any(override.partition("=")[0].strip() == "name" for override in options.overrides)
