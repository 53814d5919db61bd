"""What the benchmark of the scorer's cost makes of its runs."""

import pytest

from benchmarks.scorer_share import EVERY, WARM_UP, Run, order_of, summary


def run(
    arm: str, seconds: float, scorer_cpu: float, skipped: float = 0.0, tokens: int = 7, outcome: str = "done"
) -> Run:
    """Steps of so many seconds each after a warm-up of 50 s a step."""
    parts = ("step", "train", "rollout")
    metrics = [
        {f"seconds/{part}": seconds if step > WARM_UP else 50.0 for part in parts}
        | {"step": step, "tokens/sampled": tokens + step}
        | ({f"scorer/{outcome}": 1.0, "scorer/cpu_seconds": scorer_cpu} if arm == "on" and step in (2, 6) else {})
        | ({"scorer/skipped": skipped} if step == 5 else {})
        for step in range(1, WARM_UP + EVERY + 1)
    ]
    return Run(arm, metrics, {"learner": 10.0 - scorer_cpu} | ({"scorer": scorer_cpu} if arm == "on" else {}))


def test_arms_take_turns_and_neither_always_comes_first() -> None:
    assert order_of(3) == ["on", "off", "off", "on", "on", "off"]


def test_shares_and_ratios_are_of_the_measured_steps() -> None:
    found = summary([run("on", 1.05, 0.5), run("off", 1.0, 0.0), run("off", 1.0, 0.0), run("on", 1.05, 1.0)])
    assert found["scorer_cpu_share"] == pytest.approx(0.075)
    assert found["seconds"]["step"]["ratio"] == pytest.approx(1.05)
    assert found["outcomes"]["done"] == 4 and found["steps"] == 2 * EVERY
    assert found["same_work"] and found["reached"]


@pytest.mark.parametrize(
    "on", [run("on", 1.2, 0.5), run("on", 1.05, 1.5), run("on", 1.05, 0.5, skipped=1.0)], ids=["time", "cpu", "skipped"]
)
def test_each_of_the_three_bounds_can_be_missed(on: Run) -> None:
    assert not summary([on, run("off", 1.0, 0.0)])["reached"]


def test_a_scorer_that_only_fails_costs_nothing_and_reaches_nothing() -> None:
    assert not summary([run("on", 1.0, 0.0, outcome="failed"), run("off", 1.0, 0.0)])["reached"]


def test_runs_that_did_other_work_are_told() -> None:
    found = summary([run("on", 1.0, 0.5), run("off", 1.0, 0.0, tokens=8)])
    assert not found["same_work"] and not found["reached"]


def test_the_probes_share_is_of_a_run_that_reads_it_every_25_steps() -> None:
    one = run("on", 1.0, 0.5)
    assert summary([one, run("off", 1.0, 0.0)])["probe_cpu_share"] is None
    last = one.metrics[-1]
    last |= {"probe/step": last["step"], "probe/cpu_seconds": 4.0, "seconds/probe": 5.0}
    found = summary([one, run("off", 1.0, 0.0)])
    reading = 4.0 + 5.0 * 10.0 / (EVERY + 5.0)  # ten CPU seconds in ten seconds: a load of 1
    assert found["probe_cpu_share"] == pytest.approx(reading / (reading + 25 * (10.0 - reading) / EVERY))
    assert not found["reached"], "one reading of 9 CPU seconds to steps of 0.2"
