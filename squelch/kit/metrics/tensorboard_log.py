"""Writes a run's metrics as TensorBoard's scalars, in `RUN/tensorboard`. `tensorboard --logdir runs` shows them.

Each process of a run writes an event file of its own. One that resumes after step n first writes TensorBoard's mark of
a restart at step n + 1, at which readers drop the later steps of earlier files: those are trained again.
"""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.series import Flat


class TensorBoardLog:
    """The event file of one process. A step is in the file when `step` returns; OSError if the disk refuses."""

    def __init__(self, registry: Registry, folder: Path, clock: int) -> None:
        """`clock`: the completed steps of the run, -1 for one that begins. ValueError if the folder refuses."""
        self._registry = registry
        self._described: set[str] = set()
        try:
            self._writer = EventFileWriter(str(folder))
        except OSError as error:
            raise ValueError(f"recorder.loggers: {folder} cannot be written: {error.strerror or error}") from error
        restart = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(step=clock + 1, wall_time=time.time(), session_log=restart))

    def step(self, step: int, flat: Flat) -> None:
        """Takes the flat metrics of a training step."""
        event = Event(step=step, wall_time=time.time())
        for name, value in self._registry.named(flat).items():
            event.summary.value.add(tag=name, simple_value=value, metadata=self._description(name))
        self._writer.add_event(event)
        self._writer.flush()  # a killed process leaves every step before its last checkpoint

    def _description(self, name: str) -> SummaryMetadata | None:
        """The metric's meaning, which TensorBoard shows beside its plot; with the first value only."""
        if name in self._described:
            return None
        self._described.add(name)
        spec, _ = self._registry.series_of(name.partition("/")[2])[0]
        plugin = SummaryMetadata.PluginData(plugin_name="scalars")
        return SummaryMetadata(summary_description=spec.help, plugin_data=plugin)

    def close(self, exit_code: int) -> None:
        """Writes what is left."""
        self._writer.close()
