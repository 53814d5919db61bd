"""The jobs of long-runs.md on Debian's Slurm with two nodes: what they start, how they end when they are told to, and
that the run goes on as if nothing had happened.

Skipped where Slurm is not installed, or no network namespaces can be made."""

import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hosts import need_namespaces
from tests.e2e.slurm import Slurm, need_slurm, slurm
from tests.e2e.support import REPOSITORY, STEPS, Finished, compared_run, steps, summary
from tests.e2e.test_stop_and_resume import assert_same_run
from tests.walk.pages import read_page

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1500)]
PAGE = REPOSITORY / "docs" / "guide" / "long-runs.md"
JOB_S = 600.0
NAME = "mine-42"
"""The run's name in the page's file."""
DRIVER = f"""#!{sys.executable}
import os, pathlib, sys, time
import ray

ray.init(address=sys.argv[sys.argv.index("--address") + 1], log_to_driver=False)
while len(nodes := [node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"]]) < 2:
    time.sleep(0.2)
pathlib.Path("up-" + os.environ["SLURM_JOB_ID"]).touch()
while len(list(pathlib.Path().glob("up-*"))) < 2:  # the other job's cluster is up as well
    time.sleep(0.2)
print("nodes with CPUs", *nodes, "token", os.environ["RAY_AUTH_TOKEN"], flush=True)
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Slurm]:
    need_slurm()
    need_namespaces()
    with slurm(Path(tempfile.mkdtemp(prefix="sqs-", dir="/tmp")), ["a", "b"]) as found:
        yield found


def job_file(two: Slurm, folder: Path, cpus: int, *run: str) -> Path:
    """The page's file for several nodes in a folder: with so many CPUs on each, and the words of another run."""
    changes = {
        "--gpus-per-node=4 --cpus-per-task=32 --mem=256G": f"--cpus-per-task={cpus} --mem=100M",
        "/tmp/ray.": f"{two.folder}/ray.",
        "maths-7b name=$name": shlex.join(run) or "frozenlake",
    }
    return _changed("srun", folder, changes)


def file_for_one_node(folder: Path, *run: str) -> Path:
    changes = {
        "--gres=gpu:1 --cpus-per-task=16 --mem=64G": "--cpus-per-task=2 --mem=100M",
        "smollm2-countdown name=$name": shlex.join(run),
    }
    return _changed("exec .venv", folder, changes)


def _changed(word: str, folder: Path, changes: dict[str, str]) -> Path:
    """The page's job with that word, without GPUs and with these changes, in a folder."""
    blocks = [block.text for block in read_page(PAGE.name, PAGE.read_text()).blocks]
    (text,) = [one for one in blocks if one.startswith("#!/bin/bash") and word in one]
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "job.sh").write_text(text)
    return folder / "job.sh"


def test_two_jobs_on_the_same_nodes_have_each_a_cluster_of_all_of_them(two: Slurm, tmp_path: Path) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ray").symlink_to(Path(sys.executable).with_name("ray"))
    (programs / "squelch").write_text(DRIVER)
    (programs / "squelch").chmod(0o755)
    file = job_file(two, tmp_path, 2)
    jobs = [two.submit(file) for _ in range(2)]
    for job in jobs:
        two.until(job, completed, JOB_S)
    said = [(tmp_path / f"{job}.out").read_text().partition("nodes with CPUs ")[2].splitlines()[0] for job in jobs]
    assert all(line.startswith("2.0 2.0 token ") for line in said) and said[0] != said[1], "each has a token of its own"


def test_a_job_that_is_told_to_stop_queues_itself_and_its_run_ends_as_one_that_nothing_interrupted(
    two: Slurm, tiny_policy: Path, tmp_path: Path, whole: Finished
) -> None:
    folder, words = run_in(tmp_path, tiny_policy)
    apart = ["learner.num_cpus=3", "rollout.num_cpus=3"]  # of a node's 4: no node has room for both
    job = two.submit(job_file(two, tmp_path, 4, *words, *apart))
    two.until(job, lambda found: trained(folder) >= 1, JOB_S)
    both, where = {"LearnerRank", "RolloutWorker"}, [host.actors() for host in two.hosts.others]
    assert both <= set.union(*where) and not any(both <= actors for actors in where)
    two.ask("scancel", "--batch", "--signal=TERM", job)
    assert two.until(job, lambda found: found["JobState"] == "PENDING", JOB_S)["Restarts"] == "1"
    before = assert_stopped(folder, tmp_path / f"{job}.out")
    two.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # instead of Slurm's two minutes
    two.until(job, completed, JOB_S)
    assert f"after step {before}" in (tmp_path / f"{job}.out").read_text().partition("resumed from")[2]
    assert_same_run(folder, whole.folder)


def test_a_job_on_one_node_that_is_told_to_stop_goes_on_when_it_is_submitted_again(
    two: Slurm, tiny_policy: Path, tmp_path: Path, whole: Finished
) -> None:
    folder, words = run_in(tmp_path, tiny_policy)
    file = file_for_one_node(tmp_path, *words)
    first = two.submit(file)
    two.until(first, lambda found: trained(folder) >= 1, JOB_S)
    two.ask("scancel", "--batch", "--signal=TERM", first)
    assert two.until(first, lambda found: found["JobState"] == "FAILED", JOB_S)["ExitCode"] == "143:0"
    before = assert_stopped(folder, tmp_path / f"{first}.out")
    second = two.submit(file)
    two.until(second, completed, JOB_S)
    assert f"after step {before}" in (tmp_path / f"{second}.out").read_text().partition("resumed from")[2]
    assert_same_run(folder, whole.folder)


def run_in(place: Path, model: Path) -> tuple[Path, list[str]]:
    """The folder of the run that a job begins in that place, and the words after `squelch train`."""
    (place / ".venv").symlink_to(sys.prefix)
    folder = place / "runs" / NAME
    return folder, compared_run(folder, model)[1:]


def assert_stopped(folder: Path, output: Path) -> int:
    """The step after which the run ended, whole, at SIGTERM."""
    found = summary(folder)
    assert "stopped by SIGTERM after step" in output.read_text()
    assert found["ledger"]["balanced"] and not found["finished"] and 1 <= found["steps"] < STEPS
    return found["steps"]


def completed(found: dict[str, str]) -> bool:
    return found["JobState"] == "COMPLETED"


def trained(folder: Path) -> int:
    """Steps of which there is a record."""
    return len(steps(folder)) if (folder / "metrics.jsonl").is_file() else 0
