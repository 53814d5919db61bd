"""The location of Squelch's code: a checkout of its repository, or the installed distribution `squelch-rl`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "squelch-rl"


def installed_version() -> str:
    """The distribution's version; `source` if the code runs from a tree that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"


def checkout() -> Path | None:
    """The repository's root if the code runs from one; None if it was installed from a wheel."""
    root = Path(__file__).parents[1]
    return root if (root / "pyproject.toml").is_file() else None
