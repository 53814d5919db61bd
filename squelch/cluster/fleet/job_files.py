"""The files that travel with a job: Squelch's code, the user's own modules, and the recipe. One zip file, which Ray
unpacks into the job's working directory on every node and puts on its module path.

    code           contents of the zip file
    checkout       the working tree, without what .gitignore, .rayignore and `EXCLUDES` name; takes precedence over the
                   Squelch that the nodes have installed
    folder         a folder of the user's, by the same rules; Squelch is the nodes' own
    wheel          a wheel of Squelch: its modules, unpacked. Its dependencies are the nodes', so that nothing is
                   installed
    none           nothing; Squelch is the nodes' own
    recipe         with each of them: a recipe that is a file travels with the files that it extends, as one
    policy         with each of them: the tiny policy, if this machine's cache holds it, for the job's cache
    overrides      with each of them, where they hold a secret: Ray shows and logs the command of a job and of a driver

The size is bounded before anything is packed, because the cluster refuses a larger upload at its end.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from squelch.cluster.config import read_recipe
from squelch.cluster.fleet.ray_internals import DASHBOARD_CLIENT_MAX_SIZE, excluded_from_upload, walk_uploaded
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import DISTRIBUTION, checkout
from squelch.kit.untrusted.files import reason, size_text
from squelch.kit.untrusted.text import written_yaml

log = logging.getLogger(__name__)
EXCLUDES = ["/.git", "/.venv", "/.cache", "/runs", "**/__pycache__", "/.hypothesis", "/.pytest_cache"]
"""Files that are not sent, as in a .gitignore: a leading slash means the folder's own entry, not one of that name below
it."""
MAX_BYTES = DASHBOARD_CLIENT_MAX_SIZE - (1 << 20)
"""Bytes of the files together. The job server takes 100 MiB a request; a zip file of what does not shrink is larger
than its files by its directory."""
RECIPE = "squelch-job.yaml"
OVERRIDES = Path("squelch-job-overrides.json")
POLICIES = Path("squelch-job-policies")
"""Folder in the zip file of the tiny policy."""
EPOCH = (2020, 1, 1, 0, 0, 0)
"""Time of every file in the zip file, so that equal files make equal zip files, which Ray uploads once."""


@dataclass(frozen=True)
class Code:
    """The code that is sent: a folder, or a wheel, or neither."""

    folder: Path | None = None
    wheel: Path | None = None


NOTHING = Code()


def chosen(working_dir: str, wheel: str, installed: bool) -> Code:
    """The code that the flags of `squelch submit` choose; without a flag the checkout, if Squelch runs from one.

    Raises:
        UserError: the folder or the wheel cannot be used.
    """
    if installed:
        return NOTHING
    if wheel:
        return Code(wheel=_checked_wheel(Path(wheel)))
    if not working_dir:
        return Code(folder=checkout())
    if not Path(working_dir).is_dir():
        raise UserError(f"--working-dir {working_dir} is no folder")
    return Code(folder=Path(working_dir).resolve())


def _checked_wheel(path: Path) -> Path:
    name = DISTRIBUTION.replace("-", "_")
    if path.suffix != ".whl" or path.name.split("-")[0] != name:
        raise UserError(
            f"--wheel {path} is no wheel of Squelch: give a file such as dist/{name}-0.1.0-py3-none-any.whl"
        )
    if not zipfile.is_zipfile(path):
        raise UserError(f"--wheel {path} does not exist or is damaged; `python -m build --wheel` makes one")
    return path


def pack(
    code: Code, recipe: str, target: Path, policy: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[Path | None, str]:
    """Writes the zip file; returns its path, or None if nothing has to travel, and the recipe's name for the job.

    Raises:
        UserError: the files are too large, or the recipe is wrong.
    """
    settings = ""
    if recipe.endswith((".yaml", ".yml")):
        settings = written_yaml(read_recipe(recipe))
    if not (settings or code.folder or code.wheel or policy or overrides):
        return None, recipe
    files = sorted(policy.iterdir()) if policy is not None else []
    members = _members(code) + [(str(POLICIES / file.parent.name / file.name), file.read_bytes()) for file in files]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members:
            made.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
        if settings:
            made.writestr(zipfile.ZipInfo(RECIPE, EPOCH), settings)
        if overrides:
            made.writestr(zipfile.ZipInfo(str(OVERRIDES), EPOCH), json.dumps(overrides))
    return target, RECIPE if settings else recipe


def sent_overrides() -> list[str]:
    """In a job: the overrides that travelled with it."""
    return json.loads(OVERRIDES.read_bytes()) if OVERRIDES.exists() else []


def adopt_policies(cache: Path) -> None:
    """In a job: puts the policies that travelled with it into the cache, as far as it lacks them."""
    for sent in POLICIES.glob("*"):
        if not (target := cache / sent.name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(prefix=f".{sent.name}-", dir=cache))
            shutil.copytree(sent, making, dirs_exist_ok=True)
            with suppress(OSError):  # another job of the same kind came first
                making.rename(target)
            shutil.rmtree(making, ignore_errors=True)


def _members(code: Code) -> list[tuple[str, bytes]]:
    """(name, content) of the code's files; the bound on their size keeps them small enough for memory."""
    if code.wheel is not None:
        with zipfile.ZipFile(code.wheel) as wheel:
            _require_small({info.filename: info.file_size for info in wheel.infolist()}, str(code.wheel))
            return [(info.filename, wheel.read(info)) for info in wheel.infolist() if not info.is_dir()]
    if code.folder is None:
        return []
    files = listed(code.folder)
    _require_small(files, str(code.folder))
    try:
        return [(name, (code.folder / name).read_bytes()) for name in sorted(files)]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be sent with the job: {reason(error)}") from error


def listed(folder: Path) -> dict[str, int]:
    """Bytes by name of the files of a folder that travel, as Ray's own rules for working directories have it."""
    found: dict[str, int] = {}

    def see(path: Path) -> None:
        _require_inside(path, folder)
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.stat().st_size

    walk_uploaded(folder, [excluded_from_upload(folder, EXCLUDES)], see, include_gitignore=True, logger=log)
    return found


def _require_inside(path: Path, folder: Path) -> None:
    """UserError for a link that leads out of the folder, with which a stranger's folder would send other files of this
    user, or to a folder: links in a circle have no end."""
    if path.is_symlink() and (path.is_dir() or not path.resolve().is_relative_to(folder.resolve())):
        raise UserError(
            f"{path} is a link to {path.readlink()}, and only links to files inside {folder} travel with a job; name "
            "it in .rayignore, or put what it leads to in its place"
        )


def _require_small(files: dict[str, int], what: str) -> None:
    total = sum(files.values())
    if total <= MAX_BYTES:
        return
    parts: Counter[str] = Counter()
    for name, size in files.items():
        parts["/".join(name.split("/")[:2])] += size
    largest = ", ".join(f"{name} ({size_text(size)})" for name, size in parts.most_common(3))
    raise UserError(
        f"{what} is too large to travel with a job: {size_text(total)}, and the cluster takes {size_text(MAX_BYTES)}. "
        f"The largest parts: {largest}. Name what the job does not need in .gitignore or .rayignore, or use --installed"
    )
