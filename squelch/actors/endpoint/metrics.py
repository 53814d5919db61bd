"""Metrics of the calls of agents. Pure. Names of unknown fields are bounded where they are counted (`server`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.kit.metrics.declared import declared

if TYPE_CHECKING:
    from squelch.kit.records.records import GroupSummary

METRICS = declared(__file__)


def agent_metrics(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Counts of a step's calls by flat key; empty in a run without agents."""
    counts = Counter[str]()
    for summary in summaries:
        counts.update(dict(summary.endpoint_counts))
    return {f"agents/{name}": float(counts[name]) for name in sorted(counts)}
