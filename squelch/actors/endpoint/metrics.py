"""Metrics of the calls of agents. Pure. Names of unknown fields are bounded where they are counted (`server`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.kit.metrics.specification import Section, Table, counter

if TYPE_CHECKING:
    from squelch.kit.records.records import GroupSummary

OUTCOMES = {"calls": "sampled", "retries": "retried", "refused": "refused"}

METRICS: Table = {
    Section.HEALTH: (
        counter(
            "squelch_agent_calls_total",
            {f"agents/{name}": (outcome,) for name, outcome in OUTCOMES.items()},
            "Calls of agents: sampled, retries that got an earlier answer, and refused",
            labels=("outcome",),
        ),
        counter(
            "squelch_agent_fields_total",
            "agents/{treatment}/{field}",
            "Calls of agents with a field that was taken otherwise than asked, or is not known",
        ),
    ),
}


def agent_metrics(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Counts of a step's calls by flat key; empty in a run without agents."""
    counts = Counter[str]()
    for summary in summaries:
        counts.update(dict(summary.endpoint_counts))
    return {f"agents/{name}": float(counts[name]) for name in sorted(counts)}
