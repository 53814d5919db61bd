"""Slurm on several hosts of this machine (`tests.e2e.hosts`): slurmctld on the driver's host, slurmd on each other one.

    who waits              for                                      bound
    `slurm`                every node is idle                       BOOT_S
    `Slurm.until`          what a test wants of a job               the caller's
    `hosts`, at the end    the processes of each host are gone      END_S of `tests.e2e.hosts`

All of it is Debian's (packages slurmctld, slurmd, slurm-client, munge); the files of its daemons lie in one folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.hosts import DRIVER, Host, Hosts, hosts
from tests.prometheus import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
BOOT_S = 60.0
CPUS = 8
"""Of each node, as Slurm counts them."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
SETTINGS = """
ClusterName=squelch-test
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MessageTimeout=60
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def need_slurm() -> None:
    """Skips the test with the reason where Slurm is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(
            f"Slurm was NOT tried: {', '.join(missing)} not installed; on Debian and Ubuntu: apt-get install "
            "--no-install-recommends slurmctld slurmd slurm-client munge"
        )


@dataclass
class Slurm:
    """A cluster; commands are run on the controller's host."""

    hosts: Hosts
    folder: Path
    env: dict[str, str]

    def ask(self, *words: str, folder: Path | None = None) -> str:
        """What a command of Slurm's, called in a folder, prints; CalledProcessError if it fails."""
        command = self.hosts.command(*words)
        done = subprocess.run(
            command, cwd=folder, env=self.env, check=True, stdout=subprocess.PIPE, text=True, timeout=180
        )
        return done.stdout

    def submit(self, file: Path) -> str:
        """Submits a job from its file's folder, where `ID.out` gets its output; its id."""
        return self.ask("sbatch", "--parsable", "--output=%j.out", file.name, folder=file.parent).strip()

    def job(self, job: str) -> dict[str, str]:
        """What the controller says of a job: JobState, ExitCode as CODE:SIGNAL, Restarts and so on."""
        pairs = (word.partition("=") for word in self.ask("scontrol", "--oneliner", "show", "job", job).split())
        return {key: value for key, _, value in pairs}

    def until(self, job: str, holds: Callable[[dict[str, str]], bool], bound_s: float) -> dict[str, str]:
        """What the controller says of a job once that holds; the test fails, with the job's output, if the job ends
        before."""
        end = time.monotonic() + bound_s
        while not holds(found := self.job(job)):
            if found["JobState"] in ENDED or time.monotonic() > end:
                pytest.fail(f"job {job} is {found['JobState']}:\n{Path(found['StdOut']).read_text()[-5000:]}")
            time.sleep(1)
        return found


@contextmanager
def slurm(folder: Path, names: list[str]) -> Iterator[Slurm]:
    """A Slurm of nodes with these names; everything is removed afterwards.

    Args:
        folder: for the daemons' files; short, because sockets lie in it.
    """
    with hosts(folder, folder, [], {name: {} for name in names}) as found:
        env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        _write(folder, found.others)
        _start_controller(found, folder, env)
        for host in found.others:
            _start_node(host, folder, env)
        cluster = Slurm(found, folder, env)
        idle = ["idle"] * len(names)
        until(lambda: cluster.ask("sinfo", "--noheader", "--Node", "--format=%T").split() == idle, "idle nodes", BOOT_S)
        yield cluster


def _write(folder: Path, nodes: list[Host]) -> None:
    """The daemons' files: their settings, the key with which they know each other, and the nodes' names."""
    lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} RealMemory=1000" for node in nodes]
    text = SETTINGS.format(controller=socket.gethostname(), address=DRIVER, folder=folder)
    (folder / "slurm.conf").write_text("\n".join([*lines, text]))
    (folder / "hosts").write_text("".join(f"{node.address} {node.name}\n" for node in nodes) + "127.0.0.1 localhost\n")
    (folder / "key").write_bytes(os.urandom(64))
    (folder / "key").chmod(0o600)
    (folder / "state").mkdir()


def _start_controller(found: Hosts, folder: Path, env: dict[str, str]) -> None:
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    munge = ["munged", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge", *files]
    for words in (munge, ["slurmctld"]):
        subprocess.run(found.command(*words), check=True, env=env, timeout=180)


def _start_node(host: Host, folder: Path, env: dict[str, str]) -> None:
    """Starts slurmd with the host's name and the nodes' addresses."""
    network = ["nsenter", f"--net=/run/netns/{host.namespace}"]  # `ip netns exec` hides the cgroups, which slurmd wants
    own = f"hostname {host.name} && mount --bind {folder}/hosts /etc/hosts && exec slurmd -D"
    isolated = ["unshare", "--mount", "--uts", "--propagation=private", "sh", "-c", own]
    with (folder / f"{host.name}.out").open("wb") as output:
        host.process = subprocess.Popen([*network, *isolated], env=env, stdout=output, stderr=subprocess.STDOUT)
