"""The learner's ranks on a real Ray."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import ray

from squelch.actors.messages import StepTerms
from squelch.actors.weights import checksum
from squelch.cluster.config import load
from squelch.cluster.control.actor_errors import Died, Refused
from squelch.cluster.control.calls import EXPORT, LOAD, PUBLISH, SAVE, TRAIN_STEP, WRITE
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.fleet import local_ray
from squelch.cluster.fleet.bootstrap import PREPARED
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.kit.archive.rows import packed, to_table
from squelch.kit.records.records import Group, Task, Ticket
from squelch.learner.checkpoint.seal import seal
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


def learner_of(model_dir: Path, logs: Path, config: LearnerConfig) -> LearnerClient:
    run = load("frozenlake").model_copy(update={"learner": config})
    return RayActors(run, model_dir, logs).learner(config.ranks)


def test_two_ranks_train_publish_save_and_name_what_fails(cluster: Path, model_dir: Path, tmp_path: Path) -> None:
    """One life of a learner of two ranks: starting one costs seconds, so the whole of it is one test."""
    asyncio.run(life(learner_of(model_dir, tmp_path / "log", config_of(ranks=2)), tmp_path))


async def life(learner: LearnerClient, folder: Path) -> None:
    await learner.start()
    pids = [process.process_id for process in learner.processes]
    refs = [ray.put(packed(table)) for table in tables()]
    report = await learner.call(TRAIN_STEP, 1, refs, IDS, StepTerms(0.9))
    ranks = sockets(psutil.Process(pid) for pid in pids)
    assert len(ranks) > 4 and not exposed(ranks), "gloo, the store of the ranks, and Ray's own"
    assert report.updated and report.num_trajectories == 18 and report.seconds["fetch"] > 0
    progress = await learner.progress(10.0)
    assert all(rank.marks >= report.optimizer_steps and rank.median_s > 0 for rank in progress)
    bundle = await learner.call(PUBLISH, 1, "float32")
    chunks = [ray.get(chunk) for chunk in bundle.chunks]
    assert checksum((n, a) for chunk in chunks for n, a in chunk.items()) == bundle.checksum
    for step in (1, 2):
        parts = await learner.call(SAVE if step == 1 else WRITE, folder / f"step-{step}", {"step": step})
        assert ("seal" in parts) == (folder / f"step-{step}").exists() == (step == 1)
    seal(folder / "step-2")
    assert await learner.call(LOAD, folder / "step-2") == {"step": 2}
    again = await learner.call(TRAIN_STEP, 3, refs, IDS, StepTerms(0.9))
    assert again.updated, "a loaded checkpoint trains on"
    await learner.call(EXPORT, folder / "exported")
    assert (folder / "exported" / "model.safetensors").is_file()
    with pytest.raises(Refused, match="not a complete checkpoint"):
        await learner.call(LOAD, folder / "step-3")
    lost = asyncio.ensure_future(learner.lost())
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(Died, match="learner rank 1 died: "):
        await asyncio.wait_for(lost, 180.0)
    with pytest.raises(Died, match="learner rank 1 died in train_step"):
        await learner.call(TRAIN_STEP, 2, refs, IDS, StepTerms(0.9))
    with pytest.raises(Died, match="learner rank 1 died"):
        await learner.progress(10.0)
    await learner.stop()


def test_a_late_rank_is_named_and_the_wait_is_bounded(model_dir: Path, tmp_path: Path) -> None:
    asyncio.run(late(learner_of(model_dir, tmp_path / "log", config_of(step_timeout_s=2.0))))


async def late(learner: LearnerClient) -> None:
    await learner.start()
    (process,) = learner.processes
    assert [rank.marks for rank in await learner.progress(10.0)] == [0]
    os.kill(process.process_id, signal.SIGSTOP)
    assert await learner.progress(0.2) == [None]
    with pytest.raises(TimeoutError, match=r"learner rank 0 did not finish publish within 2 s"):
        await learner.call(PUBLISH, 1, "float32")
    learner.kill()
    for _ in range(100):
        if not os.path.exists(f"/proc/{process.process_id}"):
            break
        await asyncio.sleep(0.1)
    assert not os.path.exists(f"/proc/{process.process_id}"), "a frozen process is ended too"
    await learner.stop()
