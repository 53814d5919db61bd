"""Where a page is walked: an empty folder, a HOME, and the `squelch` of the page's mode, all of one commit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from squelch.actors.pretrained.source import resolved
from tests.walk.session import TOKEN, end_all
from tests.wheel import build, install

ROOT = Path(__file__).parents[2]
SETUP_S = 1800.0
HEAD_S = 120.0
KEPT = ("PATH", "LANG", "TERM", "SSL_CERT_FILE", "CI")
"""Variables that a page's commands inherit, besides those of pip."""
POLICIES = ("tiny", "models")
"""Folders of `.cache` that all pages share: policies that are warmed up or converted once."""
APART = ("trl", "clients", "verifiers")
"""Folders of `.cache` with other people's packages, which `make test` installs (`deploy/setup.sh`)."""
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

    @cached_property
    def commit(self) -> str:
        """The commit; of changed files, one that holds them and that no branch has."""
        return _git("stash", "create").strip() or _git("rev-parse", "HEAD").strip()

    def read(self, page: str) -> str:
        return _git("show", f"{self.commit}:{page}")

    @cached_property
    def model(self) -> Path:
        """SmolLM2, prepared as a run prepares it."""
        return resolved("smollm2", ROOT / ".cache" / "models", self._say)

    @cached_property
    def wheel(self) -> Path:
        """Of an archive of the commit."""
        source = self.folder / "source"
        source.mkdir()
        with tempfile.TemporaryFile() as archive:
            subprocess.run(["git", "-C", ROOT, "archive", self.commit], stdout=archive, check=True)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as opened:
                opened.extractall(source, filter="tar")
        return build(source, self.folder / "wheels")

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
            subprocess.run(["cp", "-al", Path(sys.prefix).resolve(), clone / ".venv"], check=True)
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
        shutil.rmtree(self._sockets, ignore_errors=True)


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def _system_path() -> list[str]:
    """PATH without the environment of the tests."""
    own = Path(sys.prefix).resolve() / "bin"
    return [part for part in os.environ["PATH"].split(os.pathsep) if part and Path(part).resolve() != own]


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
        shutil.copytree(ROOT / ".cache" / name, cache / name, copy_function=_link)


def keep_policies(cache: Path) -> None:
    """Shares the policies that a page has made: each folder is whole, for it got its name at the end."""
    for made in (path for name in POLICIES for path in (cache / name).glob("[!.]*")):
        shared = ROOT / ".cache" / made.parent.name / made.name
        if not shared.exists():
            shutil.copytree(made, shared, copy_function=_link)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start_head(place: Place) -> tuple[subprocess.Popen, int, int]:
    """A local Ray head, its port, and that of its dashboard."""
    port, dashboard = free_port(), free_port()
    words = [place.python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    words += [f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=4", "--object-store-memory=200000000"]
    words += [f"--dashboard-agent-listen-port={free_port()}", f"--ray-client-server-port={free_port()}"]
    with (place.notes / "head").open("w") as log:
        head = subprocess.Popen(words, env=place.variables, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + HEAD_S
    while not all(_answers(each) for each in (port, dashboard)):
        if head.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"ray start --head: {(place.notes / 'head').read_text()[-2000:]}")
        time.sleep(0.3)
    return head, port, dashboard


def end_head(head: subprocess.Popen) -> None:
    """Kills the head and what it has started."""
    family = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    head.kill()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    head.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
