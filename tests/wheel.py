"""Squelch as a wheel, and environments that hold it beside the packages of the tests' environment."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

BUILD_S = 180.0


def build(source: Path, out: Path) -> Path:
    """Builds the wheel of a copy of the repository, which the build writes into."""
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=BUILD_S)
    return next(out.glob("squelch_rl-*.whl"))


def install(wheel: Path, folder: Path, beside: Sequence[Path] = ()) -> Path:
    """The programs of a new environment that holds the wheel. Third-party packages come from the environment of the
    tests, and from the folders `beside` it; its `.pth` files are not read there, so an editable install of this
    checkout stays out of sight."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    words = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=BUILD_S)
    site = next(folder.glob("lib/python*/site-packages"))
    packages = os.linesep.join([sysconfig.get_path("purelib"), *map(str, beside)])
    (site / "third-party.pth").write_text(packages + "\n")
    return folder / "bin"
