"""A Prometheus that is none, is down, or refuses an expression is named; a token is never shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from squelch.cluster.grafana.prometheus import Prometheus, Span
from squelch.kit.base.errors import UserError


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that gives every request this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(180)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>login</html>", "does not answer as Prometheus"),
        (503, b'{"status": "error"}', "status 503"),
        (400, b'{"status": "error", "error": "1:1: parse error"}', "refuses `up`: 1:1: parse error"),
    ],
)
def test_a_server_that_is_no_prometheus_or_refuses_the_expression_is_named(status: int, body: bytes, says: str) -> None:
    with answering(status, body) as url, pytest.raises(UserError) as caught:
        Prometheus(url).over("up", Span(0, 1))
    assert url in str(caught.value) and says in str(caught.value)


def test_a_token_that_no_header_carries_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_TOKEN", "s3cret!\nsecond-line")
    with pytest.raises(UserError, match="PROMETHEUS_TOKEN") as caught:
        Prometheus("http://127.0.0.1:9")
    assert "s3cret" not in str(caught.value) and "second-line" not in str(caught.value)
