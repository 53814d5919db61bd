"""Runs one part of `benchmarks.gpu` in a process of its own, and writes each metric as it becomes known.

    python -m benchmarks.gpu.part_worker NAME DEVICE SECONDS [--quick]

Every line of standard output is a JSON object with metrics to merge; whatever the libraries print goes to standard
error. A part that fails ends with its trace on standard error and exit code 1.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.parts import PARTS
from squelch.learner.decomposition.statistics import finite


def main() -> None:
    """Runs the part that the arguments name."""
    name, device, seconds = sys.argv[1:4]
    deadline = time.monotonic() + float(seconds)  # before the imports, which take seconds
    metrics = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from benchmarks.gpu.common import Setting

    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(device, "--quick" in sys.argv[4:], Path(folder), deadline)
        write(metrics, {"device": setting.gpu})
        module, _, function = PARTS[name].function.partition(":")
        for found in vars(importlib.import_module(module))[function](setting):
            write(metrics, found)


def write(metrics: TextIO, found: dict[str, Any]) -> None:
    """Writes metrics at once, so that a part that is stopped loses none; null for those that are not finite."""
    metrics.write(json.dumps(finite(found), allow_nan=False) + "\n")
    metrics.flush()


if __name__ == "__main__":
    main()
