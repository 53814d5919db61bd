"""A signal while the command is still being imported ends it without a trace."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKS = """
import sys

class Blocks:
    "Waits, as a slow disk, where the command imports a module."

    def find_spec(self, name, *_):
        if name == {module!r}:
            print("imports it", flush=True)
            sys.stdin.read()

sys.meta_path.insert(0, Blocks())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["squelch.cluster.cli", "argparse", "squelch.kit.process.signals"])
def test_a_signal_while_the_command_is_imported_ends_it_with_its_code_and_without_a_trace(
    tmp_path: Path, module: str, number: signal.Signals
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKS.format(module=module))
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "squelch.cluster.entry", "config", "frozenlake"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=variables, text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "imports it\n"
    process.send_signal(number)
    left = process.communicate(timeout=120)
    assert (process.returncode, *left) == (128 + number, "", "")
