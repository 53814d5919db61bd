"""Calls of Grafana's HTTP API, through grafana-client; every failure is a UserError that names the server.

The credentials come from the environment: `GRAFANA_TOKEN`, the token of a service account, or `GRAFANA_USER` and
`GRAFANA_PASSWORD`. They appear in no message. A certificate that is not trusted is refused (REQUESTS_CA_BUNDLE names
further authorities), a redirect too, and credentials go without TLS to this machine alone unless that is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from squelch.cluster.grafana.address import address
from squelch.cluster.grafana.boards import Tree
from squelch.cluster.grafana.changes import Found
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.base.loopback import is_loopback
from squelch.kit.base.package import needs_extra
from squelch.kit.untrusted.files import shortened
from squelch.kit.untrusted.secrets import token_in

if TYPE_CHECKING:
    from grafana_client import GrafanaApi

TIMEOUT_S = 10.0
URL = "http://127.0.0.1:3000"
TOKEN, USER, PASSWORD = "GRAFANA_TOKEN", "GRAFANA_USER", "GRAFANA_PASSWORD"
MAX_COMPLAINT = 300
"""Characters of a server's message that are passed on."""
JSON = dict[str, Any]


class Conflict(Exception):
    """Grafana refused a change because somebody else made one first (409, 412)."""


class NotGrafana(ValueError):
    """An answer without the parts that Grafana's API gives."""


