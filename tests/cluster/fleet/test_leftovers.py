"""A killed run's processes and semaphores are ended by the next start, and nobody else's."""

import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from squelch.actors.process.preparation import SEMAPHORES
from squelch.cluster.fleet import local_ray
from squelch.cluster.fleet.leftovers import SHARED_MEMORY, end_processes, remove_semaphores


def sleeper(*words: str, file: str = "/x/ray/dashboard/agent.py") -> subprocess.Popen[bytes]:
    """A process that looks as if it ran a file of Ray's package."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", file, *words])


def test_processes_of_a_cluster_that_has_ended_are_ended_and_those_of_others_live(tmp_path: Path) -> None:
    agent = sleeper(f"--session-dir={tmp_path}/abc/session_1/x")
    others = [sleeper(f"--session-dir={tmp_path}/abcd/session_1"), sleeper(f"x{tmp_path}/abc/session_1")]
    others.append(sleeper(f"{tmp_path}/abc/session_1/logs/raylet.out", file="-f"))
    try:
        assert end_processes(tmp_path / "abc") == [agent.pid]
        assert not psutil.pid_exists(agent.pid) and all(other.poll() is None for other in others)
    finally:
        for process in (agent, *others):
            process.kill()
            process.wait(180)


TITLED = """
import sys, time
from setproctitle import setproctitle
log = open(sys.argv[1], "w")
setproctitle("ray::DashboardAgent")
print(flush=True)
time.sleep(60)
"""


def test_an_agent_that_has_a_title_is_known_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "abc").mkdir()
    agents = [
        subprocess.Popen([sys.executable, "-c", TITLED, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("abc/agent.log", "other.log")
    ]
    try:
        assert all(agent.stdout.readline() for agent in agents)
        assert end_processes(tmp_path / "abc") == [agents[0].pid]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait(180)


def test_the_next_start_ends_the_processes_of_a_folder_whose_starter_has_ended(tmp_path: Path) -> None:
    (tmp_path / "abc").mkdir()
    agent = sleeper(f"{tmp_path}/abc/session_1/agent")
    local_ray.remove_leftovers(tmp_path)
    assert not psutil.pid_exists(agent.pid) and not (tmp_path / "abc").exists()


MAKER = """
import multiprocessing, sys
from squelch.actors.process.preparation import prepare
prepare()

lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
import time; time.sleep(60)
"""


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="named semaphores are files on Linux only")
def test_semaphores_of_a_killed_actor_are_removed_and_those_of_a_living_one_stay() -> None:
    makers = [subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    names = [f"sem.{maker.stdout.readline().strip()[1:]}" for maker in makers]
    assert all(name.startswith(f"sem.{SEMAPHORES}") for name in names)
    trackers = psutil.Process(makers[0].pid).children()
    for process in (*trackers, makers[0]):
        process.kill()
    makers[0].wait(180)
    foreign = get_context("spawn").Lock()
    try:
        assert names[0] in remove_semaphores()
        assert not (SHARED_MEMORY / names[0]).exists() and (SHARED_MEMORY / names[1]).exists()
        assert (SHARED_MEMORY / f"sem.{foreign._semlock.name[1:]}").exists()
    finally:
        makers[1].kill()
        makers[1].wait(180)
