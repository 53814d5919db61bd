"""The file system that a program sees: an interpreter, its standard library, the C libraries they need, the harness.

It is a copy, built once per interpreter and user in a temporary folder. So no file of the host is visible by accident,
and the unprivileged user that runs programs can read it. It is always mounted read-only. A damaged image is built
again, also under a running pool (`Watch`).

The folder is the first of TMPDIR (or its default), /var/tmp and /run that this process can write to, that the user of
the programs can enter, that allows execution, and in which others cannot rename our files.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import py_compile
import re
import secrets
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from squelch.envs.sandbox import manifest, seccomp
from squelch.envs.sandbox.identity import Identity

log = logging.getLogger(__name__)
HARNESS = Path(__file__).with_name("harness.py")
LAUNCHER = Path(__file__).with_name("launcher.py")
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH  # compiling at each start took 25% of a program's CPU time
LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
    *("config-*", "pydoc_data", "distutils", "*.opt-1.pyc", "*.opt-2.pyc", "_test*.so", "_tkinter*.so"),
)
FURTHER_FOLDERS = (Path("/var/tmp"), Path("/run"))
ATTEMPTS = 3


@dataclass(frozen=True)
class Image:
    """An image in the folder `place`. `mended`: the damage that was found, and mended, when it was looked up."""

    place: Path
    mended: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The folder that becomes `/` inside."""
        return self.place / "root"

    @property
    def filter_file(self) -> Path:
        """The system call filter."""
        return self.place / "filter.bpf"

    @property
    def launcher(self) -> Path:
        """The compiled `launcher.py`."""
        return self.place / "launcher.pyc"


class Watch:
    """Notices that an image in use has changed, and has it built again. Safe to use from several threads."""

    def __init__(self, image: Image) -> None:
        self._place = image.place
        self._whole: tuple[list[str], tuple[tuple[int, int], ...]] = ([], ())  # folders, their signature
        self._lock = threading.Lock()
        self.generation = 0
        """How often the image was found to have changed; the first check counts."""

    def check(self) -> int:
        """The generation of the image, which is whole now. So a program that ran in an interpreter of this generation
        saw a whole image. Raises RuntimeError if a damaged image cannot be built again."""
        if self._has_changed():
            with self._lock:
                if self._has_changed():
                    self._whole = self._mend()
                    self.generation += 1
        return self.generation

    def _has_changed(self) -> bool:
        folders, seen = self._whole
        return not folders or manifest.signature(folders) != seen

    def _mend(self) -> tuple[list[str], tuple[tuple[int, int], ...]]:
        for _ in range(ATTEMPTS):
            folders = manifest.folders(self._place)
            seen = manifest.signature(folders)
            found = manifest.damage(self._place)
            if seen and not found:
                return folders, seen
            log.warning("sandbox: the image %s is damaged and is built again (%s)", self._place, manifest.few(found))
            try:
                rebuild(self._place)
            except OSError as error:
                raise RuntimeError(f"sandbox: {self._place} is damaged ({manifest.few(found)}): {error}") from error
        raise RuntimeError(f"sandbox: the image {self._place} is damaged again and again; find out what removes it")


def find(identity: Identity) -> Image:
    """The image for programs of that user, which is built if it is missing or damaged. Raises ValueError with the
    reason for each folder that cannot hold it, and RuntimeError if the interpreter's libraries cannot be listed."""
    refused = []
    for folder in dict.fromkeys((Path(tempfile.gettempdir()), *FURTHER_FOLDERS)):
        try:
            check_folder(folder, identity)
            return build(folder)
        except OSError as error:
            refused.append(f"{folder}: {error.strerror or error}")
    raise ValueError(f"no folder for the sandbox's image: {'; '.join(refused)}. Set TMPDIR to a folder that works")


def check_folder(folder: Path, identity: Identity) -> None:
    """Raises OSError with the reason if the folder cannot hold an image for programs of that user."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError("this process cannot write there")
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise OSError("it is mounted without permission to execute")
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise OSError("every user can rename the files of others there")
    if identity.uid is not None and not _can_enter(folder, identity):
        raise OSError(f"{identity}, who runs the programs, cannot enter it")


def _can_enter(folder: Path, identity: Identity) -> bool:
    command = ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(command, cwd="/", timeout=20, check=False, **quiet, **identity.popen()).returncode == 0


def build(folder: Path) -> Image:
    """The image in `folder`, which is built if it is missing or damaged. Raises OSError if it cannot be, and
    RuntimeError if the interpreter's libraries cannot be listed."""
    place = _place(folder)
    found = manifest.damage(place) if place.exists() else []
    if found or not place.exists():
        rebuild(place)
    return Image(place, tuple(found))


def rebuild(place: Path) -> None:
    """Builds the image in `place`, in exchange for a damaged one. Processes that use the damaged one notice it."""
    with tempfile.TemporaryDirectory(prefix="squelch-sandbox-", dir=place.parent) as made:
        draft = Path(made) / "image"
        _write(draft)
        if manifest.damage(place):  # otherwise another process has built the same content meanwhile
            with contextlib.suppress(FileNotFoundError):
                place.rename(Path(made) / "damaged")
            _move(draft, place)


def _place(folder: Path) -> Path:
    """A path named after its content, in `folder`, that only this user can write. If others have taken the name,
    another one of the same beginning is used, which later processes find."""
    about = [sys.version, sys.base_prefix, str(os.stat(sysconfig.get_paths()["stdlib"]).st_mtime_ns)]
    sources = (Path(__file__), Path(manifest.__file__), HARNESS, LAUNCHER)
    about += [file.read_text() for file in sources] + [seccomp.program().hex()]
    digest = hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()
    name = f"squelch-sandbox-{os.geteuid()}-{digest}"
    taken = sorted(folder.glob(f"{name}*"))
    ours = [path for path in taken if _is_ours(path)]
    if ours:
        return ours[0]
    return folder / (f"{name}-{secrets.token_hex(4)}" if folder / name in taken else name)


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _move(draft: Path, place: Path) -> None:
    try:
        draft.rename(place)
    except OSError:
        if manifest.damage(place):  # otherwise another process has built the same content
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
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # cleaners remove what nobody has read of late
    manifest.write(draft)
    (draft / manifest.FILE).chmod(0o644)


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
