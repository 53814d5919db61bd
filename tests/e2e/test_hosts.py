"""A run on three hosts: learner ranks on two of them, neither of which sees the driver's disk.

One boot for all of it: hosts that do not reach each other, a run whose host is cut off, its resumption to the end. The
run is DAPO's, which replaces groups without variance."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.kit.archive.reader import read_events, read_groups
from tests.e2e.hosts import ADDRESS, DRIVER, Hosts, hosts, need_namespaces
from tests.e2e.replay import assert_replays
from tests.e2e.support import REPOSITORY, Run, small_run, steps, summary, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
NAMED_WITHIN_S = 90.0
STEPS = 3
PLACES = [
    "learner.ranks=2",
    "learner.placement=spread",
    "learner.label_selector={role: far}",
    "rollout.label_selector={host: a}",
    "cluster.start_timeout_s=240",
    f"cluster.address='{ADDRESS}'",
]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path) -> Iterator[Hosts]:
    """The driver's host, `a` and `b`; on the latter, all folders of the tests and of their caches are empty."""
    need_namespaces()
    cache = tmp_path_factory.mktemp("cache")
    hidden = [tmp_path_factory.getbasetemp(), tiny_policy.parent]
    labels = {name: {"role": "far", "host": name} for name in ("a", "b")}
    short = Path(tempfile.mkdtemp(prefix="sqh-", dir="/tmp"))
    with hosts(short, tmp_path_factory.mktemp("hosts"), hidden, labels) as found:
        found.env["SQUELCH_CACHE"] = str(cache)
        for host in [found.driver, *found.others]:
            found.start(host, "--num-cpus=2")
        yield found


def run_on(three: Hosts, folder: Path, model: Path, *words: str) -> Run:
    command = small_run(folder, model, "hosts", f"loop.steps={STEPS}", "loop.checkpoint_every=1", *PLACES)
    dapo = ["learner.algorithm=dapo", "filter.rho=1.0", "filter.max_refill_rounds=2"]
    extra = ["validation.every=0", "scorer.enabled=false", "cluster.max_restarts=0", *words]
    return Run(*command, *dapo, *extra, env=three.env, prefix=three.command(), timeout_s=400)


def test_ranks_that_reach_the_driver_but_not_each_other_are_named_with_both_addresses(three, tiny_policy):
    words = [sys.executable, "-m", "tests.e2e.learner_start", str(tiny_policy), *PLACES, "scorer.enabled=false"]
    three.isolate(True)
    try:
        found = subprocess.run(
            three.command(*words),
            env={**os.environ, **three.env},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        three.isolate(False)
    pair = r"learner rank \d on (10\.77\.0\.[23]) cannot be reached from rank \d on (10\.77\.0\.[23])"
    named = re.findall(pair, found.stdout)
    assert sorted(named) == [("10.77.0.2", "10.77.0.3"), ("10.77.0.3", "10.77.0.2")], found.stdout + found.stderr


def test_a_run_on_three_hosts_outlives_a_cut_and_ends_right(three, tiny_policy, tmp_path):
    a, b = three.others
    assert not any(host.sees(place) for host in (a, b) for place in (tiny_policy, tmp_path)), "the disk is not shared"
    run = run_on(three, tmp_path, tiny_policy)
    run.until(lambda line: line.startswith(f"step    2/{STEPS}"))
    assert {"LearnerRank", "RolloutWorker", "EnvironmentActor"} <= a.actors(), (
        "the environment actor is near the worker"
    )
    assert "LearnerRank" in b.actors() and not {"RolloutWorker", "EnvironmentActor"} & b.actors()
    assert "FilterService" in three.driver.actors() and "LearnerRank" not in three.driver.actors()
    assert all(len(host.files(f"{three.env['SQUELCH_CACHE']}/folders/tiny-*[0-9a-f]")) == 1 for host in (a, b))

    lost = b.processes()
    three.cut(b)
    cut = time.monotonic()
    line = run.until(lambda line: line.startswith("failed: ") and "learner rank" in line)
    assert time.monotonic() - cut < NAMED_WITHIN_S
    assert re.search(rf"learner rank \d.* \(on {b.address}, called from {DRIVER}\)", line), line
    assert run.finish() == 1 and "continue with --resume" in run.text
    b.end()
    assert not wait_gone(lost)
    three.cut(b, down=False)
    three.start(b, "--num-cpus=2")

    (newest, folder) = checkpoints(tmp_path / "hosts")[-1]
    assert newest >= 1 and len(list((folder / "sharded").iterdir())) >= 2, "the shards of both ranks are here"
    run = run_on(three, tmp_path, tiny_policy, "--resume")
    assert f"after step {newest}" in run.until(lambda line: line.startswith("resumed from"))
    assert run.finish() == 0, run.text
    found = summary(tmp_path / "hosts")
    assert found["finished"] and found["ledger"]["balanced"] and len(steps(tmp_path / "hosts")) == STEPS
    assert checkpoints(tmp_path / "hosts")[-1][0] == STEPS
    assert not any(host.files(f"{three.env['SQUELCH_CACHE']}/staging/*") for host in (a, b)), "nothing is left staged"
    recovered = [event for event in read_events(tmp_path / "hosts") if event["name"] == "recovered"]
    assert not recovered, "cluster.max_restarts=0 refuses the learner's restart, and the resumed run needed none"
    assert_replaces_groups_without_variance(tmp_path / "hosts")
    assert_replays(tmp_path / "hosts", tiny_policy, 1, STEPS, tmp_path)
    shutil.rmtree(tmp_path / "hosts")


def assert_replaces_groups_without_variance(run_dir: Path) -> None:
    rows = read_groups(run_dir, columns=["decision", "score", "task_seed"])
    kept = rows.filter(pc.equal(rows["decision"], "kept"))
    assert len(kept) and pc.min(kept["score"]).as_py() > 0
    tasks = set(rows.column("task_seed").to_pylist())
    assert tasks > set(range(4 * STEPS)), "a refill goes on where the steps' own tasks end"
    metrics = steps(run_dir)
    assert max(m["refill_rounds"] for m in metrics) > 0, "twelve groups and not a silent one: not this policy"
    assert all(m["kept_groups"] <= 4 and m["loss_scale"] == 1 for m in metrics)
