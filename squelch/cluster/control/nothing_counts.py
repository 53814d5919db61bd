"""Says why no trajectory of a step counts. Pure.

A group counts if the filter kept or dropped it. It refuses one with too few trajectories that ended without a failure,
and one whose rewards are no numbers; a step of such groups alone teaches nothing, whatever the policy does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from squelch.kit.filter.decisions import StepDecision
from squelch.kit.records.failures import Failure
from squelch.kit.records.records import GroupSummary

_NUMBER = re.compile(r"\d+")
LONGEST = 500
"""Characters of the example that are told."""


def why_nothing_counts(decision: StepDecision, played: Sequence[GroupSummary]) -> str:
    """The commonest reason why trajectories of a step failed, with one example; empty if a group counts. `played`: the
    step's groups. Where none failed, the filter's commonest reason for refusing a group."""
    if decision.kept or decision.dropped or not decision.refused:
        return ""
    failed = [failure for summary in played for failure in summary.failures]
    if not failed:
        reason, count = Counter(one.reason for one in decision.refused).most_common(1)[0]
        return f"no group counts: {count} of {len(decision.refused)} are refused ({reason})"
    kinds = Counter(map(_kind, failed))
    kind, count = kinds.most_common(1)[0]
    example = next(failure for failure in failed if _kind(failure) == kind)
    size = sum(summary.group_size for summary in played)
    alike = f"all of them: {_told(example)}" if count == len(failed) else f"{count} of them: {_told(example)}"
    return f"no group counts: {len(failed)} of {size} trajectories failed, {alike}"


def _kind(failure: Failure) -> tuple[str, str]:
    """Equal for failures that differ in numbers alone."""
    return str(failure.cause), _NUMBER.sub("#", failure.detail)


def _told(failure: Failure) -> str:
    text = str(failure)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
