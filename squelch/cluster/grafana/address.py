"""Addresses of servers that a user gives. Pure."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import brief


def address(url: str, flag: str) -> SplitResult:
    """The parts of a server's address. UserError, which names the flag, if it is no http(s) address or holds
    credentials, which other users of the machine could read."""
    parts = _parts(url)
    if parts is None or parts.query or parts.fragment:
        raise UserError(f"{flag} {brief(url)} is not an address such as https://example.com or http://127.0.0.1:9090")
    if parts.username or parts.password:
        raise UserError(f"{flag} must not hold credentials, which others could read; set them in the environment")
    return parts


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
