"""Serves the application: opens the port, prints the address, and answers until it is interrupted."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Sequence

import uvicorn

from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.connections import Bounded
from squelch.cluster.inspector.guard import LOOPBACK_NAMES, Access, host_of
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.base.loopback import is_loopback
from squelch.kit.process.terminal import say_unmasked
from squelch.kit.untrusted.files import reason, shortened

SHUTDOWN_S = 2
"""Seconds that requests under way may take after an interrupt."""


def serve(
    folder: RunFolder,
    host: str,
    port: int,
    token: str | None = None,
    names: Sequence[str] = (),
    others: Sequence[RunFolder] = (),
) -> None:
    """Shows the run at http://HOST:PORT until Ctrl-C.

    Args:
        port: 0 takes a free one.
        token: that readers from other machines must give; None makes one if `host` is not loopback.
        names: further names under which browsers reach this server.
        others: the runs whose metrics may be shown beside this one's.
    Raises:
        UserError: two runs have the same name, the port cannot be opened, or the run's index cannot be read.
    """
    names_of_runs = [one.name for one in (folder, *others)]
    if len(set(names_of_runs)) < len(names_of_runs):
        raise UserError(
            f"the runs are called {', '.join(names_of_runs)}, and the page tells them apart by name; "
            "give each --compare a run of another name"
        )
    listening = listen(host, port)
    with listening:
        access = access_of(host, listening.getsockname()[1], token, names)
        app = application(folder, access, others=others)
        address = url(host, access, "$SQUELCH_INSPECT_TOKEN" if token else access.token)
        say_unmasked(f"{folder.name}: {address}  (Ctrl-C ends it; the run is only read)")
        config = uvicorn.Config(
            app, http=Bounded, log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S, h11_max_incomplete_event_size=65536,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. UserError if it cannot be opened, which says what to do."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(128)
    except OSError as error:
        taken = "another program listens there, perhaps the inspector of another run; choose a free port with --port"
        why = taken if error.errno == errno.EADDRINUSE else f"{reason(error)}; give an address of this machine"
        raise UserError(f"{host}:{port} cannot be opened: {why}") from error
    return found


def access_of(host: str, port: int, token: str | None, names: Sequence[str]) -> Access:
    """The permission to read from a server on this address. UserError for a further name that is none."""
    further = {host_of(name) for name in names}
    if "" in further:
        wrong = next(name for name in names if not host_of(name))
        raise UserError(
            f"--allow-host {shortened(wrong, 80)}: give the name in the address bar, such as gpu7.example.org"
        )
    if is_loopback(host):
        return Access(LOOPBACK_NAMES | {host.lower()} | further, port, token)
    own = {host.lower(), socket.gethostname().lower()}
    return Access(LOOPBACK_NAMES | own | further, port, token or secrets.token_urlsafe(24))


def url(host: str, access: Access, token: str | None) -> str:
    """The address to open, with the token as it is to be printed."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{access.port}/" + (f"?token={token}" if token else "")
