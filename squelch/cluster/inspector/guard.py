"""Decides who may read the pages, and what a browser may do with them.

- Only GET and HEAD are answered: nothing can be changed through the inspector.
- The `Host` header must be one of the names under which the server was started, with any port, since a tunnel may begin
  at another one. A page of another site that has its own name resolve to 127.0.0.1 (DNS rebinding) sends its own name
  there and is refused.
- On loopback there is no login. On any other address a token is required: `?token=...` once, which sets a cookie that
  scripts cannot read (`HttpOnly`) and other sites cannot send (`SameSite=Strict`), or `Authorization: Bearer ...`.
  Tokens are compared in constant time.
- The content security policy allows scripts, styles and data from this server alone, and nothing inline.

Pure ASGI: it works with any application behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from squelch.kit.untrusted.files import shortened

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(?:https?://)?(?:\[(?P<bracketed>[0-9a-f:.]+)\]|(?P<name>[\w.-]+|[0-9a-f:]+))(?::\d+)?(?:/.*)?")
COOKIE_SECONDS = 12 * 3600


@dataclass(frozen=True)
class Access:
    """The permission to read. `names`: names or addresses under which browsers reach the server; `token`: None on
    loopback."""

    names: frozenset[str]
    port: int
    token: str | None = None

    @property
    def cookie(self) -> str:
        """The cookie's name. Browsers do not tell the ports of a host apart, and tunnels to servers of several machines
        may begin at one, so it is made from the token."""
        return f"squelch_inspect_{hashlib.sha256((self.token or '').encode()).hexdigest()[:12]}"

    def knows_host(self, header: str | None) -> bool:
        """Whether a `Host` header names this server."""
        return host_of(header or "") in self.names

    def is_token(self, given: str | None) -> bool:
        """Whether this is the token; takes equally long for every wrong one of a length."""
        return self.token is None or hmac.compare_digest((given or "").encode(), self.token.encode())


def host_of(text: str) -> str:
    """The name in a `Host` header, or in an address as a browser shows it: without scheme, port and path, in lower
    case; empty if there is none."""
    found = _HOST.fullmatch(text.strip().lower())
    return (found["bracketed"] or found["name"]) if found else ""


class Guard:
    """The application behind the rules above."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not let through; None for one that is."""
        headers = Headers(scope=scope)
        if not self.access.knows_host(headers.get("host")):
            name = host_of(headers.get("host", "")) or "NAME"
            return PlainTextResponse(
                "This server does not go by the name in the address bar. Open the address that `squelch inspect` "
                "printed, or, if this name is yours, start `squelch inspect` with "
                f"--allow-host {shortened(name, 80)}\n",
                status_code=421,
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The inspector only reads.\n", status_code=405, headers={"Allow": "GET, HEAD"})
        return None if self.access.token is None else self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and self.access.is_token(given):
            return self._welcome(scope["path"].rpartition("/")[2], [pair for pair in query if pair[0] != "token"])
        cookie = cookie_parser(headers.get("cookie", "")).get(self.access.cookie)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self.access.is_token(cookie) or self.access.is_token(bearer):
            return None
        return PlainTextResponse(
            "A token is needed: open the whole address that `squelch inspect` printed, with ?token=...\n",
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _welcome(self, page: str, query: list[tuple[str, str]]) -> Response:
        """Takes the token out of the address and keeps it in a cookie. The new address is relative, as all links."""
        response = RedirectResponse(f"./{page}" + (f"?{urlencode(query)}" if query else ""), status_code=303)
        response.set_cookie(
            self.access.cookie, self.access.token or "", max_age=COOKIE_SECONDS, httponly=True, samesite="strict"
        )
        return response
