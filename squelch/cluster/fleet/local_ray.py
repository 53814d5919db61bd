"""A Ray cluster on this machine that neither the network nor the machine's other users can reach.

By default Ray listens on every interface, answers there for its metrics without a token, and opens the folder of its
session to every user. Here all of Ray's sockets are on 127.0.0.1, and its files are in a folder that only this user
can enter: `squelch-UID/XXXXXXXX` below RAY_TMPDIR, else below the temporary folder.

Invariants:

- Whoever has started a cluster holds a lock on its folder, which ends with the process however it ends. `start` ends
  what is left of every folder without a lock, so that killed runs leave nothing that the next run does not remove.
- `stop` removes what the cluster left, except Ray's logs, which the next `start` removes.
- No signal to this process's group reaches Ray's processes, which have sessions of their own.
- The token with which Ray's processes know each other can be read by its owner only.
- No actor imports modules from the folder in which the run was started, which may hold files of strangers.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray

from squelch.actors.process.preparation import START_FOLDER
from squelch.cluster.daemon_thread import OwnThread
from squelch.cluster.fleet.leftovers import end_processes, remove_semaphores
from squelch.cluster.fleet.ray_internals import (
    Config,
    Node,
    agent_without_dashboard,
    handlers_kept,
    only_here,
    ray_constants,
    services,
    sessions_of_their_own,
)
from squelch.envs.agent.folders import remove_left
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import checkout
from squelch.kit.base.replaced import replaced
from squelch.kit.process.process_exit import before_leaving, has_to_leave, leave, must_leave
from squelch.kit.process.signals import take_back

log = logging.getLogger(__name__)

LOOPBACK_ONLY = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
"""Variable whose value 0 makes a process of Ray take 127.0.0.1 for the address of its node. Ray has it for systems
whose firewall asks the user about every program that listens elsewhere."""
NOTICES_FAILURES = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Variables with which Ray declares a node that is cut off or frozen dead within 10 s; by default after more than a
minute. The head reads them when it starts."""
NO_SPARE_WORKERS = {"RAY_prestart_worker_first_driver": "0"}
"""Variable without which Ray starts a process for each core before the first actor, and waits for them. No actor of a
run would use one: each has an environment of its own, for which Ray starts another process."""
SPARED = ("start_api_server", "start_log_monitor", "start_monitor")
"""What Ray's head starts beside the processes that a run needs: the dashboard's server, for whose start `ray.init`
waits, the copying of logs to the driver, and the autoscaler. A run on one machine turns off or lacks all three, and
each is a Python process that costs about a second."""
CHOSEN = {**NOTICES_FAILURES, **NO_SPARE_WORKERS}
"""Variables of the processes that Ray starts, unless the user has set them."""
RECONNECTS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Variable with the seconds after which Ray's client ends the process, without an exception, if gcs does not answer. By
default that is a minute; `cluster.fleet.ray_watch` ends the process sooner, and says why."""
RECONNECT_S = 3600
RAYLET = "RAY_RAYLET_PID"
"""Variable with the process whose end lets Ray's client end its own without an exception once its connection to the
raylet breaks; by default the parent, which Ray takes to be gone if it is process 1, as under systemd or in a
container."""
INIT_S = 300.0
"""Seconds that a call of `ray.init` may take; the process ends after that, since nothing else ends the call."""
END_S = 30.0
"""Seconds that this process may take to leave a cluster: without gcs that would take RECONNECT_S."""
SOCKET_BYTES = 107
"""Longest path of a Unix socket on Linux."""
BELOW_FOLDER = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path that Ray makes below its folder."""
NAMED_FILES = {"RAY_AUTH_TOKEN_PATH", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}
"""Variables with paths of files that Ray reads."""
RUN_FILE = "run.json"
"""File in a cluster's folder: the run that started it, and its address."""
_held = ExitStack()
"""Undoes `start` in this process; Ray allows one cluster a process."""
_own: list[Path] = []
"""The folder of the cluster that this process has started."""


START_S = 120.0
"""Seconds that Ray's processes may take to start. Ray itself would give up after 30, which a machine under load may
need."""
STARTS_LATE = "timed out during startup"
"""In Ray's error when its node has not registered in time."""


