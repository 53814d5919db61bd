"""A process that Python's own end would keep ends all the same, with its exit code and everything said."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, time
from squelch.cluster import cli
from squelch.kit.base.errors import Fault
from squelch.kit.process.process_exit import before_leaving, must_leave
from squelch.kit.process.terminal import say

def command(argv):
    before_leaving(lambda: say("killed"))
    must_leave("Ray has not ended within 30 s")
    {end}

cli._main = command
atexit.register(time.sleep, 600)  # as Ray's own end, which waits for gcs
sys.exit(cli.main([]))
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("say('done'); return 0", 0, "done\nkilled\n"), ("sys.exit(143)", 143, "killed\n"), ("1 / 0", 1, "killed\n")],
)
def test_a_command_that_ray_does_not_let_go_ends_with_its_own_code(end: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stdout) == (code, said)
    assert ("ZeroDivisionError" in done.stderr) == (code == 1)
