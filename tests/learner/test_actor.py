"""The learner's ranks on a real Ray."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import ray

from squelch.actors.archive.rows import packed, to_table
from squelch.actors.records import Group, Task, Ticket
from squelch.actors.weights import checksum
from squelch.cluster.fleet import local_ray
from squelch.cluster.fleet.bootstrap import PREPARED
from squelch.learner.actor import LearnerGroup, RankLost
from squelch.learner.config import LearnerConfig
from tests.exposure import exposed, sockets
from tests.learner.models import make_config, make_groups

pytestmark = pytest.mark.ray

IDS = [group_id for group_id, _ in make_groups()]


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Started in a folder of files that have the names of modules, as a download may have: no rank runs their code."""
    folder = tmp_path_factory.mktemp("downloaded")
    for module in ("squelch", "numpy", "torch"):
        (folder / f"{module}.py").write_text("raise ImportError('code of a stranger')")
    with chdir(folder):
        local_ray.start(4, 100 << 20, PREPARED, log_to_driver=False)
    yield folder
    local_ray.stop()


def config_of(**changes: object) -> LearnerConfig:
    return make_config(**{"num_threads": 1, "num_cpus": 0.5, "step_timeout_s": 60.0, **changes})


def tables() -> list[pa.Table]:
    return [
        to_table(Group(Ticket(group_id, 1, Task("X", 0), len(members), 0), "key", members))
        for group_id, members in make_groups()
    ]


def test_two_ranks_train_publish_save_and_name_what_fails(cluster: Path, model_dir: Path, tmp_path: Path) -> None:
    """One life of a group of two ranks: starting one costs seconds, so the whole of it is one test."""
    group = LearnerGroup(model_dir, config_of(ranks=2))
    group.start()
    refs = [ray.put(packed(table)) for table in tables()]
    report = group.train_step(1, refs, IDS, 0.9)
    ranks = sockets(psutil.Process(pid) for pid in group.pids)
    assert len(ranks) > 4 and not exposed(ranks), "gloo, the store of the ranks, and Ray's own"
    assert report.updated and report.num_trajectories == 18 and report.seconds["fetch"] > 0
    progress = group.progress(10.0)
    assert all(rank.marks >= report.optimizer_steps and rank.median_s > 0 for rank in progress)
    bundle = group.publish(1)
    chunks = [ray.get(chunk) for chunk in bundle.chunks]
    assert checksum((n, a) for chunk in chunks for n, a in chunk.items()) == bundle.checksum
    for step in (1, 2):
        group.save(tmp_path / f"step-{step}", {"step": step})
    assert group.load(tmp_path / "step-2") == {"step": 2} and group.optimizer_steps() == report.optimizer_steps
    group.export("exported")
    assert (cluster / "exported" / "model.safetensors").is_file(), "a path is relative to where the run was started"
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        group.load(tmp_path / "step-3")
    os.kill(group.pids[1], signal.SIGKILL)
    ended, _ = ray.wait(group.lives, timeout=10.0)
    assert ended == [group.lives[1]], "the death is told without a call"
    with pytest.raises(RankLost, match="learner rank 1 died in train_step") as lost:
        group.train_step(2, refs, IDS, 0.9)
    assert lost.value.died
    with pytest.raises(RankLost, match="learner rank 1 died"):
        group.progress(10.0)
    group.stop()


def test_a_late_rank_is_named_and_the_wait_is_bounded(model_dir: Path) -> None:
    group = LearnerGroup(model_dir, config_of(step_timeout_s=2.0))
    group.start()
    assert [rank.marks for rank in group.progress(10.0)] == [0]
    os.kill(group.pids[0], signal.SIGSTOP)
    assert group.progress(0.2) == [None]
    with pytest.raises(TimeoutError, match=r"learner rank 0 did not finish publish within 2\.0 s"):
        group.publish(1)
    group.kill()
    for _ in range(100):
        if not os.path.exists(f"/proc/{group.pids[0]}"):
            break
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{group.pids[0]}"), "a frozen process is ended too"
    group.stop()
