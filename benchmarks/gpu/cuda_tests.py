"""The tests that are marked `cuda`, by pytest in a process of its own; the metrics are the numbers of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.common import REPOSITORY, search_path
from benchmarks.gpu.common import Setting
from benchmarks.gpu.parts import installed

OPTIONS = ("-p", "no:cacheprovider", "-m", "cuda", "-rfEs", "--tb=short", "-q")
PROCESSES = ("-n", "4")
"""Most of the time is compilation, by the processor. Without pytest-xdist the tests run one after another."""
SETTINGS = ("strict_config=false", "addopts=")
"""The project's own settings name plugins that a machine may lack."""
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Runs the files that hold such tests. Raises RuntimeError when one fails, or when none ran on CUDA."""
    files = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("test_on_cuda.py"))
    options = [*OPTIONS, *(PROCESSES if installed("xdist") else ()), *(f"-o{one}" for one in SETTINGS)]
    command = [sys.executable, "-m", "pytest", *options, *files]
    environment = {**os.environ, "PYTHONPATH": search_path(), "COLUMNS": "300"}  # the reasons are cut at the line's end
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stdout + done.stderr)
    *_, last = done.stdout.strip().splitlines() or ["pytest printed nothing"]
    counts = {what.rstrip("s"): int(number) for number, what in COUNT.findall(last)}
    yield counts
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*)", done.stdout, re.MULTILINE)
    if failed:
        yield {"failed_tests": failed}
    if done.returncode or (setting.device == "cuda" and not counts.get("passed")):
        raise RuntimeError(f"pytest ended with {done.returncode}: {last}")
