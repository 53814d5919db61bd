"""Who may read the inspector's pages."""

import socket
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from squelch.cluster.inspector.guard import HEADERS, Access, Guard
from squelch.cluster.inspector.server import access_of, listen, url
from squelch.kit.base.errors import UserError

TOKEN = "a-token-of-sixteen-or-more"


def browser(access: Access, host: str = "127.0.0.1:8420") -> TestClient:
    guard = Guard(PlainTextResponse("the page"), access)
    return TestClient(guard, base_url=f"http://{host}", follow_redirects=False)


LOCAL = access_of("127.0.0.1", 8420, None, [])
REMOTE = access_of("10.1.2.3", 8420, TOKEN, ["gpu7.example.org"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8420", "LOCALHOST:8420", "[::1]:8420", "localhost", "[::1]", "localhost:9000"]
)
def test_the_servers_own_names_are_answered_at_any_port_of_a_tunnel(host: str) -> None:
    assert browser(LOCAL).get("/", headers={"Host": host}).text == "the page"


@pytest.mark.parametrize(
    "host", ["evil.example:8420", "127.0.0.1.evil.example", "", "localhost:8420@evil", "10.1.2.3:8420"]
)
def test_a_name_that_another_site_made_resolve_here_is_refused(host: str) -> None:
    answer = browser(LOCAL).get("/", headers={"Host": host})
    assert answer.status_code == 421 and "the page" not in answer.text and "--allow-host" in answer.text


@pytest.mark.parametrize("given", ["gpu8.example", "GPU8.example:9000", "https://gpu8.example/squelch/?a=1"])
def test_the_name_that_a_refusal_recommends_is_answered_once_it_is_given(given: str) -> None:
    refused = browser(LOCAL).get("/", headers={"Host": "gpu8.example:9000"})
    assert "--allow-host gpu8.example\n" in refused.text
    allowed = browser(access_of("127.0.0.1", 8420, None, [given]))
    assert allowed.get("/", headers={"Host": "gpu8.example:9000"}).text == "the page"


def test_what_is_no_name_cannot_be_allowed() -> None:
    with pytest.raises(UserError, match=r"--allow-host a b: give the name in the address bar"):
        access_of("127.0.0.1", 8420, None, ["a b"])


def test_every_answer_has_the_headers_and_no_inline_script_or_style_is_allowed() -> None:
    answers = [browser(LOCAL).get("/"), browser(LOCAL).get("/", headers={"Host": "evil"}), browser(REMOTE).get("/")]
    for answer in answers:
        assert HEADERS.items() <= {**dict(answer.headers), **{k: answer.headers[k] for k in HEADERS}}.items()
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    assert browser(LOCAL).request(method, "/").status_code == 405


def test_beyond_loopback_a_token_is_needed_and_kept_in_a_cookie_that_no_script_and_no_other_site_sees() -> None:
    remote = browser(REMOTE, "gpu7.example.org:8420")
    assert remote.get("/").status_code == 401
    assert remote.get("/?token=wrong").status_code == 401
    welcome = remote.get(f"/scores?step=3&token={TOKEN}&row=1")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "./scores?step=3&row=1")
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and cookie.startswith(f"{REMOTE.cookie}=")
    assert TOKEN not in REMOTE.cookie != access_of("10.1.2.3", 8420, "another-token-of-sixteen", []).cookie
    assert remote.get("/").text == "the page"


def test_a_script_gives_the_token_in_a_header() -> None:
    remote = browser(REMOTE, "10.1.2.3:8420")
    assert remote.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert remote.get("/", headers={"Authorization": "Bearer nonsense"}).status_code == 401
    assert remote.get("/", headers={"Authorization": "Bearer "}).status_code == 401


def test_a_welcome_never_leads_to_another_site() -> None:
    answer = browser(REMOTE, "10.1.2.3:8420").get(f"http://10.1.2.3:8420//evil.example/?token={TOKEN}")
    assert answer.headers["location"] == "./"


def test_only_loopback_goes_without_a_token() -> None:
    made = access_of("0.0.0.0", 8420, None, [])
    assert (
        made.token is not None and len(made.token) >= 32 and f"token={made.token}" in url("0.0.0.0", made, made.token)
    )
    assert LOCAL.token is None and url("127.0.0.1", LOCAL, None) == "http://127.0.0.1:8420/"


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} cannot be opened: .*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match=r"192\.0\.2\.1:8420 cannot be opened: .*address of this machine"):
        listen("192.0.2.1", 8420)
    with listen("127.0.0.1", 0) as free:
        assert isinstance(free, socket.socket)
