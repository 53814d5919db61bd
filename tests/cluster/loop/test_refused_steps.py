"""Steps that the learner refuses: counted; after `learner.max_bad_steps` in a row the run ends and names the group."""

import asyncio

from cluster.config import load
from cluster.loop.coordinator import Coordinator


def coordinator(limit: int) -> tuple[Coordinator, list[str]]:
    """One that only counts: nothing of it is started."""
    found, said = object.__new__(Coordinator), []
    found.config = load("frozenlake", [f"learner.max_bad_steps={limit}"])
    found.bad_steps, found.stop_reason, found._stop, found.say = 0, None, asyncio.Event(), said.append
    return found, said


def test_refusals_in_a_row_end_the_run_and_name_the_group():
    found, said = coordinator(2)
    found._count_refusal(1, "non-finite loss in group 000001-002")
    assert found.stop_reason is None and "000001-002" in said[-1]
    found._count_refusal(2, "non-finite gradient in group 000002-005")
    assert "2 steps in a row refused" in found.stop_reason and "000002-005" in found.stop_reason


def test_a_step_that_trains_starts_the_count_again():
    found, _ = coordinator(2)
    for step, refused in enumerate(["non-finite loss in group a", None, "non-finite loss in group b", None]):
        found._count_refusal(step, refused)
    assert found.stop_reason is None and found.bad_steps == 0
