"""The folder, the token and the address of a cluster on this machine.

What a real one opens: tests/e2e/test_whole_run.py and tests/learner/test_actor.py."""

import ctypes
import json
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.process.preparation import START_FOLDER
from squelch.cluster.fleet import local_ray, ray_internals
from squelch.cluster.fleet.local_ray import BELOW_FOLDER, LOOPBACK_ONLY, SOCKET_BYTES
from squelch.cluster.fleet.ray_internals import Node, ray_constants, services, utils
from squelch.kit.base.errors import UserError
from squelch.kit.process import process_exit
from squelch.kit.process.signals import Interrupted, listening


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's RAY_TMPDIR: pytest's own folders have paths too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The test's home, with a token as Ray makes it under a usual umask; no token comes from elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir(mode=0o755)
    token.write_text("secret")
    token.chmod(0o644)
    return tmp_path


def test_only_this_user_can_enter_the_folder_whatever_the_umask(base: Path) -> None:
    before = os.umask(0)
    try:
        folder = local_ray.own_folder()
    finally:
        os.umask(before)
    assert folder.parent == base and mode(folder) == 0o700 and folder.stat().st_uid == os.geteuid()
    assert local_ray.own_folder() == folder


def opened(place: Path) -> None:
    place.mkdir(mode=0o700)
    place.chmod(0o710)


def linked(place: Path) -> None:
    (place.parent / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.parent / "elsewhere")


@pytest.mark.parametrize("taken", [opened, linked, Path.touch])
def test_a_folder_that_others_may_have_made_is_refused(base: Path, taken: Callable[[Path], None]) -> None:
    taken(base / f"squelch-{os.geteuid()}")
    with pytest.raises(UserError, match="set RAY_TMPDIR"), local_ray._folder():
        pass


def test_the_folder_of_another_user_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    with pytest.raises(UserError, match=f"squelch-{other} must be a folder of yours with mode 0700"):
        local_ray.own_folder()


@given(st.lists(st.text("ab/é", max_size=80), min_size=1, max_size=3))
def test_a_place_is_chosen_only_if_sockets_fit_below_it(bases: list[str]) -> None:
    place = local_ray.place(["/" + base for base in bases])
    name = f"squelch-{os.geteuid()}"
    longest = [len(os.fsencode(Path(f"/{base}", name, "XXXXXXXX"))) + len(BELOW_FOLDER) for base in bases]
    fitting = [Path(f"/{base}", name) for base, size in zip(bases, longest, strict=True) if size <= SOCKET_BYTES]
    assert place == next(iter(fitting), None)


def test_a_path_too_long_for_sockets_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "long" * 10)
    with pytest.raises(UserError, match=r"^RAY_TMPDIR=/tmp/long.*name a shorter folder"):
        local_ray.own_folder()


def test_what_a_cluster_left_is_removed_and_what_one_uses_is_not(base: Path) -> None:
    with local_ray._folder() as ours:
        session = ours / "session_2026-01-01"
        for name in ("logs", "sockets"):
            (session / name).mkdir(parents=True)
            (session / name / "file").touch()
        with local_ray._folder() as others:
            assert session.is_dir() and others.parent == ours.parent
        assert not any(others.iterdir())
    assert [path.name for path in session.iterdir()] == ["logs"] and (session / "logs" / "file").exists()
    stray = ours.parent / "stray"
    stray.touch()
    local_ray.remove_leftovers(ours.parent)
    assert list(ours.parent.iterdir()) == [stray]


