"""Overlapped steps on two rollout workers and two environment actors; actors killed on purpose do not stop the run.

Such a run is not repeated token for token; what was learned from what was archived is, to the bit."""

import signal

import psutil
import pytest

from actors.archive.reader import read_events, read_metrics
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, children, small_run, summary

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]


def named(run: Run, part: str) -> list[psutil.Process]:
    """Processes of the run whose title holds `part` (Ray titles a worker by its actor's class)."""
    return [p for p in children(run.process.pid) if any(part in word for word in p.cmdline())]


def test_staleness_stays_within_its_bound_and_dead_actors_are_replaced(tiny_policy, tmp_path):
    words = small_run(
        tmp_path,
        tiny_policy,
        "faults",
        "loop.steps=8",
        "loop.max_staleness=2",
        "rollout.count=2",
        "rollout.num_cpus=0.25",
        "environment_actor.count=2",
        "validation.every=0",
        "scorer.every=1",
        "scorer.max_pairs=64",
        "loop.checkpoint_every=4",
    )
    run = Run(*words, timeout_s=400)
    run.until(lambda line: line.startswith("step    1/8"))
    for victim, step in (("EnvironmentActor", 2), ("RolloutWorker", 4), ("FilterService", 5), ("ScorerActor", 6)):
        found = named(run, victim)
        assert found, f"no process titled {victim}"
        found[0].send_signal(signal.SIGKILL)
        run.until(lambda line, step=step: line.startswith(f"step    {step}/8"))
    assert run.finish() == 0, run.text
    metrics = [m for m in read_metrics(tmp_path / "faults") if m["step"] > 0]
    staleness = [m["staleness_max"] for m in metrics]
    assert len(staleness) == 8 and max(staleness) <= 2
    assert max(staleness) >= 1, "steps never overlapped: the bound was not put to the test"
    assert summary(tmp_path, "faults")["ledger"]["balanced"]
    restarted = {e["actor"] for e in read_events(tmp_path / "faults") if e["name"] == "restart"}
    assert {"filter", "scorer"} <= restarted and any(name.startswith("env-") for name in restarted)
    assert any(name.startswith("rollout-") for name in restarted)
    assert sum(m.get("scorer/failed", 0) for m in metrics) >= 1 and sum(m.get("scorer/done", 0) for m in metrics) >= 1
    scored = [m for m in metrics if m.get("trajectory/mi_est") is not None]
    assert scored and all(0 < m["trajectory/pairs_ratio"] < 1 for m in scored), "32 draws exceed the budget"
    assert_replays(tmp_path / "faults", tiny_policy, 5, 8, tmp_path)
