"""A stand-in of Grafana's HTTP API as published, with state: data sources, folders, dashboards with their history.

It refuses what Grafana refuses: wrong credentials (401), an old version (412), a folder's title twice (409), a
dashboard that comes from a file (400). It can also be slow, redirect, or show a login page.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN, USER, PASSWORD = "glsa_right", "admin", "secret pass"
JSON = dict[str, Any]


@dataclass
class Grafana:
    """The server's state. `normalise`: fills in a default as Grafana's editor does; `before`: called with each
    request's method and path before it is answered."""

    sources: list[JSON] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    boards: dict[str, list[JSON]] = field(default_factory=dict)
    """Every version of a dashboard, oldest first: dashboard, message, folder."""
    provisioned: set[str] = field(default_factory=set)
    normalise: bool = False
    old_history: bool = False
    editor: bool = False
    """Whether the credentials are those of an Editor, who may not see data sources."""
    page: str = ""
    """If set, every answer is this web page."""
    redirect: str = ""
    pause_s: float = 0.0
    before: Callable[[str, str], None] = lambda method, path: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def changes(self) -> list[tuple[str, str]]:
        """The requests so far that change something."""
        return [request for request in self.requests if request[0] != "GET"]

    def edit(self, uid: str, change: Callable[[JSON], None], message: str = "") -> None:
        """Somebody changes a dashboard in Grafana's editor, which fills in defaults and saves."""
        newest = deepcopy(self.boards[uid][-1])
        change(newest["dashboard"])
        for panel in newest["dashboard"]["panels"]:
            panel.setdefault("pluginVersion", "12.3.0")
        newest["dashboard"]["version"] += 1
        self.boards[uid].append(newest | {"message": message})

    def answer(self, method: str, path: str, body: JSON) -> tuple[int, Any]:
        """Status and JSON of a request below /api."""
        kind, *rest = path.strip("/").split("/")
        if kind == "health":
            return 200, {"commit": "c", "database": "ok", "version": "12.3.0"}
        return getattr(self, f"_{kind}_{method.lower()}")(rest, body)

    def _datasources_get(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        return 200, deepcopy(self.sources)

    def _datasources_post(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        if any(source["name"] == body["name"] for source in self.sources):
            return 409, {"message": "data source with the same name already exists"}
        self.sources.append({**body, "id": len(self.sources) + 1, "version": 1, "readOnly": False})
        return 200, {"message": "Datasource added", "datasource": self.sources[-1]}

    def _datasources_put(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        at = next(i for i, source in enumerate(self.sources) if source["uid"] == rest[1])
        self.sources[at] = {**body, "version": self.sources[at]["version"] + 1}
        return 200, {"message": "Datasource updated"}

    def _folders_get(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        if rest[0] not in self.folders:
            return 404, {"message": "folder not found", "status": "not-found"}
        return 200, {"uid": rest[0], "title": self.folders[rest[0]], "version": 1}

    def _folders_post(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        if body["title"] in self.folders.values():
            return 409, {"message": "a folder with the same name already exists in the current location"}
        self.folders[body["uid"]] = body["title"]
        return 200, {"uid": body["uid"], "title": body["title"], "version": 1}

    def _dashboards_get(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        versions = self.boards.get(rest[1])
        if not versions:
            return 404, {"message": "Dashboard not found"}
        if rest[2:] == ["versions"]:
            history = [
                {"version": v["dashboard"]["version"], "message": v["message"], "createdBy": "x"}
                for v in versions[::-1]
            ]
            return 200, history if self.old_history else {"continueToken": "", "versions": history}
        newest = versions[-1]
        meta = {"folderUid": newest["folder"], "provisioned": rest[1] in self.provisioned, "version": len(versions)}
        return 200, {"dashboard": deepcopy(newest["dashboard"]), "meta": meta}

    def _dashboards_post(self, rest: list[str], body: JSON) -> tuple[int, Any]:
        board, versions = deepcopy(body["dashboard"]), self.boards.setdefault(body["dashboard"]["uid"], [])
        if board["uid"] in self.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        if body["folderUid"] and body["folderUid"] not in self.folders:
            return 400, {"message": "folder not found"}
        present = versions[-1]["dashboard"]["version"] if versions else 0
        if board["version"] != present and not body["overwrite"]:
            reported = "The dashboard has been changed by someone else"
            return 412, {"status": "version-mismatch", "message": reported}
        board |= {"id": 7, "version": present + 1} | ({"preload": False} if self.normalise else {})
        versions.append({"dashboard": board, "message": body["message"], "folder": body["folderUid"]})
        return 200, {"id": 7, "uid": board["uid"], "status": "success", "version": board["version"]}


def _allowed(header: str) -> bool:
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return header in (f"Bearer {TOKEN}", f"Basic {basic}")


def _handler(grafana: Grafana, prefix: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            path = self.path.split("?")[0].removeprefix(prefix).removeprefix("/api")
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            grafana.requests.append((self.command, path))
            if grafana.stopped.wait(grafana.pause_s):
                return
            grafana.before(self.command, path)
            if grafana.redirect:
                return self.send(302, "", {"Location": grafana.redirect})
            if grafana.page:
                return self.send(200, grafana.page, {"Content-Type": "text/html"})
            if path != "/health" and not _allowed(self.headers.get("Authorization", "")):
                return self.send(401, json.dumps({"message": "Invalid API key"}))
            if grafana.editor and path.startswith("/datasources"):
                return self.send(403, json.dumps({"message": "You'll need additional permissions"}))
            status, answer = grafana.answer(self.command, path, body)
            self.send(status, json.dumps(answer))

        do_GET = do_POST = do_PUT = respond

        def send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def handle(self) -> None:
            with suppress(OSError):  # the client has gone, as it should
                super().handle()

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextmanager
def serving(grafana: Grafana, prefix: str = "", certificate: Path | None = None) -> Iterator[str]:
    """The address of the stand-in on this machine. `certificate`: a PEM file with key and certificate, for TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(grafana, prefix))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}{prefix}"
    finally:
        grafana.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join(180)
