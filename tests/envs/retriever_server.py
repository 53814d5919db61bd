"""A retriever in Search-R1's form, on this machine, whose behaviour a test sets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any], int], tuple[int, bytes]]
"""(the request's body, how many came before) -> (status, body)."""


def hits(request: dict[str, Any], earlier: int) -> tuple[int, bytes]:
    """One good passage a query."""
    one = [{"document": {"contents": f'"Title"\nabout {query}'}, "score": 2.5} for query in request["queries"]]
    return 200, json.dumps({"result": [one[:1] for _ in request["queries"]]}).encode()


@contextmanager
def serving(answer: Answer, chunk: int | None = None, pause_s: float = 0.0) -> Iterator[tuple[str, list[dict]]]:
    """(url, the requests so far); the body goes out in pieces of `chunk` bytes with a pause before each."""
    requests: list[dict[str, Any]] = []
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = answer(requests[-1], len(requests) - 1)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "3600")
            self.end_headers()
            for start in range(0, len(body), chunk or max(1, len(body))):
                if stop.wait(pause_s):
                    return
                self.wfile.write(body[start : start + (chunk or len(body))])

        def handle(self) -> None:
            with suppress(OSError):  # the client has gone, as it should
                super().handle()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve", requests
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join(180)


def sleeping(seconds: float) -> Answer:
    """Answers well, but late."""

    def answer(request: dict[str, Any], earlier: int) -> tuple[int, bytes]:
        time.sleep(seconds)
        return hits(request, earlier)

    return answer
