"""To which clusters Ray's token is sent, and what is said otherwise; a real head: tests/e2e/test_cluster.py."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.exceptions import AuthenticationError

from squelch.cluster.fleet import ray_token
from squelch.cluster.fleet.ray_token import with_token
from squelch.kit.base.errors import UserError

LISTENS = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the variables nor the token that Ray has read in this process before."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    ray_token.AuthenticationTokenLoader.instance().reset_cache()
    yield
    ray_token.AuthenticationTokenLoader.instance().reset_cache()


def asked(monkeypatch: pytest.MonkeyPatch, own: bool, held: bool, right: bool = True) -> list[str]:
    """Asks a cluster that wants a token; returns what was sent, or raises what is said."""
    sent, enabled = list[str](), list[int]()
    monkeypatch.setattr(ray_token, "_is_own", lambda address: own)
    monkeypatch.setattr(ray_token, "_has_token", lambda: held)

    def enable() -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        enabled.append(1)

    monkeypatch.setattr(ray_token, "enable_token_auth", enable)

    def ask() -> list[str]:
        sent.append("token" if enabled else "nothing")
        if not (enabled and right):
            raise AuthenticationError("no")
        return sent

    return with_token(ask, "HEAD:1")


def test_a_token_is_sent_to_a_cluster_of_ones_own_that_wants_it(monkeypatch) -> None:
    assert asked(monkeypatch, own=True, held=True) == ["nothing", "token"]


@pytest.mark.parametrize(
    ("own", "held", "right", "mode", "line"),
    [
        (False, True, True, None, "`export RAY_AUTH_MODE=token`, which sends it the one in ~/.ray/auth_token"),
        (True, True, True, "disabled", "`export RAY_AUTH_MODE=token`"),
        (True, False, True, None, "`export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE`"),
        (True, True, False, None, "another token than ~/.ray/auth_token. Type `export RAY_AUTH_TOKEN_PATH=FILE`"),
    ],
)
def test_otherwise_the_one_line_to_type_is_said(own, held, right, mode, line, monkeypatch) -> None:
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(UserError) as said:
        asked(monkeypatch, own, held, right)
    assert line in str(said.value)


def test_a_token_that_is_to_be_sent_and_is_missing_is_said_before_ray_ends_the_process(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"none has none\. Type `export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE`"):
        ray_token.take_token("127.0.0.1:1")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Ports of two programs, one of them below a folder `ray`."""
    (tmp_path / "ray").mkdir()
    found, started = {}, []
    for name in ("ray/head.py", "tunnel.py"):
        (tmp_path / name).write_text(LISTENS)
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        found[name] = int(process.stdout.readline())
    yield found
    for process in started:
        process.kill()
        process.communicate()


def test_ones_own_is_a_ray_of_this_user_on_this_machine(ports, monkeypatch) -> None:
    ray, tunnel = ports["ray/head.py"], ports["tunnel.py"]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        free = unused.getsockname()[1]
    assert ray_token._is_own(f"http://127.0.0.1:{ray}") and ray_token._is_own(f"localhost:{ray}")
    for other in (f"127.0.0.1:{tunnel}", f"127.0.0.1:{free}", f"192.0.2.77:{ray}", "ray-head.example:6379"):
        assert not ray_token._is_own(other)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not ray_token._is_own(f"127.0.0.1:{ray}")
