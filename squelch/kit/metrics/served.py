"""A run's metrics at `/metrics`, whoever trains it: `squelch train`, TRL, or a trainer whose files are followed."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.settings import RecorderConfig


def serve(
    settings: RecorderConfig,
    registry: Registry,
    version: str,
    *,
    run: str,
    environment: str,
    filter: str,
    seeds: Mapping[str, Iterable[str]] | None = None,
) -> Recorder:
    """A recorder of the registry's metrics that listens, and says which run and what code they are of.

    Raises ValueError if it cannot listen.
    """
    recorder = Recorder(settings, registry, seeds=seeds)
    recorder.start()
    recorder.set("squelch_run_info", 1, run=run, environment=environment, filter=filter)
    recorder.set("squelch_run_ended", 0)
    recorder.set("squelch_build_info", 1, version=version, python=platform.python_version())
    return recorder
