"""Squelch as a wheel, and environments that hold it beside the packages of the tests' environment."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD_S = 180.0
DOWNLOAD_S = 900.0
NO_ANSWER = "Retrying (Retry("
"""In what pip says if the index cannot be reached."""


class NoIndex(Exception):
    """The configured package index does not answer."""


def git(*words: str) -> str:
    """What git says of this checkout."""
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def present_commit() -> str:
    """The commit of this checkout; of changed files, one that holds them and that no branch has."""
    return git("stash", "create").strip() or git("rev-parse", "HEAD").strip()


def build(commit: str, out: Path) -> Path:
    """Builds the wheel of a zip archive of the commit, unpacked as by programs that know no links: each becomes a file
    with its target's path."""
    with tempfile.TemporaryDirectory() as source:
        git("archive", "--format=zip", f"--output={source}/archive.zip", commit)
        with zipfile.ZipFile(f"{source}/archive.zip") as archive:
            archive.extractall(f"{source}/unpacked")
        words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), f"{source}/unpacked"]
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


def install_alone(wheel: Path, folder: Path) -> Path:
    """The programs of a new environment that holds the wheel, what pip brings with it from the configured index, and
    nothing else. Raises NoIndex."""
    venv.create(folder, with_pip=False)
    words = ["--python", str(folder / "bin" / "python"), "install", "--no-compile", "--retries", "1", str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=DOWNLOAD_S)
    if done.returncode and NO_ANSWER in done.stderr:
        raise NoIndex(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return folder / "bin"