def start(
    num_cpus: int,
    object_store_bytes: int,
    runtime_env: Mapping[str, Any],
    run_dir: Path | None = None,
    ray_metrics: bool = False,
    **options: Any,
) -> None:
    """Starts the cluster and connects this process to it. `runtime_env` is Ray's environment of the actors, `options`
    are further ones of `ray.init`; `run_dir`: the folder of the run by which `running` finds the cluster;
    `ray_metrics`: whether Ray's own Prometheus endpoint is to exist, which costs seconds of processor time.

    Raises:
        UserError: no folder can be made that only this user can enter, Ray's token cannot be hidden from others, Ray
            does not start within START_S, or this process could not leave the cluster before.
    """
    require_free()
    before_leaving(kill)
    variables = _start_folder() | runtime_env.get("env_vars", {})
    folder = _held.enter_context(_folder())
    _own.append(folder)
    _hide_token()
    agent = nullcontext() if ray_metrics else agent_without_dashboard()
    with settings(), patient_client(), away(), _patience(folder), _bare_head(), sessions_of_their_own(), agent:
        ray.init(
            address="local",  # otherwise Ray would join a cluster that already runs on this machine
            num_cpus=num_cpus,
            object_store_memory=object_store_bytes,
            include_dashboard=False,
            _temp_dir=str(folder),
            runtime_env={**runtime_env, "env_vars": variables},
            **options,
        )
    _hide_token()
    if run_dir is not None:
        facts = {"run": str(run_dir.resolve()), "address": ray.get_runtime_context().gcs_address}
        write_whole(folder / RUN_FILE, json.dumps(facts))


def stop() -> None:
    """Leaves the cluster to which this process is connected; ends it and removes its files if `start` started it. If
    Ray does not let go within END_S, the end of this process does that (`process_exit`)."""
    try:
        OwnThread().submit(ray.shutdown).result(END_S)
    except KeyboardInterrupt:
        must_leave("Ray had not ended when a signal came")
        raise
    except TimeoutError:
        must_leave(f"Ray has not ended within {END_S:g} s")
        log.warning("Ray has not ended within %g s; its processes are killed with this one", END_S)
        return
    _held.close()
    _own.clear()


def require_free() -> None:
    """UserError if this process could not leave its last cluster: Ray allows one at a time."""
    if (why := has_to_leave()) is not None:
        raise UserError(f"{why}, so this process can use no other cluster: repeat the command, which goes on from here")


def kill() -> None:
    """Kills Ray's processes of the cluster that `start` started, if it did; calls nothing of Ray, which may hang."""
    for folder in _own:
        end_processes(folder)


