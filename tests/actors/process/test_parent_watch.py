"""A process of an engine ends with its worker, even if it is stopped and cannot look for it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

CHILD = """
import sys, time
from squelch.actors.process.parent_watch import watch_parent
watch_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
from squelch.actors.process.parent_watch import PARENT_VARIABLE
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], env={**os.environ, PARENT_VARIABLE: str(os.getpid())}, stdout=subprocess.PIPE
)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_ends_with_its_parent(stopped: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        if stopped:
            child.send_signal(signal.SIGSTOP)
        parent.kill()
        assert not psutil.wait_procs([child], timeout=180)[1]
