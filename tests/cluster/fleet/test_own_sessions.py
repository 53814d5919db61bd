"""What a shell and a terminal send to a run's process group reaches the driver, once, and none of Ray's processes."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

DRIVER = """
import json, os, sys, time
from pathlib import Path
from squelch.cluster.fleet.ray_internals import services, sessions_of_their_own
from squelch.kit.process.signals import listening

place = Path(sys.argv[1])
with listening() as signals:
    with sessions_of_their_own():
        sleeping = [sys.executable, "-c", "import time; time.sleep(3600)"]
        ray = services.start_ray_process(sleeping, "raylet", fate_share=True).process
    signals.first_does(lambda number: None)
    (place / "new").write_text(json.dumps([os.getpid(), ray.pid]))
    (place / "new").rename(place / "up")
    while not signals.arrived:
        time.sleep(0.05)
    time.sleep(1.5)  # whoever sends a signal twice has done so
    found = {"arrived": [number.name for number in signals.arrived], "ray lives": ray.poll() is None}
    (place / "found").write_text(json.dumps(found))
    ray.kill()
    sys.exit(128 + signals.arrived[0])
"""
BOUND_S = 240.0


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


class Shell:
    """An interactive bash on a terminal of its own, with the driver as its job. `before`, `after`: words around the
    driver's command."""

    def __init__(self, place: Path, before: str = "", after: str = "") -> None:
        self.place, self.shown = place, ""
        (place / "driver.py").write_text(DRIVER)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # whoever runs the tests may ignore them
                signal.signal(number, signal.SIG_DFL)
            os.chdir(Path(__file__).parents[3])
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.type(f"PYTHONPATH=. {before} {sys.executable} {place}/driver.py {place} {after}\n")
        eventually((place / "up").exists)
        driver, ray = json.loads((place / "up").read_text())
        self.driver, self.ray = psutil.Process(driver), psutil.Process(ray)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def code(self) -> int:
        """The exit code that the shell says, when it was asked for as `code=`."""
        end = time.monotonic() + BOUND_S
        while not (said := re.search(r"code=(\d+)", self.shown)):
            assert time.monotonic() < end, self.shown
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.shown += os.read(self.terminal, 1 << 16).decode(errors="replace")
        return int(said[1])

    def found(self) -> dict[str, object]:
        """What the driver found out."""
        eventually(lambda: not self.driver.is_running() or self.driver.status() == psutil.STATUS_ZOMBIE)
        return json.loads((self.place / "found").read_text())

    def close(self) -> None:
        """Ends all three."""
        for process in (self.driver, self.ray, psutil.Process(self.pid)):
            if process.is_running():
                process.kill()
        os.waitpid(self.pid, 0)


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    made: list[Shell] = []

    def make(before: str = "", after: str = "") -> Shell:
        made.append(Shell(tmp_path, before, after))
        return made[-1]

    yield make
    for shell in made:
        shell.close()


def test_a_shell_that_kills_its_job_stops_the_driver_alone(shells: Callable[..., Shell]) -> None:
    shell = shells(after="&")
    shell.type("kill %1; wait %1; echo code=$?\n")
    assert shell.code() == 143
    assert shell.found() == {"arrived": ["SIGTERM"], "ray lives": True}


def test_timeout_which_signals_its_child_and_its_group_stops_the_driver_once(shells: Callable[..., Shell]) -> None:
    shell = shells(before="timeout 3600", after="; echo code=$?")
    shell.driver.parent().send_signal(signal.SIGTERM)  # as when the time is over
    assert shell.code() == 143
    assert shell.found() == {"arrived": ["SIGTERM"], "ray lives": True}


@pytest.mark.parametrize("after", ["", "&"])
def test_a_terminal_that_closes_stops_the_driver_once(shells: Callable[..., Shell], after: str) -> None:
    shell = shells(after=after)
    os.close(shell.terminal)
    assert shell.found() == {"arrived": ["SIGHUP"], "ray lives": True}


def test_ctrl_z_stops_the_driver_alone_and_fg_goes_on(shells: Callable[..., Shell]) -> None:
    shell = shells()
    shell.type("\x1a")
    eventually(lambda: shell.driver.status() == psutil.STATUS_STOPPED)
    eventually(lambda: shell.ray.status() == psutil.STATUS_SLEEPING)  # it may still begin; a stopped one never sleeps
    shell.type("fg\n")
    eventually(lambda: shell.driver.status() != psutil.STATUS_STOPPED)
    shell.type("\x03")
    assert shell.found() == {"arrived": ["SIGINT"], "ray lives": True}
    shell.type("echo code=$?\n")
    assert shell.code() == 130


def test_a_driver_that_is_killed_takes_rays_processes_along(shells: Callable[..., Shell]) -> None:
    shell = shells()
    shell.driver.kill()
    eventually(lambda: not shell.ray.is_running() or shell.ray.status() == psutil.STATUS_ZOMBIE)
