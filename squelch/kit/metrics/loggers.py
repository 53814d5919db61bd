"""Loggers beside Prometheus: TensorBoard and Weights & Biases, with the metrics of the same registry.

A logger gets the flat dict of each step that the exporter gets. A metric's name there is its section of
docs/reference/metrics.md and its key, e.g. `Filter/kept_mass`, so that both tools group it as the docs do. A metric
without a value is left out.

Invariants:

- A resumed run continues the same TensorBoard folder and the same W&B run, and no step is in it twice.
- A step waits for TensorBoard's file, and for no network: W&B sends in a process of its own.
- `close` waits `recorder.logger_timeout_s` at most.

`open_loggers` imports a logger's package, which is an optional extra (`pip install 'squelch-rl[tensorboard,wandb]'`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.series import Flat
from squelch.kit.metrics.settings import RecorderConfig

PACKAGES = {"tensorboard": "tensorboard.summary", "wandb": "wandb"}
"""The module that each logger needs; the extra has the logger's name."""


class Logger(Protocol):
    """Takes the metrics of each step, and ends with the run."""

    def step(self, step: int, flat: Flat) -> None:
        """Takes the flat metrics of a training step."""

    def close(self, exit_code: int) -> None:
        """Writes what is left; `exit_code` is that of the run, 0 for success."""


class Loggers:
    """Hands each step to the exporter and to the run's loggers, which it closes at the end of a `with` block.

    `exit_code`: that of the run; a block that an exception ends has failed.
    """

    def __init__(self, exporter: Recorder, loggers: Sequence[Logger]) -> None:
        self._exporter, self._loggers = exporter, tuple(loggers)
        self.exit_code = 1

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Sets a gauge of the exporter; loggers take whole steps only."""
        self._exporter.set(name, value, **labels)

    def step(self, step: int, flat: Flat) -> None:
        """Takes the flat metrics of a training step."""
        self._exporter.step(step, flat)
        for logger in self._loggers:
            logger.step(step, flat)

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as closing:  # one that fails to close does not keep the others open
            for logger in self._loggers:
                closing.callback(logger.close, self.exit_code)


def require_packages(config: RecorderConfig) -> None:
    """Imports what the configured loggers need. ModuleNotFoundError, whose `name` is the package, if one is missing."""
    for name in config.loggers:
        importlib.import_module(PACKAGES[name])


def open_loggers(
    config: RecorderConfig, registry: Registry, run_dir: Path, name: str, settings: Mapping[str, Any], clock: int
) -> list[Logger]:
    """The configured loggers of the run in `run_dir`.

    Args:
        name: the run's name; `settings`: its resolved configuration as plain data.
        clock: the completed steps of the run, of which a resume keeps the records; -1 for a run that begins.

    Raises:
        ValueError: a logger cannot start; the text says which, why, and what helps.
    """

    def tensorboard() -> Logger:
        from squelch.kit.metrics.tensorboard_log import TensorBoardLog

        return TensorBoardLog(registry, run_dir / "tensorboard", clock)

    def wandb() -> Logger:
        from squelch.kit.metrics.wandb_log import WandbLog

        return WandbLog(config, registry, run_dir, name, settings)

    makers: dict[str, Callable[[], Logger]] = {"tensorboard": tensorboard, "wandb": wandb}
    return [makers[logger]() for logger in config.loggers]
