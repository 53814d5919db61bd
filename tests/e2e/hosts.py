"""Several hosts on this machine: each a network namespace with an address of its own, a mount namespace in which
folders of the driver's disk are absent, and a Ray node.

    driver's host      bridge 10.77.0.1, ray head          sees the disk as it is
    host a, b, ...     eth0 10.77.0.2, 10.77.0.3, ...      see empty folders in place of those in `hidden`

The bridge lies in the namespace of the driver's host, so that nothing outside the namespaces changes and removing them
removes everything. A port of the bridge that goes down is a cut cable; two isolated ports are two hosts that reach the
driver but not each other. What an earlier process left behind when it was killed is removed at the next start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from squelch.cluster.fleet.local_ray import CHOSEN
from tests.needs import skip_or_fail
from tests.prometheus import until

RAY = str(Path(sys.executable).with_name("ray"))
PREFIX = "squelch-test"
DRIVER = "10.77.0.1"
ADDRESS = f"{DRIVER}:6379"
BOOT_S = 180.0
BOOTS = 3
"""Times that a host's Ray node is started before the test fails."""
END_S = 60.0


def ip(*words: str) -> None:
    """Runs `ip`; CalledProcessError with its message if it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=180)


def need_namespaces() -> None:
    """Skips the test with the reason where network namespaces cannot be made; where CI is set, it fails."""
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "exec", name, "unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt")
        ip("-n", name, "link", "add", "br0", "type", "bridge")
    except (OSError, subprocess.SubprocessError) as error:
        lacking = f"no network namespaces here ({error}); needs root, iproute2, util-linux"
        skip_or_fail(f"several hosts were NOT tried: {lacking}")
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=180)


@dataclass
class Host:
    """One host; `process` is its Ray node."""

    name: str
    address: str
    namespace: str
    hidden: list[Path]
    labels: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def within(self, *words: str) -> list[str]:
        """The command, run on this host while its Ray node runs."""
        assert self.process is not None, f"{self.name} has not been started"
        return ["nsenter", f"--target={self.process.pid}", "--net", "--mount", *words]

    def sees(self, path: Path) -> bool:
        """Whether a path exists on this host."""
        return subprocess.run(self.within("test", "-e", str(path)), timeout=180).returncode == 0

    def files(self, pattern: str) -> list[str]:
        """The paths on this host that match a shell pattern."""
        found = subprocess.run(self.within("sh", "-c", f"ls -d {pattern}"), capture_output=True, text=True, timeout=180)
        return found.stdout.split()

    def processes(self) -> list[psutil.Process]:
        """Every process on this host."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, timeout=180)
        return [psutil.Process(int(pid)) for pid in found.stdout.split() if psutil.pid_exists(int(pid))]

    def actors(self) -> set[str]:
        """The classes of the Ray actors on this host."""
        titles = [_title(process) for process in self.processes()]
        return {title.removeprefix("ray::").partition(".")[0].split()[0] for title in titles if "ray::" in title}

    def boot(self, *words: str, log: Path, env: dict[str, str]) -> None:
        """Starts the host's Ray node and waits until it has joined."""
        mounts = "".join(f"mkdir -p {path} && mount -t tmpfs -o mode=0755 none {path} && " for path in self.hidden)
        labels = ",".join(f"{key}={value}" for key, value in self.labels.items())
        ray = [RAY, "start", "--block", f"--node-ip-address={self.address}", "--disable-usage-stats", *words]
        ray += [f"--labels={labels}"] if labels else []
        isolated = ["unshare", "--mount", "--propagation=private", "sh", "-c", f'{mounts}exec "$@"', "sh", *ray]
        for left in reversed(range(BOOTS)):  # Ray gives up after 30 s, which a busy machine may need
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    ["ip", "netns", "exec", self.namespace, *isolated],
                    env={**os.environ, **env},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            over = lambda: self._joined(log) or (left > 0 and self.process.poll() is not None)  # noqa: B023, E731
            until(over, f"Ray on {self.name} has started:\n{log.read_text()[-2000:]}", BOOT_S)
            if self._joined(log):
                return

    def _joined(self, log: Path) -> bool:
        return "Ray runtime started" in log.read_text()

    def end(self) -> None:
        """Ends every process on this host."""
        doomed = self.processes()
        for process in doomed:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(doomed, timeout=END_S)
        if self.process is not None:
            self.process.wait(END_S)