class Server:
    """One Grafana server."""

    def __init__(self, url: str, plain_http: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        """Raises UserError for an address, or credentials, that cannot be used."""
        self.url = url.rstrip("/")
        self._api = _api(address(url, "--url"), _credentials(), plain_http, timeout_s)
        self._timeout_s = timeout_s

    def version(self) -> str:
        """Grafana's version, e.g. `12.3.0`; UserError if something else answers at the address."""
        with self._calls("asked for its health"):
            return str(_block(self._api.health.check()).get("version", "unknown"))

    def board(self, uid: str) -> Found | None:
        """A dashboard with its newest version's message; None if there is none."""
        with self._calls(f"asked for the dashboard {uid}"):
            answer = self._known(lambda: self._api.dashboard.get_dashboard(uid))
            if answer is None:
                return None
            board, meta = _block(_block(answer).get("dashboard")), _block(answer.get("meta"))
            version = _number(board.get("version"))
            folder, provisioned = str(meta.get("folderUid") or ""), bool(meta.get("provisioned"))
            return Found(board, version, self._message(uid, version), folder, provisioned)

    def _message(self, uid: str, version: int) -> str:
        """The message of a version in the dashboard's history; empty if the history does not have it."""
        answer = self._known(lambda: self._api.dashboard_versions.get_dashboard_versions_by_uid(uid))
        history = _blocks(answer.get("versions") if isinstance(answer, dict) else answer or [])
        return next((str(entry.get("message") or "") for entry in history if entry.get("version") == version), "")

    def save(self, board: Tree, folder: str, message: str, version: int | None) -> None:
        """Saves a dashboard over the version that was read, or as a new one. Raises Conflict if it has another."""
        content = {**board, "id": None, "version": version or 0}
        body = {"dashboard": content, "folderUid": folder, "message": message, "overwrite": False}
        with self._calls(f"given the dashboard {board['uid']}"):
            _block(self._api.dashboard.update_dashboard(body))

    def folder(self, uid: str) -> str | None:
        """The title of a folder; None if there is none."""
        with self._calls(f"asked for the folder {uid}"):
            answer = self._known(lambda: self._api.folder.get_folder(uid))
            return None if answer is None else str(_block(answer).get("title", uid))

    def create_folder(self, uid: str, title: str) -> None:
        """Creates a folder. Raises Conflict if another one has its title."""
        with self._calls(f"given the folder {title}"):
            _block(self._api.folder.create_folder(title, uid))

    def data_sources(self) -> list[JSON] | None:
        """All data sources; None if these credentials may not list them (an Editor's may not)."""
        with self._calls("asked for its data sources"):
            answer = self._known(lambda: self._api.datasource.list_datasources(), 403)
            return None if answer is None else _blocks(answer)

    def save_data_source(self, source: Mapping[str, Any], uid: str | None) -> None:
        """Creates a data source, or changes the one with this uid. Raises Conflict if another one has its name."""
        with self._calls(f"given the data source {source['name']}"):
            if uid is None:
                _block(self._api.datasource.create_datasource(dict(source)))
            else:
                _block(self._api.datasource.update_datasource_by_uid(uid, dict(source)))

    def _known(self, call: Callable[[], Any], none_if: int = 404) -> Any:
        """The result of a call; None if Grafana refuses with this status, by default because it knows no such
        object."""
        from grafana_client.client import GrafanaClientError

        try:
            return call()
        except GrafanaClientError as error:
            if error.status_code == none_if:
                return None
            raise

    @contextmanager
    def _calls(self, doing: str) -> Iterator[None]:
        """Turns the failure of a call into a UserError: address, what was done, what is wrong, and what helps."""
        from grafana_client.client import GrafanaException
        from requests import exceptions

        where = f"Grafana at {self.url}, {doing},"
        try:
            yield
        except GrafanaException as error:
            if error.status_code in (409, 412):
                raise Conflict(_complaint(error)) from error
            raise UserError(f"{where} {_refusal(error.status_code)}: {_complaint(error)}") from error
        except (json.JSONDecodeError, NotGrafana) as error:
            raise UserError(
                f"{where} gave an answer that is not that of Grafana's API, for example the login page of a proxy; "
                "give --url the address at which Grafana itself answers"
            ) from error
        except exceptions.SSLError as error:
            raise UserError(
                f"{where} shows a certificate that is not trusted ({_words(error)}); put the authority's certificate "
                "into a file and name it in REQUESTS_CA_BUNDLE"
            ) from error
        except exceptions.Timeout as error:
            raise UserError(f"{where} did not answer within {self._timeout_s:g} s") from error
        except exceptions.TooManyRedirects as error:
            to = error.response.headers.get("Location", "elsewhere") if error.response is not None else "elsewhere"
            raise UserError(
                f"{where} redirects to {shortened(to, 200)}; give --url the address at which Grafana itself answers"
            ) from error
        except exceptions.RequestException as error:
            raise UserError(
                f"{where} cannot be reached ({_words(error)}); is it running, and is --url right?"
            ) from error


def _api(parts: SplitResult, credentials: str | tuple[str, str], plain_http: bool, timeout_s: float) -> GrafanaApi:
    with needs_extra("grafana", "squelch dashboards push"):
        from grafana_client import GrafanaApi

    host = parts.hostname or ""
    if parts.scheme == "http" and not is_loopback(host) and not plain_http:
        raise UserError(
            f"--url {parts.geturl()} would send credentials over the network unencrypted; give an https address, or "
            "--plain-http if the network may read them"
        )
    prefix = parts.path.strip("/")
    api = GrafanaApi(
        credentials,
        host=f"[{host}]" if ":" in host else host,
        port=parts.port,
        url_path_prefix=f"{prefix}/" if prefix else "",
        protocol=parts.scheme,
        verify=True,
        timeout=timeout_s,
    )
    api.client.s.max_redirects = 0  # a redirect leads to a login page, or takes a POST for a GET
    return api


def _credentials() -> str | tuple[str, str]:
    with as_user_error():
        token = token_in(TOKEN)
    if token:
        return token
    user, password = (os.environ.get(name, "") for name in (USER, PASSWORD))
    if user and password:
        return user, password
    raise UserError(
        f"no credentials for Grafana: set {TOKEN} to the token of a service account with the role Editor (Admin if it "
        f"is to add the data source), or {USER} and {PASSWORD}; --dry-run asks the server, too. `squelch "
        "dashboards export FOLDER` writes the dashboards as files, without a server"
    )


def _block(value: Any) -> JSON:
    if not isinstance(value, dict):
        raise NotGrafana("no block")
    return value


def _blocks(value: Any) -> list[JSON]:
    if not isinstance(value, list):
        raise NotGrafana("no list")
    return [_block(item) for item in value]


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise NotGrafana("no number")
    return value


def _refusal(status: int) -> str:
    return {
        400: "refuses it",
        401: f"does not accept the credentials; check {TOKEN}, or {USER} and {PASSWORD}",
        403: "does not allow it; the service account needs the role Editor, and Admin for data sources",
        404: "does not know it",
    }.get(status, f"fails with status {status}")


def _complaint(error: Any) -> str:
    """The server's own words on one line; a web page is not repeated."""
    response = error.response
    answer = response.get("message", "") if isinstance(response, dict) else str(response)
    return shortened(" ".join(str(answer).split()), MAX_COMPLAINT) if "<html" not in answer.lower() else "a web page"


def _words(error: Exception) -> str:
    return shortened(" ".join(str(error).split()), MAX_COMPLAINT)
