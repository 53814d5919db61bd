"""Ray's token, for a command that asks a cluster which is up.

As with Ray's own tools, RAY_AUTH_MODE=token says that there is one, and RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or
~/.ray/auth_token holds it. Without the variable it is sent to a Ray of this user on this machine alone: nobody else who
listens somewhere and asks for it gets it. `ray start` sets the variable for the cluster's processes, but not for the
shell in which it was called.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import psutil
from ray.exceptions import AuthenticationError

from squelch.cluster.fleet.ray_internals import AuthenticationTokenLoader, GcsClient, enable_token_auth
from squelch.kit.base.errors import UserError

MODE = "RAY_AUTH_MODE"
_HEAD = re.compile(r"[^/]+:\d+")
T = TypeVar("T")


def with_token(ask: Callable[[], T], address: str) -> T:
    """What `ask` returns. It is called again with this user's token if the cluster at the address wants one and is this
    user's own.

    Raises:
        UserError: the cluster wants a token, or another one; the text holds the line to type.
    """
    try:
        return ask()
    except AuthenticationError as error:
        if MODE in os.environ or not _has_token() or not _is_own(address):
            raise UserError(_wanted(address)) from error
    enable_token_auth()
    try:
        return ask()
    except AuthenticationError as error:
        raise UserError(_wanted(address)) from error


def take_token(address: str) -> None:
    """Asks the head of a cluster whether it wants a token, and takes it as `with_token` does; `ray.init` would ask in
    vain for 20 s. An address of another form than HOST:PORT is left to Ray.

    Raises:
        UserError: as `with_token`.
    """
    if _sends() and not _has_token():  # Ray would end the process
        raise UserError(_wanted(address))
    if _HEAD.fullmatch(address):
        with_token(lambda: GcsClient(address=address), address)


def _sends() -> bool:
    return os.environ.get(MODE, "").lower() == "token"


def _has_token() -> bool:
    with suppress(AuthenticationError):  # RAY_AUTH_TOKEN_PATH names no file, or an empty one
        return bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
    return False


def _is_own(address: str) -> bool:
    """Whether a Ray of this user listens there, at an address of this machine."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        with socket.socket() as bound:
            bound.bind((parts.hostname or "", 0))
    except OSError:  # no address of this machine
        return False
    listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return any(_is_rays(one.pid) for one in listening if one.pid and one.laddr[1:2] == (parts.port,))


def _is_rays(pid: int) -> bool:
    """Whether a process is one of Ray's and of this user."""
    try:
        process = psutil.Process(pid)
        words = process.cmdline()[:4]
        return process.uids().effective == os.geteuid() and any(f"{os.sep}ray{os.sep}" in word for word in words)
    except psutil.Error:
        return False


def _wanted(address: str) -> str:
    """What to type where a cluster wants a token, or another one."""
    named = "RAY_AUTH_TOKEN" if "RAY_AUTH_TOKEN" in os.environ else os.environ.get("RAY_AUTH_TOKEN_PATH")
    own = named or "~/.ray/auth_token"
    theirs = "the file of the cluster's token, which its head usually has in ~/.ray/auth_token"
    if not _has_token():
        text = f"wants a token, and {own} has none. Type `export {MODE}=token RAY_AUTH_TOKEN_PATH=FILE`, {theirs}"
    elif _sends():
        other = "unset RAY_AUTH_TOKEN; " if own == "RAY_AUTH_TOKEN" else ""
        text = f"has another token than {own}. Type `{other}export RAY_AUTH_TOKEN_PATH=FILE`, {theirs}"
    else:
        text = f"wants a token. Type `export {MODE}=token`, which sends it the one in {own}"
    return f"the Ray cluster at {address} {text}"
