"""On a cluster that is already up, with token authentication: a job, and a run that joins it. Runs whose parts are
killed: tests/e2e/test_faults.py."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from squelch.kit.archive.bucket import open_store
from squelch.kit.archive.reader import read_events, read_index
from tests.e2e.support import Run, actors, small_run, steps, summary, wait_gone
from tests.prometheus import until
from tests.stores import SECRET, s3_server, tree

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
RAY = str(Path(sys.executable).with_name("ray"))
ACTORS = ("EnvironmentActor", "RolloutWorker", "FilterService", "ScorerActor", "LearnerRank")


@dataclass(frozen=True)
class Cluster:
    """A `ray start --head` with a token of its own."""

    address: str
    dashboard: str
    env: dict[str, str]
    pid: int

    def actors(self, *kinds: str) -> list[psutil.Process]:
        """Processes of these actors."""
        return actors(self.pid, *kinds)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("squelch-test-token-0123456789abcdef")
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    port, dashboard = free_port(), free_port()
    command = [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=4"]
    command += [f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", "--object-store-memory=200000000"]
    command += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    path = {"PATH": "/usr/bin:/bin"}  # without the environment that Ray runs in: a job finds that one by itself
    head = subprocess.Popen(command, env={**os.environ, **env, **path}, stdout=subprocess.DEVNULL)
    try:
        until(lambda: head.poll() is None and answers(dashboard), "the cluster's dashboard answers", timeout_s=90)
        yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", env, head.pid)
    finally:
        family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        head.terminate()
        for process in psutil.wait_procs(family, timeout=180)[1]:
            process.kill()


def answers(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_job_is_followed_and_stopped_and_its_run_goes_on_elsewhere_from_its_store(cluster, tiny_policy, tmp_path):
    """The job's recipe is a file that only the client has; the second driver's disk is empty."""
    recipe, here = tmp_path / "mine.yaml", ("--address", cluster.dashboard)
    recipe.write_text("extends: frozenlake\nvalidation: {every: 0}\nscorer: {enabled: false}\n")
    with s3_server() as server:
        env, place = {**cluster.env, **server.env}, f"{server.url}/runs"
        stored = (f"store={place}", "upload.every_s=1", "upload.lease_s=3")
        (_, _, *words) = small_run(tmp_path / "a", tiny_policy, "job", "loop.steps=500", "validation.every=0", *stored)
        forwarded = [word for name in server.env for word in ("--env", name)]
        run = Run("submit", str(recipe), *words, *here, *forwarded, env=env, timeout_s=500)
        job_id = re.search(r"submitted (\S+);", run.until(lambda line: line.startswith("submitted")))[1]
        settings = recipe.read_text()
        recipe.unlink()
        run.until(lambda line: line.startswith("step    2/500"))
        status = Run("job", "status", job_id, *here, env=cluster.env)
        assert status.finish() == 0 and "RUNNING" in status.text
        assert_scales(tmp_path / "a/job", cluster)
        started = cluster.actors(*ACTORS)
        stop = Run("job", "stop", job_id, *here, env=cluster.env)
        assert stop.finish() == 0 and "asked to stop" in stop.text
        assert run.finish() == 1 and "STOPPED" in run.lines[-1]
        assert started and not wait_gone(started)
        done = int(re.search(r"stopped by SIGTERM after step (\d+); continue with --resume", run.text)[1])
        recipe.write_text(settings)
        words = [word.replace(str(tmp_path / "a"), str(tmp_path / "b")) for word in words]
        words = [*words, f"loop.steps={done + 1}", "--resume", "--address", cluster.address]
        second = Run("train", str(recipe), *words, env=env, timeout_s=500)
        second.until(lambda line: line.startswith("ready after"))
        here_too = cluster.actors(*ACTORS)
        assert second.finish() == 0, second.text
        assert f"joined the Ray cluster at {cluster.address}" in second.text
        assert here_too and not wait_gone(here_too), "the cluster goes on, and nothing of the run is left on it"
        assert f"restored {tmp_path / 'b/job'} from {place}/job" in second.text
        assert f"resumed from {tmp_path / 'b/job'}/checkpoints/step-{done} after step {done}" in second.text
        first, last = tree(tmp_path / "a/job"), tree(tmp_path / "b/job")
        early = [f"groups/step-{step:06d}.parquet" for step in range(1, done + 1)]
        assert [first[key] for key in early] == [last[key] for key in early]
        assert [m["step"] for m in steps(tmp_path / "b/job")] == list(range(1, done + 2))
        assert summary(tmp_path / "b/job")["ledger"]["balanced"]
        assert any(e["actor"] == "store" and e["name"] == "upload" for e in read_events(tmp_path / "b/job"))
        loaded = [e for run_dir in (tmp_path / "a/job", tmp_path / "b/job") for e in weights_events(run_dir)]
        assert len({(e["version"], e["checksum"]) for e in loaded}) == len({e["version"] for e in loaded})
        assert loaded and all(set(e["ways"]) == {"shared_memory"} for e in loaded), (
            "learner and workers share this host"
        )
        shown = Run("status", f"{place}/job", env=server.env)
        assert shown.finish() == 0 and f"{done + 1}/{done + 1}" in shown.text
        without_mode = {name: value for name, value in cluster.env.items() if name != "RAY_AUTH_MODE"}
        listed = Run("job", "list", *here, env=without_mode)  # as in a shell in which `ray start` was called
        assert listed.finish() == 0 and job_id in listed.text and "STOPPED" in listed.text
        with patch.dict(os.environ, server.env):
            bucket = open_store(place)
            kept = {key: bucket.get(key).read() for key in bucket.list()}
    sent = [*kept.values(), *first.values(), *last.values(), run.text.encode(), second.text.encode()]
    assert len(kept) > 10 and not any(SECRET.encode() in data for data in sent), "the store's key is nowhere"


def weights_events(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(run_dir) if (event["actor"], event["name"]) == ("rollout", "weights")]


def assert_scales(run_dir: Path, cluster: Cluster) -> None:
    """The run goes from 1 to 2 to 1 rollout workers, and refuses what it must. A wrong token is refused by Ray."""

    def scale(count: int, env: dict[str, str]) -> Run:
        return Run("scale", str(run_dir), "--rollout-workers", str(count), "--address", cluster.address, env=env)

    def reported(name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(run_dir) if (event["actor"], event["name"]) == ("rollout-1", name)]

    wrong = scale(2, {**cluster.env, "RAY_AUTH_TOKEN": "not-the-token" * 3})
    more, none = scale(2, cluster.env), scale(0, cluster.env)
    assert more.finish() == 0 and "rollout workers: 1 -> 2" in more.text
    assert none.finish() == 2 and "0 rollout workers are fewer than rollout.min_count=1" in none.text
    until(lambda: reported("joined"), "the new worker", timeout_s=240)
    until(lambda: "rollout-1" in read_index(run_dir)["worker"].to_pylist(), "its first group", timeout_s=240)
    fewer = scale(1, cluster.env)
    assert fewer.finish() == 0 and "rollout workers: 2 -> 1" in fewer.text
    until(lambda: reported("left"), "its end", timeout_s=240)
    assert wrong.finish() == 2 and "RAY_AUTH_TOKEN" in wrong.text and "Traceback" not in wrong.text


def test_a_wrong_or_missing_token_or_a_closed_address_is_said_in_one_paragraph(cluster, tmp_path):
    """The commands only start to fail, so all of them do it at once."""
    forged = {**cluster.env, "RAY_AUTH_TOKEN": "not-the-token" * 3}
    missing = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}
    asked = (
        ("RAY_AUTH", forged, cluster.dashboard),
        ("RAY_AUTH", missing, cluster.dashboard),
        ("", cluster.env, f"http://127.0.0.1:{free_port()}"),
    )
    runs = [
        Run("submit", "frozenlake", f"runs_dir={tmp_path}", "--address", address, env=env) for _, env, address in asked
    ]
    for (said, *_), run in zip(asked, runs, strict=True):
        assert run.finish() == 2 and said in run.text and "Traceback" not in run.text, run.text