def test_what_agents_left_without_actor_and_keeper_is_removed_when_the_run_has_ended(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with local_ray._folder():
        left = Path(tempfile.mkdtemp(prefix="squelch-agent-task-"))
    assert not left.exists()


def test_a_run_is_found_by_its_folder_or_its_name_as_long_as_its_cluster_is_up(base: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a" / "demo", tmp_path / "b" / "demo", tmp_path / "c" / "other"]
    with ExitStack() as up:
        for number, run in enumerate(runs):
            folder = up.enter_context(local_ray._folder())
            (folder / local_ray.RUN_FILE).write_text(json.dumps({"run": str(run), "address": f"127.0.0.1:{number}"}))
        assert local_ray.all_running() == {str(run): f"127.0.0.1:{number}" for number, run in enumerate(runs)}
        assert local_ray.running(str(runs[1])) == "127.0.0.1:1" and local_ray.running("other") == "127.0.0.1:2"
        assert local_ray.running("demo") is None, "two have the name"
        assert local_ray.running(str(tmp_path / "c")) is None
    assert local_ray.all_running() == {} and local_ray.running(str(runs[1])) is None


def test_starts_at_the_same_time_never_remove_each_others_folder(base: Path) -> None:
    def start_and_stop(_: int) -> bool:
        with local_ray._folder() as folder:
            local_ray.remove_leftovers(folder.parent)
            return folder.is_dir()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(start_and_stop, range(64)))


@pytest.mark.parametrize(("variable", "ray_metrics"), [(None, False), ("1", True)])
def test_ray_is_told_of_loopback_its_folder_its_patience_and_no_spare_processes_only_while_it_starts(
    base: Path, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, ray_metrics: bool
) -> None:
    seen: dict[str, object] = {}
    usual = {name: getattr(Node, name) for name in local_ray.SPARED}

    def init(**options: object) -> None:
        seen["started"] = [name for name, start in usual.items() if getattr(Node, name) is start]
        seen.update(options, variable=os.environ[LOOPBACK_ONLY], clusters=ray_constants.ENABLE_RAY_CLUSTER)
        seen["folder"] = os.getcwd()
        seen["agent"] = services._build_python_executable_command_memory_profileable("dashboard_agent", "folder")
        seen["lacks"] = utils.get_dashboard_dependency_error()
        seen["chosen"] = {name: os.environ[name] for name in local_ray.CHOSEN}
        raise RuntimeError("no room")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv("RAY_health_check_timeout_ms", "9000")
    monkeypatch.delenv(LOOPBACK_ONLY, raising=False)
    if variable is not None:
        monkeypatch.setenv(LOOPBACK_ONLY, variable)
    with pytest.raises(RuntimeError, match="no room"):
        local_ray.start(1, 1 << 20, {"env_vars": {"A": "b"}}, ray_metrics=ray_metrics, log_to_driver=False)
    local_ray.stop()
    folder = Path(str(seen["_temp_dir"]))
    code = f"{Path(local_ray.__file__).parents[3]}:{Path('mine').absolute()}"
    started_here = {START_FOLDER: os.getcwd(), "PYTHONPATH": code}
    assert seen["runtime_env"] == {"env_vars": {"A": "b", **started_here}}
    assert seen["folder"] == "/" and seen["chosen"]["RAY_prestart_worker_first_driver"] == "0"
    assert seen["chosen"] == {**local_ray.CHOSEN, "RAY_health_check_timeout_ms": "9000"}
    assert ("ray.dashboard.optional_deps" in str(seen["agent"])) == (seen["lacks"] is not None) == (not ray_metrics)
    assert utils.get_dashboard_dependency_error() is None, "the test needs what the agent is to do without"
    assert seen["started"] == [] and {name: getattr(Node, name) for name in usual} == usual
    left = {name: os.environ[name] for name in local_ray.CHOSEN if name in os.environ}
    assert left == {"RAY_health_check_timeout_ms": "9000"}, "what the user set is kept, and nothing else is left"
    assert seen["variable"] == "0" and seen["clusters"] is False and seen["address"] == "local"
    assert os.environ.get(LOOPBACK_ONLY) == variable and ray_constants.ENABLE_RAY_CLUSTER is True
    assert mode(folder) == mode(folder.parent) == 0o700 and folder.parent == local_ray.own_folder()
    lock = local_ray._lock(folder)
    assert lock is not None, "the lock is given back when the cluster could not be started"
    os.close(lock)


@pytest.fixture
def slow_node(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ray's node registers at the third question."""
    asked: list[str] = []

    def get_node(gcs_address: str, node_id: str) -> dict[str, str]:
        asked.append(node_id)
        if len(asked) < 3:
            raise RuntimeError("not yet")
        return {"node_id": node_id}

    monkeypatch.setattr(services, "get_node", get_node)
    return asked


def test_a_node_that_registers_late_is_waited_for(slow_node: list[str], tmp_path: Path) -> None:
    original = services.get_node
    with local_ray._patience(tmp_path):
        assert services.get_node("127.0.0.1:1", "node") == {"node_id": "node"}
    assert slow_node == ["node"] * 3 and services.get_node is original


def test_a_node_that_never_registers_is_refused_with_its_logs(slow_node, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_ray, "START_S", 0.0)
    with pytest.raises(UserError, match=f"within 0 s.*{tmp_path}"), local_ray._patience(tmp_path):
        with pytest.raises(RuntimeError):
            services.get_node("127.0.0.1:1", "node")
        raise Exception("The current node timed out during startup. This could happen because ...")
    with pytest.raises(KeyError), local_ray._patience(tmp_path):
        raise KeyError("another error passes as it is")


def test_a_token_named_by_a_relative_path_is_found_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
    here = Path.cwd()
    with local_ray.away():
        assert os.getcwd() == "/" and os.environ["RAY_AUTH_TOKEN_PATH"] == str(here / "token")
    assert Path.cwd() == here


def test_only_the_owner_can_read_the_token(home: Path) -> None:
    local_ray._hide_token()
    assert mode(home / ".ray") == 0o700 and mode(home / ".ray" / "auth_token") == 0o600


@pytest.mark.parametrize(("variable", "value"), [("RAY_AUTH_TOKEN_PATH", "/elsewhere"), ("RAY_AUTH_MODE", "disabled")])
def test_a_token_that_is_not_used_is_left_alone(home: Path, monkeypatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    local_ray._hide_token()
    assert mode(home / ".ray" / "auth_token") == 0o644


def test_a_token_that_cannot_be_hidden_is_refused(home: Path) -> None:
    (home / ".ray" / "auth_token").unlink()
    (home / ".ray").rmdir()
    (home / ".ray").touch()
    with pytest.raises(UserError, match="set RAY_AUTH_TOKEN_PATH to such a file"):
        local_ray._hide_token()


@pytest.mark.parametrize("users", [None, "90"])
def test_rays_client_is_told_to_wait_for_gcs_only_while_it_connects(monkeypatch, users) -> None:
    monkeypatch.delenv(local_ray.RECONNECTS, raising=False)
    if users is not None:
        monkeypatch.setenv(local_ray.RECONNECTS, users)
    before = dict(os.environ)
    with local_ray.patient_client():
        assert os.environ[local_ray.RECONNECTS] == (users or "3600")
        assert os.environ[local_ray.RAYLET] == str(os.getpid()), "else the client may end a child of process 1"
    assert dict(os.environ) == before


def test_processes_that_ray_starts_are_not_told_to_wait_for_gcs_and_sigterm_stays_whose_it_is(monkeypatch) -> None:
    monkeypatch.delenv(local_ray.RECONNECTS, raising=False)
    before, seen = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(services, "start_ray_process", lambda: seen.append(local_ray.RECONNECTS in os.environ))
    with local_ray.patient_client():
        services.start_ray_process()
        assert os.environ[local_ray.RECONNECTS] == "3600"
        ray_internals.utils.set_sigterm_handler(lambda *_: None)
    assert seen == [False] and signal.getsignal(signal.SIGTERM) == before


def test_a_ray_that_does_not_let_go_is_left_behind_after_the_bound(monkeypatch) -> None:
    held = threading.Event()
    monkeypatch.setattr("ray.shutdown", lambda: held.wait(60.0))
    monkeypatch.setattr(local_ray, "END_S", 0.1)
    monkeypatch.setattr("squelch.kit.process.process_exit._held_by", [])
    local_ray.stop()
    assert process_exit.has_to_leave() == "Ray has not ended within 0.1 s"
    with pytest.raises(UserError, match=r"^Ray has not ended within 0\.1 s, so this process can use no other cluster"):
        local_ray.start(1, 1 << 20, {})
    held.set()


def test_sigterm_is_the_commands_again_once_rays_client_has_taken_it_below_python(monkeypatch) -> None:
    alarms: list[int] = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    with listening(), pytest.raises(Interrupted):
        with local_ray.patient_client():
            ctypes.CDLL(None).signal(signal.SIGTERM, 1)  # SIG_IGN, of which Python learns nothing
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60.0)
    assert not alarms
    with listening() as signals, local_ray.patient_client():
        signals.arrived.append(signal.SIGTERM)
    assert alarms == [0], "the end 3 s later is called off"


def test_a_signal_while_ray_ends_does_not_wait_for_it(monkeypatch) -> None:
    held = threading.Event()
    monkeypatch.setattr("ray.shutdown", lambda: os.kill(os.getpid(), signal.SIGINT) or held.wait(60.0))
    monkeypatch.setattr("squelch.kit.process.process_exit._held_by", [])
    with listening(), pytest.raises(KeyboardInterrupt):
        local_ray.stop()
    assert process_exit.has_to_leave() == "Ray had not ended when a signal came"
    held.set()


def test_a_ray_that_never_answers_ends_the_process_after_the_bound(monkeypatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(local_ray, "INIT_S", 0.05)
    monkeypatch.setattr(local_ray, "leave", lambda code: ended.set() if code == 1 else None)
    with local_ray.patient_client():
        assert ended.wait(180)
