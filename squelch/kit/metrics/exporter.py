"""Serves the store of `kit.metrics.series` to Prometheus over HTTP, at `/metrics`.

Invariants:

- A scrape delays a writer only for the time it takes to copy the values: one lock guards copies and updates.
- No actor waits for the exporter, and the exporter waits for none; `close` raises if the exporter's thread does not end
  within `CLOSE_TIMEOUT_S`.
- Once the run has ended in order (`squelch_run_ended` is 1), `close` waits for a Prometheus that scrapes to read that;
  at most `LAST_SCRAPE_S`, and one and a half of its intervals since its last scrape. After a failure it waits for none.
- The exporter listens at the first free one of `PORTS` unless `recorder.port` is set, and on loopback unless
  `recorder.host` is set. Beyond loopback it does not start without a token, which the variable SQUELCH_METRICS_TOKEN
  holds, and answers 401 to every request that lacks `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import errno
import hmac
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import BaseServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from squelch.kit.base.loopback import is_loopback
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.series import Flat, MetricStore
from squelch.kit.metrics.settings import RecorderConfig
from squelch.kit.metrics.specification import LabelValues, MetricSpec
from squelch.kit.untrusted.secrets import token_in

PORTS = range(9464, 9474)
"""Ports that are tried in order if none is set, so that several runs fit on a machine; the shipped Prometheus
configurations scrape all of them."""
CLOSE_TIMEOUT_S = 5.0
LAST_SCRAPE_S = 60.0
ENDED = "squelch_run_ended"
PROMETHEUS = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"
"""A header of every scrape by Prometheus, and of nobody who looks at the metrics in a browser."""
TOKEN = "SQUELCH_METRICS_TOKEN"
LEAST_TOKEN = 16
REQUEST_S = 10.0
"""Seconds of a connection, however much of a request it sends meanwhile."""
MOST_CLIENTS, MOST_OF_ONE = 64, 16
"""Connections at a time, in all and of one address; each needs a thread and a file descriptor of the driver."""
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
"""A WSGI application."""


class Recorder:
    """The metrics of `registry`: takes a step's flat dict or single values, and serves all series at `/metrics`.

    `seeds` maps a label's name to the values known at the start, e.g. `{"worker": ["rollout-0"], "actor": [...]}`, so
    that their series exist before the first value. Any thread may call any method.
    """

    def __init__(
        self, config: RecorderConfig, registry: Registry, seeds: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._config = config
        self._store = MetricStore(registry, seeds)
        self._lock = threading.Lock()
        self._written = 0.0
        self._scrapes = deque[float](maxlen=2)
        """When the last two scrapes by Prometheus began; as `_written`, by the monotonic clock."""
        self._server: BaseServer | None = None
        self._thread: threading.Thread | None = None
        self.port = config.port or 0

    def start(self) -> None:
        """Starts listening and sets `port` to the actual port. Raises ValueError if the port, or every one of `PORTS`,
        is in use, or if a token is required and missing."""
        registry = CollectorRegistry()
        registry.register(StoreCollector(self._store, self._lock))
        ProcessCollector(registry=registry)
        app = self._noting_scrapes(make_wsgi_app(registry))
        if not is_loopback(self._config.host):
            app = _guarded(app, _token(self._config.host))
        self._server = _listening(self._config, app)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port = self._server.server_address[1]

    @property
    def url(self) -> str:
        """The address that Prometheus scrapes."""
        return f"http://{self._config.host}:{self.port}/metrics"

    @property
    def has_moved(self) -> bool:
        """Whether it listens at another than the first of `PORTS`, which is taken, because no port is set."""
        return self._config.port is None and self.port != PORTS[0]

    def step(self, step: int, flat: Flat) -> None:
        """Records all values of training step `step` by flat key (docs/reference/metrics.md); an error changes no
        series."""
        with self._writing():
            self._store.step({"time": time.time(), **flat, "step": step})

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Sets a gauge; None sets it to NaN, which means "not known"."""
        self._of_kind(name, "gauge", value, labels)

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Adds to a counter."""
        self._of_kind(name, "counter", amount, labels)

    def replace(self, name: str, values: Mapping[LabelValues, float | None]) -> None:
        """Sets all series of a gauge at once, by label values in the metric's order; None means "not known"."""
        with self._writing():
            self._store.replace(name, values)

    def forget(self, label: str, values: Collection[str]) -> None:
        """Ends the series of these values of `label`, e.g. of rollout workers that have left."""
        with self._writing():
            self._store.forget(label, values)

    def _of_kind(self, name: str, kind: str, value: float | None, labels: Mapping[str, str]) -> None:
        spec = self._store.registry.spec(name)
        if spec.kind != kind:
            raise ValueError(f"{name} is a {spec.kind}, not a {kind}: `set` is for gauges, `add` for counters")
        with self._writing():
            self._store.observe(name, value, **labels)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            yield
            self._written = time.monotonic()

    def _noting_scrapes(self, app: Application) -> Application:
        def noting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            began = time.monotonic()
            answer = app(environ, start_response)
            if PROMETHEUS in environ:
                self._scrapes.append(began)
            return answer

        return noting

    def _await_last_scrape(self) -> None:
        """Returns at once if no orderly end was set, or Prometheus does not scrape, or has read the last values."""
        if self._store.scalars.get(ENDED, {}).get(()) != 1 or len(self._scrapes) < 2:
            return
        before, last = self._scrapes
        end = min(last + 1.5 * (last - before), time.monotonic() + LAST_SCRAPE_S)
        while self._scrapes[-1] <= self._written and time.monotonic() < end:
            time.sleep(0.05)

    def close(self) -> None:
        """Waits for the last scrape of a run that ended in order, and stops listening; may be called twice."""
        if self._server is None or self._thread is None:
            return
        self._await_last_scrape()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the metrics endpoint's thread did not end within {CLOSE_TIMEOUT_S} s")
        self._server = self._thread = None


