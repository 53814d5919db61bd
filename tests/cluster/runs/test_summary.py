"""What a run's summary says of its success."""

from types import SimpleNamespace

from cluster.runs.summary import _success


def line(step: int, success: float, gain: float) -> dict[str, float]:
    bounds = {"validation/success_low": success - 0.1, "validation/success_high": success + 0.1}
    gains = {"gain": gain, "gain_low": gain - 0.1, "gain_high": gain + 0.1}
    return {"validation/step": step, "validation/success": success} | bounds | gains


def test_a_gain_over_other_fixed_tasks_is_none_of_this_summary() -> None:
    """Found by a reviewer: "before" was of step 40, "after" of step 20, on the tasks before a change."""
    old = [line(10, 0.5, 0.1), line(20, 0.9, 0.4)]
    outcome = SimpleNamespace(first_validation={"step": 40, "solved": [1, 0, 0, 0]}, last={}, best=(0.25, 40))
    alone = _success(outcome, old)
    assert alone["before"]["step"] == 40 and "after" not in alone and "gain" not in alone
    both = _success(outcome, [*old, line(60, 0.5, 0.25)])
    assert both["after"]["step"] == 60 and both["gain"]["mean"] == 0.25
