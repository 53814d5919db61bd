"""The location and version of Squelch's code: a checkout of its repository, or the installed distribution."""

from __future__ import annotations

import os
import platform
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from squelch.kit.base.errors import UserError

DISTRIBUTION = "squelch-rl"
GIT_TIMEOUT_S = 5.0
_SCORE = ("torch", "transformers", "huggingface_hub", "safetensors", "peft")
_TRAIN = (
    *("ray", "accelerate", "gymnasium", "math_verify", "bm25s", "rapidfuzz", "jsonschema", "matplotlib"),
    *("rich", "xxhash", "psutil", "starlette", "uvicorn", "aiohttp"),
)
NEEDED_BY = {**dict.fromkeys(_SCORE, "score"), **dict.fromkeys(_TRAIN, "train"), "vllm": "cpu"}
"""The extra that brings a package which the kit lacks, by the module that is imported."""


def installed_version() -> str:
    """The distribution's version; `source` if the code runs from a tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turns a missing package of an optional extra into a UserError with the command that installs it. `what`: the
    command or setting that needs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} needs the package {error.name}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'"
        ) from error


def needs_installation(error: ImportError, of_kit: bool = False) -> str | None:
    """What to install for a package that is not there; None if no extra brings it. `of_kit`: whether a command of the
    kit needs it; every other needs the whole system."""
    package = (error.name or "").partition(".")[0]
    if package not in NEEDED_BY:
        return None
    extra = NEEDED_BY[package] if of_kit or package == "vllm" else "train"
    how = f"pip install '{DISTRIBUTION}[{extra}]'" + (", or [gpu] on a machine with GPUs" if package == "vllm" else "")
    return f"the package {package} is not installed: {how}"


def require_scoring() -> None:
    """Raises ModuleNotFoundError for the first package of the extra `score` that is not there; loads none. Adapters
    alone need peft."""
    for package in _SCORE:
        if package != "peft" and find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def variables() -> dict[str, str]:
    """Environment variables with which another Python process finds the same code, whatever its folder is (`-P`)."""
    paths = filter(None, (str(checkout() or ""), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def checkout() -> Path | None:
    """The repository's root if the code runs from one; None if it was installed from a wheel."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() else None


def code_version() -> str:
    """The version of the code that runs: a checkout's own, even if another version is installed beside it."""
    root = checkout()
    if root is None:
        return installed_version()
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def commit() -> str | None:
    """The commit of the checkout from which the code runs, with `-dirty` if files differ from it; None without one."""
    root = checkout()
    if root is None:
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or its disk hangs
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def version_text() -> str:
    """Version and commit of the code that runs, e.g. `0.1.0, commit 239a9d0e1f2a`."""
    found = commit()
    return code_version() + (f", commit {found}" if found else "")


def versions() -> str:
    """The versions that a client and its job must share, e.g. `python=3.11,squelch=0.1.0`."""
    return f"python={'.'.join(platform.python_version_tuple()[:2])},squelch={code_version()}"


def require_versions(wanted: str) -> None:
    """Raises UserError if this process has other versions than those that the client gave (`versions`)."""
    found = dict(part.split("=", 1) for part in versions().split(","))
    given = dict(part.split("=", 1) for part in wanted.split(",") if "=" in part)
    differing = [f"{name} {given.get(name)} and {found[name]}" for name in found if given.get(name) != found[name]]
    if differing:
        raise UserError(
            f"client and cluster differ: {', '.join(differing)} (client's first). Submit from an environment like the "
            "cluster's; `--wheel` or a checkout sends the client's own Squelch"
        )
