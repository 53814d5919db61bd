"""Why no trajectory of a step counts: the commonest reason, with one example."""

from dataclasses import replace

import pytest

from squelch.cluster.control.nothing_counts import LONGEST, why_nothing_counts
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import FilterWindow
from squelch.kit.records.failures import Failure, FailureCause
from tests.kit.filter.summaries import summary

RAISED, LATE = FailureCause.AGENT_ERROR, FailureCause.EPISODE_TIMEOUT


def why(*groups: tuple[list[float], list[Failure]]) -> str:
    """The text for a step of groups with these returns and failures."""
    window, played = FilterWindow(FilterConfig()), []
    for number, (returns, failures) in enumerate(groups):
        found = summary(returns, group_id=f"000001-{number:03d}")
        played.append(replace(found, step=1, group_size=len(returns) + len(failures), failures=tuple(failures)))
        window.admit(played[-1])
    return why_nothing_counts(window.close(1, True, len(groups)), played)


def test_a_step_of_which_a_group_counts_has_no_such_reason() -> None:
    failed = [Failure(RAISED, "boom")]
    assert why(([], failed * 4), ([0.0, 0.0], failed * 2)) == "", "equal rewards count, and have no variance"
    assert why(([], failed * 4), ([0.0, 1.0], [])) == ""


def test_the_commonest_reason_is_that_of_most_failures_whatever_numbers_it_names() -> None:
    refused = [Failure(RAISED, f"no connection to port {port}") for port in (5432, 5433, 5434)]
    others = [Failure(LATE, "it still ran"), Failure(RAISED, "boom"), Failure(RAISED, "boom")]
    found = why(([], others), ([1.0], refused))
    assert found == ("no group counts: 6 of 7 trajectories failed, 3 of them: agent_error: no connection to port 5432")
    assert why(([], refused)) == (
        "no group counts: 3 of 3 trajectories failed, all of them: agent_error: no connection to port 5432"
    )


def test_a_long_example_is_cut() -> None:
    found = why(([], [Failure(RAISED, "x" * 9000)]))
    assert found.endswith("x ...") and len(found) < LONGEST + 100


@pytest.mark.parametrize("returns", [[float("nan"), 1.0], [1.0]])
def test_without_a_failure_the_filters_own_reason_is_told(returns: list[float]) -> None:
    found = why((returns, []), (returns, []))
    assert found.startswith("no group counts: 2 of 2 are refused (") and found.endswith(")")