def _title(process: psutil.Process) -> str:
    """The title that Ray gives an actor's process; empty if the process has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@dataclass
class Hosts:
    """The driver's host and the others, and the cables between them."""

    driver: Host
    others: list[Host]
    folder: Path
    env: dict[str, str]
    logs: Path

    def start(self, host: Host, *words: str) -> None:
        """Starts a host's Ray node, the driver's first. `words`: further options of `ray start`."""
        join = ["--head", "--port=6379", "--include-dashboard=false", "--no-monitor", f"--temp-dir={self.folder}"]
        if host is not self.driver:
            join = [f"--address={ADDRESS}"]
        options = ["--object-store-memory=150000000", "--include-log-monitor=false", *words]
        host.boot(*join, *options, log=self.logs / f"{host.name}.log", env=self.env)

    def command(self, *words: str) -> list[str]:
        """A command on the driver's host."""
        return ["ip", "netns", "exec", self.driver.namespace, *words]

    def cut(self, host: Host, down: bool = True) -> None:
        """Pulls a host's cable, or puts it back."""
        ip("-n", self.driver.namespace, "link", "set", _port(host), "down" if down else "up")

    def isolate(self, isolated: bool) -> None:
        """Keeps the other hosts from reaching one another; they still reach the driver's host."""
        for host in self.others:
            words = ["link", "set", "dev", _port(host), "isolated", "on" if isolated else "off"]
            subprocess.run(["bridge", "-n", self.driver.namespace, *words], check=True, timeout=180)


def _port(host: Host) -> str:
    """The name of the bridge's port to which a host is connected."""
    return f"to-{host.name}"


@contextmanager
def hosts(folder: Path, logs: Path, hidden: list[Path], labels: dict[str, dict[str, str]]) -> Iterator[Hosts]:
    """The driver's host and one for each key of `labels`, connected, without Ray; everything is removed afterwards.

    Args:
        folder: for Ray's sessions, short, because sockets lie in it; every host but the driver's has its own there.
        logs: for the output of each host's Ray.
        hidden: folders that are empty on every host but the driver's.
    """
    remove_leftovers()
    base = f"{PREFIX}-{os.getpid()}"
    driver = Host("driver", DRIVER, f"{base}-driver", [])
    others = [
        Host(name, f"10.77.0.{number}", f"{base}-{name}", [folder, *hidden], own)
        for number, (name, own) in enumerate(labels.items(), 2)
    ]
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "squelch-test-token-0123456789abcdef", **CHOSEN}
    try:
        _connect(driver, others)
        yield Hosts(driver, others, folder, env, logs)
    finally:
        with ExitStack() as last:  # every host is removed, also after one that could not be
            last.callback(shutil.rmtree, folder, ignore_errors=True)
            for host in [driver, *others]:
                last.callback(subprocess.run, ["ip", "netns", "del", host.namespace], capture_output=True, timeout=180)
                last.callback(host.end)


def _connect(driver: Host, others: list[Host]) -> None:
    own = ("-n", driver.namespace)
    ip("netns", "add", driver.namespace)
    ip(*own, "link", "set", "lo", "up")
    ip(*own, "link", "add", "br0", "type", "bridge")
    ip(*own, "address", "add", f"{driver.address}/24", "dev", "br0")
    ip(*own, "link", "set", "br0", "up")
    for host in others:
        ip("netns", "add", host.namespace)
        ip(*own, "link", "add", _port(host), "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        ip(*own, "link", "set", _port(host), "master", "br0", "up")
        ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.namespace, "link", "set", "eth0", "up")
        ip("-n", host.namespace, "link", "set", "lo", "up")


def remove_leftovers() -> None:
    """Removes the hosts and the disks of test processes that were killed."""
    for disk in psutil.disk_partitions(all=True):
        if disk.device.startswith(f"{PREFIX}-") and not psutil.pid_exists(int(disk.device.split("-")[2])):
            subprocess.run(["umount", "--lazy", disk.mountpoint], check=True, timeout=180)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=180, check=True).stdout
    for namespace in [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]:
        if psutil.pid_exists(int(namespace.split("-")[2])):
            continue
        Host(namespace, "", namespace, []).end()
        ip("netns", "del", namespace)