def _start_folder() -> dict[str, str]:
    """Variables that take an actor's process, which Ray starts in another folder, to this one's folder and code."""
    named = [str(checkout() or ""), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = [str(Path(path).absolute()) for path in named if path]
    return {START_FOLDER: str(Path.cwd()), "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def away() -> Iterator[None]:
    """Changes to root's folder for a call of `ray.init`: Ray puts the current folder first where actors look for
    modules."""
    for variable in NAMED_FILES & os.environ.keys():
        os.environ[variable] = str(Path(os.environ[variable]).absolute())
    with chdir("/"):
        yield


@contextmanager
def patient_client() -> Iterator[None]:
    """For a call of `ray.init`: Ray's client in this process, and in no other, waits RECONNECT_S for gcs, unless the
    user has set another time, and leaves the loss of the raylet to this process. Signals keep their handlers."""
    before = {name: os.environ.get(name) for name in (RECONNECTS, RAYLET)}
    own = {RAYLET: str(os.getpid())} | ({} if before[RECONNECTS] else {RECONNECTS: str(RECONNECT_S)})
    os.environ.update(own)
    Config.initialize("{}")  # Ray has read its settings when it was imported; this makes it read them again
    watchdog = threading.Timer(INIT_S, _give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        with only_here(own), handlers_kept():
            yield
    finally:
        watchdog.cancel()
        take_back()
        for name in own:
            del os.environ[name]
            if (value := before[name]) is not None:
                os.environ[name] = value


def _give_up() -> None:
    log.error("failed: Ray did not answer within %g s as this process joined it. Repeat the command", INIT_S)
    leave(1)


def _bare_head() -> AbstractContextManager[None]:
    """For a call of `ray.init` that starts a cluster: it starts none of the processes that are `SPARED`."""
    return replaced(Node, **dict.fromkeys(SPARED, lambda node, **options: None))


@contextmanager
def _patience(folder: Path) -> Iterator[None]:
    """For a call of `ray.init`: its question whether the node has registered is answered after START_S at the latest.
    UserError if it has not by then."""
    ask, deadline = services.get_node, time.monotonic() + START_S

    def ask_until_then(gcs_address: str, node_id: str) -> dict[str, Any]:
        while True:
            try:
                return ask(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    try:
        with replaced(services, get_node=ask_until_then):
            yield
    except Exception as error:
        if STARTS_LATE not in str(error):
            raise
        raise UserError(
            f"Ray did not start within {START_S:g} s. Its processes may be short of processor time or memory; their "
            f"logs are below {folder}/session_latest/logs. Start the run again when the machine is less busy"
        ) from error


def all_running() -> dict[str, str]:
    """The addresses of this user's clusters that run, by the folders of their runs."""
    found = {}
    for folder in own_folder().iterdir():
        lock, file = _lock(folder), folder / RUN_FILE
        if lock is None and file.is_file():
            facts = json.loads(file.read_text())
            found[facts["run"]] = facts["address"]
        elif lock is not None:
            os.close(lock)
    return found


def running(run: str) -> str | None:
    """The address of the cluster that a run started, by the run's folder or, if it is the only one of that name, by its
    name; None if no such run of this user is up."""
    known = all_running()
    named = [address for folder, address in known.items() if Path(folder).name == run]
    return known.get(str(Path(run).resolve())) or (named[0] if len(named) == 1 else None)


@contextmanager
def settings() -> Iterator[None]:
    """Makes the processes that Ray starts meanwhile listen on 127.0.0.1 only, notice failures soon and start no spare
    workers, and this process take 127.0.0.1 for its address. They read the variables when they start; this process has
    imported Ray, so the value that it read is changed too. A variable of `CHOSEN` that the user has set is kept."""
    before = dict(os.environ)
    os.environ.update({**CHOSEN, **before, LOOPBACK_ONLY: "0"})
    try:
        with replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
            yield
    finally:
        for name in (*CHOSEN, LOOPBACK_ONLY):
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]


def _hide_token() -> None:
    """Lets this user only enter the folder of the token that Ray makes, and read the token once it exists; Ray itself
    leaves both as open as the umask does. A token that the user provides is left alone, and without authentication
    there is none."""
    provided = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if provided or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    folder = Path.home() / ".ray"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        if (token := folder / "auth_token").exists():
            token.chmod(0o600)
    except OSError as error:
        raise UserError(
            f"Ray's token must be a file that only you can read: {error}; set RAY_AUTH_TOKEN_PATH to such a file"
        ) from error


@contextmanager
def _folder() -> Iterator[Path]:
    """A new folder for a cluster's files. It is locked until the context ends; then only Ray's logs remain in it."""
    try:
        parent = own_folder()
        remove_leftovers(parent)
        folder, lock = _new_folder(parent)
    except OSError as error:
        raise UserError(f"Ray's files need a folder of your own: {error}; set RAY_TMPDIR to one") from error
    try:
        yield folder
    finally:
        for path in folder.glob("session_2*/*"):
            if path.name != "logs":
                _remove(path)
        os.close(lock)
        remove_left()  # by commands of agents whose actor and keeper were both killed


def own_folder() -> Path:
    """The folder below which this user's clusters keep their files.

    Raises:
        UserError: its path is too long for a socket below it, or another user owns it or may enter it.
        OSError: it cannot be made.
    """
    named = os.environ.get("RAY_TMPDIR")
    folder = place([named] if named else [tempfile.gettempdir(), "/tmp"])
    if folder is None:
        raise UserError(
            f"RAY_TMPDIR={named}: the paths of Ray's sockets would be longer than {SOCKET_BYTES} bytes: name a shorter "
            "folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _require_own(folder)
    return folder


def place(bases: Sequence[str]) -> Path | None:
    """The path of this user's folder in the first of these folders below which the paths of sockets are short enough,
    if there is one."""
    places = (Path(base).absolute() / f"squelch-{os.geteuid()}" for base in bases)
    longest = SOCKET_BYTES - len(f"/XXXXXXXX{BELOW_FOLDER}")
    return next((place for place in places if len(os.fsencode(place)) <= longest), None)


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UserError(
            f"{folder} must be a folder of yours with mode 0700, because Ray's sockets lie in it: remove it, or set "
            "RAY_TMPDIR to another folder"
        )


def remove_leftovers(parent: Path) -> None:
    """Ends what is left of clusters whose starter has ended: processes that have not noticed it yet, their folders, and
    semaphores."""
    for folder in parent.iterdir():
        if (lock := _lock(folder)) is not None:
            end_processes(folder)
            _remove(folder)
            os.close(lock)
    remove_semaphores()


def _new_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and its lock. Until it is locked, another start may take it for a leftover; then a next one is
    made."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix="", dir=parent))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that locks the folder until it is closed; None if another process has the lock, or if no folder is
    there."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path) -> None:
    """Removes a folder or file as far as possible: processes that are about to end may still write below it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
