"""Where a page is walked: an empty folder, a HOME, and the `squelch` of the page's mode, all of one commit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from squelch.actors.pretrained.source import resolved
from tests.walk.session import TOKEN, end_all
from tests.wheel import build, git, install, present_commit

ROOT = Path(__file__).parents[2]
SETUP_S = 1800.0
KEPT = ("PATH", "LANG", "TERM", "SSL_CERT_FILE", "CI")
"""Variables that a page's commands inherit, besides those of pip."""
POLICIES = ("tiny", "models")
"""Folders of `.cache` that all pages share: policies that are warmed up or converted once."""
APART = ("trl", "clients", "verifiers")
"""Folders of `.cache` with other people's packages, which `make test` installs (`deploy/setup.sh`)."""
LENT = "frozenlake"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where one page is walked."""

    folder: Path
    notes: Path
    """The commands and what they printed."""
    variables: dict[str, str]
    python: Path

    @property
    def token(self) -> str:
        return self.variables[TOKEN]


class Ground:
    """What the pages of one walk share: the commit, its wheel, and the cache of policies."""

    def __init__(self, folder: Path, fresh: bool, say: Say) -> None:
        """`folder`: is made, on the disk of the tests' environment, for links. `fresh`: `make setup` of a clone begins
        without an environment."""
        self.folder, self._fresh, self._say = folder, fresh, say
        folder.mkdir(parents=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="walk-"))  # Ray's paths of sockets have to be short
        self._tokens = list[str]()
        self.open = ExitStack()
        """What pages presume and what lives until the walk's end, such as a server."""

    def keep(self, run: Path) -> None:
        """Lends a run to later pages that presume one, in the place of a start."""
        if run.name == LENT and not self.lent.exists():
            shutil.copytree(run, self.lent)

    @property
    def lent(self) -> Path:
        """Where a run of the demo lies, once a page has made one."""
        return self.folder / LENT

    @cached_property
    def commit(self) -> str:
        return present_commit()

    def read(self, page: str) -> str:
        return git("show", f"{self.commit}:{page}")

    @cached_property
    def model(self) -> Path:
        """SmolLM2, prepared as a run prepares it."""
        return resolved("smollm2", ROOT / ".cache" / "models", self._say)

    @cached_property
    def wheel(self) -> Path:
        return build(self.commit, self.folder / "wheels")

    @cached_property
    def wheel_programs(self) -> Path:
        """The programs of an environment with the wheel and TRL, and with a pip of its own."""
        programs = install(self.wheel, self.folder / "installed", [ROOT / ".cache" / "trl"])
        pip = programs / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{programs}/python" -m pip "$@"\n')
        pip.chmod(0o755)
        return programs

    @cached_property
    def clone(self) -> Path:
        """A clone of the commit after `make setup`. Unless `fresh`, its environment begins as links to the tests', so
        that pip installs no package but Squelch itself."""
        clone = self.folder / "clone"
        subprocess.run(["git", "clone", "-q", "-s", "-n", ROOT, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "-q", self.commit], check=True)
        if not self._fresh:
            own = Path(sys.prefix).resolve()
            subprocess.run(["cp", "-al", own, clone / ".venv"], check=True)
            _rename_interpreter(own, clone / ".venv")
        began = time.monotonic()
        done = subprocess.run(["make", "setup"], cwd=clone, capture_output=True, text=True, timeout=SETUP_S)
        if done.returncode:
            raise RuntimeError(f"make setup: {done.stdout}{done.stderr}")
        self._say(f"make setup in a clone: {time.monotonic() - began:.0f} s")
        return clone

    def place(self, page: str, mode: str) -> Place:
        """An empty folder and a HOME for a page; in a clone, without what an earlier page left there."""
        own = self.folder / Path(page).stem
        (own / "home").mkdir(parents=True)
        if mode == "wheel":
            folder, programs = own / "work", self.wheel_programs
        else:
            folder, programs = self.clone, self.clone / ".venv" / "bin"
            subprocess.run(["git", "-C", folder, "clean", "-qdfx", "-e", "/.venv", "-e", "*.egg-info"], check=True)
        _lend_policies(folder / ".cache")
        for name in APART if mode == "checkout" else ():
            if (ROOT / ".cache" / name).is_dir():
                (folder / ".cache" / name).symlink_to(ROOT / ".cache" / name)
        self._tokens.append(token := uuid.uuid4().hex)
        sockets = self._sockets / str(len(self._tokens))
        sockets.mkdir()
        kept = {key: value for key, value in os.environ.items() if key in KEPT or key.startswith("PIP_")}
        variables = kept | {
            "PATH": os.pathsep.join(_system_path()),  # a clone's programs are found by the line of the README
            "HOME": str(own / "home"),
            "RAY_TMPDIR": str(sockets),
            "PYTHONUNBUFFERED": "1",
            "PIP_QUIET": "2",  # it warns of the index, which is not the page's
            "OMP_WAIT_POLICY": "passive",  # threads that wait must not burn the cores of a busy machine
            "SLURM_SUBMIT_DIR": str(folder),
            TOKEN: token,
        }
        if mode == "wheel":
            variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
            links = (str(self.wheel.parent), os.environ.get("PIP_FIND_LINKS", ""))
            variables["PIP_FIND_LINKS"] = " ".join(filter(None, links))
        return Place(folder, own / "notes", variables, programs / "python")

    def close(self) -> None:
        """Ends every process that a page has left."""
        for token in self._tokens:
            end_all(token, 0)
        self.open.close()
        shutil.rmtree(self._sockets, ignore_errors=True)


def _system_path() -> list[str]:
    """PATH without the environment of the tests."""
    own = Path(sys.prefix).resolve() / "bin"
    return [part for part in os.environ["PATH"].split(os.pathsep) if part and Path(part).resolve() != own]


def _rename_interpreter(own: Path, copy: Path) -> None:
    """Lets the programs of a copied environment run in the copy; each is written anew, for it is a link."""
    for program in (path for path in (copy / "bin").iterdir() if path.is_file() and not path.is_symlink()):
        text = program.read_bytes()
        if text.startswith(f"#!{own}/".encode()):
            program.unlink()
            program.write_bytes(text.replace(bytes(own), bytes(copy), 1))
            program.chmod(0o755)


def _link(source: str, target: str) -> None:
    """A link, or a copy where the file system refuses one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _lend_policies(cache: Path) -> None:
    """Puts the shared policies into a page's cache."""
    for name in POLICIES:
        (ROOT / ".cache" / name).mkdir(parents=True, exist_ok=True)
        locks = shutil.ignore_patterns(".*")  # a run writes them in place
        shutil.copytree(ROOT / ".cache" / name, cache / name, copy_function=_link, ignore=locks)


def keep_policies(cache: Path) -> None:
    """Shares the policies that a page has made: each folder is whole, for it got its name at the end."""
    for made in (path for name in POLICIES for path in (cache / name).glob("[!.]*")):
        shared = ROOT / ".cache" / made.parent.name / made.name
        if not shared.exists():
            shutil.copytree(made, shared, copy_function=_link)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
