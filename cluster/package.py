"""The location of Squelch's code: a checkout of its repository, or the installed distribution `squelch-rl`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cluster.errors import UserError

DISTRIBUTION = "squelch-rl"


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


def variables() -> dict[str, str]:
    """Environment variables with which another Python process finds the same code, whatever its folder is (`-P`)."""
    paths = filter(None, (str(checkout() or ""), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def checkout() -> Path | None:
    """The repository's root if the code runs from one; None if it was installed from a wheel."""
    root = Path(__file__).parents[1]
    return root if (root / "pyproject.toml").is_file() else None
