"""The strongest sandbox of this machine, and the host that hostile programs attack."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from squelch.envs.sandbox import Pool
from squelch.envs.sandbox.backends import STRONGEST_FIRST, Backend, choose, namespaces, probe_all

NAMESPACES = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--net", "--ipc", "--uts", "--mount", "true")


def skip_unless_it_should_work(reason: str) -> NoReturn:
    """A back end that does not start is skipped only where util-linux can make no name spaces either: a fault of ours
    must not skip the tests that would show it."""
    try:
        can = subprocess.run(NAMESPACES, capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        can = False
    if can:
        pytest.fail(f"this machine can make name spaces, but: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    """A pool of the strongest back end that works here; without one these tests are skipped, loudly."""
    try:
        backend = choose(allow_unsafe=False)
    except ValueError as error:
        skip_unless_it_should_work(str(error))
    made = Pool(backend, warm=4)
    yield made
    made.close()


@pytest.fixture(scope="package", params=STRONGEST_FIRST, ids=lambda maker: maker.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each back end that works here; the others are skipped, loudly."""
    choice = probe_all((request.param,))
    if choice.backend is None:
        reason = f"{request.param.__name__} does not work here: {choice.refused}"
        if request.param is namespaces:
            skip_unless_it_should_work(reason)
        pytest.skip(reason)
    return choice.backend


@dataclass
class Host:
    """What there is to be harmed. `place`: the names that the corpus puts between `@`s."""

    folder: Path
    place: dict[str, str]
    descriptors: list[int]
    sockets: list[socket.socket]
    victims: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def victim(self) -> subprocess.Popen[bytes]:
        """A process that waits, in a session of its own."""
        waiting = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        victim = subprocess.Popen(waiting, cwd=self.folder, env={"SECRET": "HARM"}, start_new_session=True)
        self.victims.append(victim)
        return victim

    def names(self) -> dict[str, str]:
        """All files of the place, with their contents where they have any."""
        return {str(p): p.read_text() if p.is_file() else "" for p in sorted(self.folder.rglob("*")) if p.is_file()}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A folder with a secret, listeners, and a process, all of the host's."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "socket"))
    abstract.bind(f"\0squelch-{tmp_path.name}-{id(listener)}")
    for server in (unix, abstract):
        server.listen(64)
    (tmp_path / "secret.txt").write_text("HARM")
    (tmp_path / "secret-of-others").touch()
    (tmp_path / "leak.py").write_text("print('HARM')")
    shared = Path(f"/dev/shm/squelch-{tmp_path.name}-{id(listener)}")
    shared.write_text("HARM")
    secret = (tmp_path / "secret.txt").open()
    made = Host(tmp_path, {}, [secret.fileno(), udp.fileno()], [listener, udp, unix, abstract])
    made.place = {
        "secret": str(tmp_path / "secret.txt"),
        "place": str(tmp_path),
        "shm": str(shared),
        "port": str(listener.getsockname()[1]),
        "udp": str(udp.getsockname()[1]),
        "unix": str(tmp_path / "socket"),
        "abstract": f"squelch-{tmp_path.name}-{id(listener)}",
        "repository": str(Path(__file__).resolve().parents[3]),
        "pid": str(made.victim().pid),
    }
    yield made
    for victim in made.victims:
        victim.kill()
        victim.wait(180)
    for server in made.sockets:
        server.close()
    secret.close()
    shared.unlink()
