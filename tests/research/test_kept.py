"""Condensed runs: what is derived from their content."""

from __future__ import annotations

from research.claims.statistics import Pool
from research.kept import Kept, carried, early_ends

STEPS = 20


def test_the_last_validation_of_a_run_without_signal_is_carried_to_its_planned_last_step():
    validated = {"step": [0], "validation/success": [0.25]}
    ended = Kept("n", "lead", "sokoban", "none", 0, 15, {"validated": validated}, {}, "no_signal", planned=STEPS)
    first = carried(ended)
    assert (first.steps, first.horizon) == (15, STEPS)
    assert first.series("validation/success") == {0: 0.25, STEPS: 0.25}
    (told,) = early_ends([first])
    assert "1 runs ended" in told and "after step 15 of 20, last validated at step 0, so not the policy" in told
    assert Pool([first]).arm("sokoban", "none", STEPS) == {0: first}
