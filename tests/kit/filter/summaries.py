"""Summaries of groups, for tests."""

from collections.abc import Sequence

import numpy as np

from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import GroupSummary


def summary(
    rewards: Sequence[float], group_id: str = "000003-001", penalties: Sequence[float] | None = None
) -> GroupSummary:
    """A group of step 3; a NaN reward marks a failed trajectory."""
    row = np.array(rewards, dtype=np.float64)
    alive = np.flatnonzero(~np.isnan(row))
    returns, given = row[alive], np.zeros(len(row)) if penalties is None else np.array(penalties, dtype=np.float64)
    return GroupSummary(
        group_id=group_id,
        step=3,
        environment="E",
        task_key="k",
        group_size=len(row),
        indices=tuple(alive.tolist()),
        returns=returns,
        format_penalties=given[alive],
        lengths=np.full(len(alive), 7),
        surprisals=np.full(len(alive), 0.5),
        successes=returns > 0,
        truncations=returns > 9,
        format_valid_turns=1,
        num_turns=1,
        num_tokens=1,
        reasoning_tokens=1,
        turns=(1,) * len(alive),
        version_min=0,
        version_max=0,
        failures=(Failure(FailureCause.GENERATION_TIMEOUT),) * (len(row) - len(alive)),
    )
