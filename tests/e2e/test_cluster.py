"""The same command on a cluster that is already up, and as a Ray job, with token authentication."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.support import Run, small_run, summary
from tests.prometheus import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
RAY = str(Path(sys.executable).with_name("ray"))
TINY = ("loop.steps=1", "validation.every=0", "scorer.enabled=false")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A `ray start --head` with a token of its own; yields (address, dashboard address, environment)."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("squelch-test-token-0123456789abcdef")
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    port, dashboard = free_port(), free_port()
    command = [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=4"]
    command += [f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", "--object-store-memory=200000000"]
    command += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    path = {"PATH": f"{Path(RAY).parent}:{os.environ['PATH']}"}
    head = subprocess.Popen(command, env={**os.environ, **env, **path}, stdout=subprocess.DEVNULL)
    try:
        until(lambda: head.poll() is None and answers(dashboard), "the cluster's dashboard answers", timeout_s=90)
        yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", env
    finally:
        family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        head.terminate()
        for process in psutil.wait_procs(family, timeout=20)[1]:
            process.kill()


def answers(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_train_joins_a_cluster_that_is_up(cluster, tiny_policy, tmp_path):
    address, _, env = cluster
    settings = ("learner.ranks=2", "learner.num_cpus=0.5", "environment_actor.count=2")
    run = Run(*small_run(tmp_path, tiny_policy, "joined", *TINY, *settings), "--address", address, env=env)
    assert run.finish() == 0, run.text
    assert f"joined the Ray cluster at {address}" in run.text
    assert summary(tmp_path, "joined")["ledger"]["balanced"]


def test_a_job_is_submitted_followed_and_told_of(cluster, tiny_policy, tmp_path):
    _, dashboard, env = cluster
    words = small_run(tmp_path, tiny_policy, "job", *TINY)
    run = Run("submit", *words[1:], "--address", dashboard, env=env, timeout_s=300)
    assert run.finish() == 0, run.text
    assert "step    1/1" in run.text and "SUCCEEDED" in run.lines[-1]
    job_id = re.search(r"submitted (\S+);", run.text)[1]
    status = Run("job", "status", job_id, "--address", dashboard, env=env)
    assert status.finish() == 0 and "SUCCEEDED" in status.text
    assert summary(tmp_path, "job")["finished"]


def test_a_job_is_stopped(cluster, tiny_policy, tmp_path):
    _, dashboard, env = cluster
    words = small_run(tmp_path, tiny_policy, "stopped-job", *TINY, "loop.steps=500")
    run = Run("submit", *words[1:], "--address", dashboard, env=env, timeout_s=300)
    job_id = re.search(r"submitted (\S+);", run.until(lambda line: line.startswith("submitted")))[1]
    run.until(lambda line: line.startswith("step    1/500"))
    stop = Run("job", "stop", job_id, "--address", dashboard, env=env)
    assert stop.finish() == 0 and "asked to stop" in stop.text
    assert run.finish() == 1 and "STOPPED" in run.lines[-1]


def test_a_wrong_token_or_a_silent_address_is_said_in_one_paragraph(cluster, tmp_path):
    _, dashboard, env = cluster
    wrong = Run(
        "submit",
        "frozenlake",
        f"runs_dir={tmp_path}",
        "--address",
        dashboard,
        env={**env, "RAY_AUTH_TOKEN": "not-the-token" * 3},
    )
    assert wrong.finish() == 2 and "RAY_AUTH" in wrong.text and "Traceback" not in wrong.text
    relative = Run("submit", "frozenlake", "--address", dashboard, env=env)
    assert relative.finish() == 2 and "runs_dir" in relative.text
    silent = Run(
        "submit", "frozenlake", f"runs_dir={tmp_path}", "--address", f"http://127.0.0.1:{free_port()}", env=env
    )
    assert silent.finish() == 2 and "Traceback" not in silent.text
    nowhere = Run("train", "frozenlake", f"runs_dir={tmp_path}", "--address", f"127.0.0.1:{free_port()}", env=env)
    assert nowhere.finish() == 2 and "cluster.address" in nowhere.text
