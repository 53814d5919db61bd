"""Metrics of the calls of agents. Pure. Names of unknown fields are bounded where they are counted (`server`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.actors.metrics.specification import MetricSpec, Section, Table, product

if TYPE_CHECKING:
    from squelch.actors.records import GroupSummary

OUTCOMES = {"calls": "sampled", "retries": "retried", "refused": "refused"}

METRICS: Table = {
    Section.HEALTH: (
        MetricSpec(
            "squelch_agent_calls_total",
            "counter",
            "Calls of agents: sampled, retries that got an earlier answer, and refused",
            labels=("outcome",),
            seeds=product(OUTCOMES.values()),
            keys={f"agents/{name}": (outcome,) for name, outcome in OUTCOMES.items()},
        ),
        MetricSpec(
            "squelch_agent_fields_total",
            "counter",
            "Calls of agents with a field that was taken otherwise than asked, or is not known",
            "agents/{treatment}/{field}",
            ("treatment", "field"),
            open=True,
        ),
    ),
}


def agent_metrics(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Counts of a step's calls by flat key; empty in a run without agents."""
    counts = Counter[str]()
    for summary in summaries:
        counts.update(dict(summary.endpoint_counts))
    return {f"agents/{name}": float(counts[name]) for name in sorted(counts)}
