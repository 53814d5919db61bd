"""The file system that a program sees: an interpreter, its standard library, the C libraries they need, the harness.

It is a copy, built once per interpreter and user in the temporary directory. So no file of the host is visible by
accident, and the unprivileged user that runs programs can read it. It is always mounted read-only.
"""

from __future__ import annotations

import hashlib
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from envs.sandbox import seccomp

HARNESS = Path(__file__).with_name("harness.py")
LAUNCHER = Path(__file__).with_name("launcher.py")
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH  # compiling at each start took 25% of a program's CPU time
LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
    *("config-*", "pydoc_data", "distutils", "*.opt-1.pyc", "*.opt-2.pyc", "_test*.so", "_tkinter*.so"),
)


@dataclass(frozen=True)
class Image:
    """Paths of the image: `root` on the host becomes `/` inside; the other paths are outside of `root`."""

    root: Path
    filter_file: Path
    launcher: Path

    @property
    def interpreter(self) -> str:
        """The interpreter's path inside the image."""
        return "/python/bin/python3"


def build(folder: Path | None = None) -> Image:
    """The image, which is built if it does not exist. Raises RuntimeError if the interpreter's libraries cannot be
    listed."""
    place = folder or _place()
    if not place.is_dir():
        with tempfile.TemporaryDirectory(prefix="squelch-sandbox-", dir=place.parent) as made:
            draft = Path(made) / "image"
            _write(draft)
            _move(draft, place)
    return Image(place / "root", place / "filter.bpf", place / "launcher.pyc")


def _place() -> Path:
    """A folder named after its content that only this user can write; a folder that others can write is not used."""
    about = [sys.version, sys.base_prefix, str(os.stat(sysconfig.get_paths()["stdlib"]).st_mtime_ns)]
    about += [file.read_text() for file in (Path(__file__), HARNESS, LAUNCHER)] + [seccomp.program().hex()]
    digest = hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()
    place = Path(tempfile.gettempdir()) / f"squelch-sandbox-{os.geteuid()}-{digest}"
    if place.exists():
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            private = Path(tempfile.mkdtemp(prefix="squelch-sandbox-"))
            private.chmod(0o711)
            return private / "image"
    return place


def _move(draft: Path, place: Path) -> None:
    try:
        draft.rename(place)
    except OSError:
        if not place.is_dir():  # otherwise another process has built the same content
            raise


def _write(draft: Path) -> None:
    root = draft / "root"
    for name in ("tmp", "dev", "python/bin", "proc"):
        (root / name).mkdir(parents=True)
    for device in ("null", "zero", "urandom"):
        (root / "dev" / device).touch()  # mount point of the host's device
    _copy_python(root)
    for source, target in ((HARNESS, root / "python" / "harness.pyc"), (LAUNCHER, draft / "launcher.pyc")):
        py_compile.compile(str(source), str(target), source.name, doraise=True, invalidation_mode=UNCHECKED)
    (draft / "filter.bpf").write_bytes(seccomp.program())
    for path in (draft, *draft.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_python(root: Path) -> None:
    """Copies the interpreter, its standard library and their shared libraries."""
    real = Path(sys.executable).resolve()
    shutil.copy(real, root / "python" / "bin" / "python3")
    library = Path(sysconfig.get_paths()["stdlib"])
    target = root / "python" / sys.platlibdir / library.name
    shutil.copytree(library, target, ignore=LEFT_OUT, symlinks=False, ignore_dangling_symlinks=True)
    for name, source in _shared_objects([real, *target.glob("lib-dynload/*.so")]).items():
        place = root / (name.lstrip("/") if name.startswith("/") else f"lib/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)


def _shared_objects(files: list[Path]) -> dict[str, str]:
    """All shared libraries that `files` link to: name in the lookup (a path for the loader itself) -> file."""
    if shutil.which("ldd") is None:
        raise RuntimeError(
            "the sandbox needs ldd to find the interpreter's libraries (Debian: apt-get install libc-bin)"
        )
    listing = subprocess.run(["ldd", *files], capture_output=True, text=True, timeout=60, check=False).stdout
    found = dict(re.findall(r"^\s+(\S+) => (/\S+) \(", listing, flags=re.MULTILINE))
    loaders = re.findall(r"^\s+(/\S+) \(", listing, flags=re.MULTILINE)
    return found | {loader: loader for loader in loaders}
