"""Metric with the version of Squelch and of Python that serves the metrics. Pure."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from actors.metrics.specification import MetricSpec, Section, Table

METRICS: Table = {
    Section.HEALTH: (
        MetricSpec(
            "squelch_build_info", "gauge", "Always 1; the labels say what runs", labels=("version", "python"), open=True
        ),
    ),
}


def build_labels() -> dict[str, str]:
    """The labels of `squelch_build_info` for this process."""
    return {"version": _version(), "python": platform.python_version()}


def _version() -> str:
    try:
        return version("squelch")
    except PackageNotFoundError:  # run from a source tree that is not installed, as on a Ray worker
        return "source"
