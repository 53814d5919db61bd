"""Sends a run's metrics to Weights & Biases, or keeps them for `wandb sync` (`recorder.wandb_mode=offline`).

`RUN/wandb/run.json` holds the id of the W&B run and the last step that it has. A resumed run continues that run, and
leaves out the steps that it has already: W&B takes no step twice, and a resumed run repeats them.

W&B's process waits for the network; a step does not. Neither code nor git's state is sent.

W&B's settings come from the configuration, the environment and the user's home. Those of the current folder, or of the
run's, could send the user's key to the server of a stranger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.lib.settings_file import SettingsFiles

from squelch.kit.base.disk import write_whole
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.series import Flat
from squelch.kit.metrics.settings import RecorderConfig
from squelch.kit.untrusted.files import is_file, read_bytes, reason

MAX_FILE = 4096


def _of_the_user(self: wandb.Settings) -> SettingsFiles:
    """As `wandb.Settings.read_system_settings`, without `wandb/settings` below the current or the run's folder."""
    home = Path(self.settings_system) if self.settings_system else None
    return SettingsFiles(global_settings=home, local_settings=Path(os.devnull))


wandb.Settings.read_system_settings = _of_the_user


class WandbLog:
    """One W&B run."""

    def __init__(
        self, config: RecorderConfig, registry: Registry, run_dir: Path, name: str, settings: Mapping[str, Any]
    ) -> None:
        """ValueError if W&B has no credentials for this user, or cannot be reached, or its file is damaged."""
        self._registry = registry
        self._file = run_dir / "wandb" / "run.json"
        found, self._last = _identity(self._file)
        self._earlier = self._last
        """The last step of an earlier process; W&B takes no step again, but further metrics of the newest."""
        self._run = _start(config, run_dir, name, settings, found)
        self._keep()

    def step(self, step: int, flat: Flat) -> None:
        """Takes the flat metrics of a training step."""
        if step > self._earlier:
            self._run.log(self._registry.named(flat), step=step)
            self._last = step
            self._keep()

    def close(self, exit_code: int) -> None:
        """Sends what is left, as far as it can be sent in time; the rest stays for `wandb sync`."""
        self._run.finish(exit_code)

    def _keep(self) -> None:
        write_whole(self._file, json.dumps({"id": self._run.id, "step": self._last}))


def _start(
    config: RecorderConfig, run_dir: Path, name: str, settings: Mapping[str, Any], found: str | None
) -> wandb.Run:
    timeout = config.logger_timeout_s
    own = wandb.Settings(
        console="off",  # the terminal is the run's
        silent=True,
        disable_git=True,
        save_code=False,
        init_timeout=timeout,
        finish_timeout=timeout,
    )
    try:
        if config.wandb_mode != "offline" and own.mode == "online" and not wandb.login(prompt=False):
            raise ValueError("nobody is logged in; run `wandb login`, set WANDB_API_KEY, or set it offline")
        return wandb.init(
            project=config.wandb_project,
            entity=config.wandb_entity or None,
            id=found,
            resume="allow",
            name=name,
            dir=run_dir,
            config=dict(settings),
            mode=config.wandb_mode,
            settings=own,
        )
    except (wandb.Error, ValueError, OSError) as error:
        raise ValueError(
            f"recorder.loggers: Weights & Biases: {reason(error)} (recorder.wandb_mode=offline keeps the metrics in "
            f"{run_dir / 'wandb'} for `wandb sync`)"
        ) from error


def _identity(file: Path) -> tuple[str | None, int]:
    """The id of the run's W&B run and its last step; None and -1 for a run that has none yet."""
    if not is_file(file):
        return None, -1
    try:
        found = json.loads(read_bytes(file, MAX_FILE))
        return str(found["id"]), int(found["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"recorder.loggers: {file} is damaged ({reason(error)}); remove it to start another W&B run"
        ) from error
