"""A check says which expressions Prometheus refuses, and what is wrong with the schema or the address.

`tests.deploy.test_dashboards` runs it against a real Prometheus."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from squelch.cluster.cli import main
from squelch.cluster.grafana import boards

EXPRESSIONS = [one for board in boards.shipped().values() for one in boards.expressions(board)]


@contextmanager
def answering(status: int, body: bytes, refuse: str = "") -> Iterator[str]:
    """A server that gives every request this answer, and refuses expressions that contain `refuse`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            expr = parse_qs(urlsplit(self.path).query)["query"][0]
            refused = refuse and refuse in expr
            answer = json.dumps({"status": "error", "error": "1:1: parse error"}).encode() if refused else body
            self.send_response(400 if refused else status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


def vector(*values: str) -> bytes:
    result = [{"metric": {}, "value": [0, value]} for value in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def test_expressions_have_no_variable_left_and_cover_panels_and_annotations() -> None:
    assert len(EXPRESSIONS) > 100 and not any(re.search(r"\$[a-z_{]", one.expr) for one in EXPRESSIONS)
    assert {"Kept", "annotation Alarms"} <= {one.place for one in EXPRESSIONS}


def test_a_refused_expression_is_listed_with_its_panel_and_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, vector("1"), refuse="squelch_kept_mass_ratio") as url:
        assert main(["dashboards", "check", "--prometheus", url]) == 1
    said = capsys.readouterr().out
    assert "  Kept: squelch_kept_mass_ratio" in said and "parse error" in said


def test_an_expression_without_a_value_is_counted_and_listed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, vector("NaN")) as url:
        assert main(["dashboards", "check", "--prometheus", url]) == 0
        short = capsys.readouterr().out
        assert main(["dashboards", "check", "--prometheus", url, "--empty"]) == 0
    assert "; 0 have values" in short and "Kept mass:" not in short
    assert "  Kept mass: squelch_kept_mass_ratio" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [(200, b"<html>login</html>", "does not answer as Prometheus"), (503, b'{"status": "error"}', "status 503")],
)
def test_a_server_that_is_no_prometheus_is_named(
    status: int, body: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        assert main(["dashboards", "check", "--prometheus", url]) == 2
    error = capsys.readouterr().err
    assert url in error and says in error


def test_a_token_that_no_header_carries_is_named_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROMETHEUS_TOKEN", "s3cret!\nsecond-line")
    assert main(["dashboards", "check", "--prometheus", "http://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "PROMETHEUS_TOKEN" in error and "s3cret" not in error and "second-line" not in error


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense"])
def test_a_prometheus_that_is_down_is_said_at_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "check", "--prometheus", url]) == 2
    assert url in (error := capsys.readouterr().err) and "Traceback" not in error


def test_a_dashboard_that_breaks_the_schema_fails_the_check_and_a_bad_schema_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQUELCH_GRAFANA_SCHEMA", raising=False)
    schema = tmp_path / "schema.json"
    for content, code, says in (
        ({"properties": {"title": {"type": "string"}}}, 0, "matches the schema"),
        ({"properties": {"title": {"type": "number"}}}, 1, "$.title: 'Squelch: Training' is not of type 'number'"),
        ([], 2, "no JSON schema"),
    ):
        schema.write_text(json.dumps(content))
        assert main(["dashboards", "check", "--schema", str(schema)]) == code, content
        seen = capsys.readouterr()
        assert says in seen.out + seen.err
    assert main(["dashboards", "check", "--schema", str(tmp_path / "none")]) == 2
    assert main(["dashboards", "check"]) == 0 and "no schema" in capsys.readouterr().out