class StoreCollector(Collector):
    """Turns the store into metric families at each scrape."""

    def __init__(self, store: MetricStore, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock

    def collect(self) -> list[Metric]:
        with self._lock:
            return [self._family(spec) for spec in self._store.registry.specs.values()]

    def _family(self, spec: MetricSpec) -> Metric:
        if spec.kind == "histogram":
            family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
            histogram = self._store.histograms[spec.name]
            family.add_metric((), histogram.cumulative(), histogram.total)
            return family
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        family = kind(spec.name, spec.help, labels=spec.labels)
        for values, value in self._store.scalars[spec.name].items():
            family.add_metric(values, value)
        return family


class _Quiet(WSGIRequestHandler):
    """Writes no line for each scrape, and ends a connection after `REQUEST_S`: one that sends a byte now and then would
    otherwise hold its place for good."""

    timeout = REQUEST_S

    def handle(self) -> None:
        """Answers one request; a client that is too slow gets none."""
        end = threading.Timer(REQUEST_S, self._end)
        end.daemon = True
        end.start()
        try:
            with suppress(OSError):
                super().handle()
        finally:
            end.cancel()

    def _end(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _server(host: str, port: int, app: Application) -> WSGIServer:
    """A server that listens already. OSError if it cannot."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]

    class Server(ThreadingMixIn, WSGIServer):
        address_family = family
        daemon_threads = True

        def __init__(self, *arguments: Any) -> None:
            self.clients, self.lock = Counter[str](), threading.Lock()
            super().__init__(*arguments)

        def process_request(self, request: Any, client_address: Any) -> None:
            if not self._enter(client_address[0]):
                self.shutdown_request(request)
                return
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self._leave(client_address[0])
                raise

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                self._leave(client_address[0])

        def _enter(self, address: str) -> bool:
            with self.lock:
                has_room = self.clients.total() < MOST_CLIENTS and self.clients[address] < MOST_OF_ONE
                self.clients[address] += has_room
                return has_room

        def _leave(self, address: str) -> None:
            with self.lock:
                self.clients[address] -= 1
                self.clients = +self.clients  # without addresses that have left

    return make_server(str(address[0]), port, app, Server, _Quiet)


def _token(host: str) -> str:
    """The token that is required beyond loopback; ValueError without one."""
    token = token_in(TOKEN)
    if len(token) < LEAST_TOKEN:
        raise ValueError(
            f"recorder.host={host!r} opens /metrics to the network: set {TOKEN} to a token of at least {LEAST_TOKEN} "
            "characters, and give it to Prometheus (`authorization: credentials_file`)"
        )
    return token


def _guarded(app: Application, token: str) -> Application:
    """The application for those who send the token; 401 for all others. Tokens are compared in constant time."""
    wanted = f"Bearer {token}".encode()

    def guarded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if hmac.compare_digest(environ.get("HTTP_AUTHORIZATION", "").encode(), wanted):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
        return [b"a token is required\n"]

    return guarded


def _listening(config: RecorderConfig, app: Application) -> WSGIServer:
    """A server at the port that is set, else at the first free one of `PORTS`. ValueError if there is none."""
    for port in PORTS if config.port is None else (config.port,):
        try:
            return _server(config.host, port, app)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or config.port is not None:
                raise ValueError(_explain(config.host, port, error)) from error
    raise ValueError(
        f"other processes listen on all ports from {PORTS[0]} to {PORTS[-1]} of {config.host}, where metrics are "
        "exported by default. Set recorder.port to another number, or to 0 for any free port."
    )


def _explain(host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"recorder.port={port}: another process already listens on {where}. "
            "Give recorder.port another number, or 0 for any free port."
        )
    if error.errno == errno.EACCES:
        return f"recorder.port={port}: this user may not listen on {where}; take a port above 1023."
    return f"recorder.host={host!r}: cannot listen on {where} ({error}); 127.0.0.1 serves this machine only."
