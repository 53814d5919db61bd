"""The checks of `make check` that read the code without running it; `make test` runs them through these tests."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
pytestmark = pytest.mark.slow


CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["lint-imports"],
    ["pyrefly", "check", "--python-interpreter-path", sys.executable],
]


@pytest.mark.parametrize("words", CHECKS, ids=lambda words: " ".join(words[:2]))
def test_the_code_passes_static_checks(words: list[str]) -> None:
    program, *arguments = words
    done = subprocess.run(
        [SCRIPTS / program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
