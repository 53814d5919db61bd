"""A real Prometheus and Alertmanager for tests: starts Debian's on loopback, lets Prometheus scrape one endpoint, and
asks it questions; a webhook keeps what Alertmanager sends."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from squelch.cluster.metrics import REGISTRY
from squelch.deploy.boards import ANNOTATIONS, BOARDS
from squelch.deploy.dashboards import ROOT
from squelch.kit.metrics.exporter import StoreCollector
from squelch.kit.metrics.series import MetricStore
from tests.needs import skip_or_fail

ALERTS = ROOT / "squelch" / "deploy" / "alerts.yml"
RULES = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
BLIND = {"SquelchReasoningBlind", "SquelchCardStarved", "SquelchFindingCritical", "SquelchFindingWarning"}
"""Rules whose metrics have no value in some healthy runs: those without pictures, on CPUs, and without a finding."""
JOB = "squelch/squelch"
"""As the Prometheus operator names the scrape job of a PodMonitor, so that no query rests on a name of ours."""
OPERATORS = {"namespace": "squelch", "pod": "squelch-head-x", "container": "ray-head", "endpoint": "run-metrics"}
"""The labels that it adds to each series."""
INTERVAL_S = 5
"""Seconds between two scrapes."""
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
ALERTMANAGER = "prometheus-alertmanager"
SELECTOR = re.compile(r"\b(?:squelch_\w+|up|process_\w+)\b(?:\{[^}]*\})?")
"""A metric in an expression, with its labels."""
Sample = tuple[dict[str, str], float]


def need_prometheus(program: str = "prometheus") -> str:
    """The program's path. Without it the test is skipped with the reason; where CI is set, it fails."""
    path = shutil.which(program)
    if path is None:
        package = "prometheus-alertmanager" if program in ("amtool", ALERTMANAGER) else "prometheus"
        skip_or_fail(f"{program} is not installed; on Debian and Ubuntu: apt-get install {package}")
    return path


def filled_in(expr: str, window: str = "5m") -> str:
    """An expression of a dashboard for all runs, with Grafana's variables filled in. `window`: what rates are over."""
    return expr.replace("$instance", ".*").replace("$__rate_interval", window)


def dashboard_queries() -> list[tuple[str, str, bool]]:
    """(panel title, expression without Grafana's variables, whether a run must fill it) of every query shown."""
    return [
        (panel.title, filled_in(query.expr), not query.empty_when)
        for board in BOARDS
        for row in board.rows
        for panel in row.panels
        for query in panel.queries
    ] + [(f"annotation {mark.name}", filled_in(mark.expr), False) for mark in ANNOTATIONS]


@contextmanager
def prometheus_over(lines: Sequence[Mapping[str, float]], folder: Path) -> Iterator[str]:
    """A Prometheus that holds what scrapes of a run with these lines of metrics would have seen; yields its address."""
    (folder / "samples.txt").write_text(_scraped(lines))
    command = [need_prometheus("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples.txt"]
    subprocess.run([*command, "prometheus-data"], cwd=folder, check=True, capture_output=True, timeout=180)
    with running_prometheus(folder, 9, "1h", ALERTS, "", "--storage.tsdb.retention.time=100y") as url:
        yield url


def _scraped(lines: Sequence[Mapping[str, float]]) -> str:
    """Every series as OpenMetrics text, at even intervals from the first step to the last."""
    store, registry = MetricStore(REGISTRY), CollectorRegistry()
    registry.register(StoreCollector(store, threading.Lock()))
    by_name: dict[str, list[str]] = {}
    for line, end in zip(lines, [*(one["time"] for one in lines[1:]), lines[-1]["time"] + INTERVAL_S], strict=True):
        store.step(line)
        exposed = generate_latest(registry).decode().splitlines()
        seen = [one for one in exposed if not one.startswith("#") and not one.endswith(" NaN")]
        for tick in range(max(1, math.ceil((end - line["time"]) / INTERVAL_S))):
            for one in seen:
                name, inside, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", one).groups()
                added = {"job": JOB, "instance": "made-up", **OPERATORS}
                labels = ",".join(f'{label}="{text}"' for label, text in added.items())
                labels += f",{inside}" if inside else ""
                sample = f"{name}{{{labels}}} {value} {line['time'] + tick * INTERVAL_S:.3f}"
                by_name.setdefault(name, []).append(sample)
    return "\n".join([*("\n".join(rows) for rows in by_name.values()), "# EOF", ""])


@contextmanager
def running_prometheus(
    tmp_path: Path,
    target_port: int,
    interval: str = "1s",
    rules: Path = ALERTS,
    manager: str = "",
    *flags: str,
) -> Iterator[str]:
    """A Prometheus that scrapes 127.0.0.1:`target_port` every `interval` with these alert rules; yields its address.
    `manager`: HOST:PORT of the Alertmanager to which it sends alerts."""
    program, port = need_prometheus(), _free_port()
    tmp_path.mkdir(parents=True, exist_ok=True)
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(_config(target_port, interval, rules, manager)))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'prometheus-data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *flags,
    ]
    with _running(command, f"http://127.0.0.1:{port}", tmp_path / "prometheus.log") as url:
        yield url


def _config(target_port: int, interval: str, rules: Path, manager: str) -> dict[str, object]:
    targets = {"targets": [f"127.0.0.1:{target_port}"], "labels": OPERATORS}
    target = {"job_name": JOB, "static_configs": [targets]}
    alerting = {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]}
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(rules)],
        "scrape_configs": [target],
        **({"alerting": alerting} if manager else {}),
    }


@contextmanager
def running_alertmanager(tmp_path: Path, config: Path) -> Iterator[tuple[str, list[dict]]]:
    """An Alertmanager with this configuration, whose receiver is a webhook of this process and which sends without
    delay. Yields its HOST:PORT, and the list to which every page is appended as it arrives."""
    program, port = need_prometheus(ALERTMANAGER), _free_port()
    tmp_path.mkdir(parents=True, exist_ok=True)
    with _webhook() as (address, pages):
        settings = yaml.safe_load(config.read_text())
        settings["route"] |= {"group_wait": "0s", "group_interval": "1s"}
        settings["receivers"][0]["webhook_configs"][0]["url"] = address
        written = tmp_path / "alertmanager.yml"
        written.write_text(yaml.safe_dump(settings))
        command = [
            program,
            f"--config.file={written}",
            f"--storage.path={tmp_path / 'alertmanager-data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        with _running(command, f"http://127.0.0.1:{port}", tmp_path / "alertmanager.log"):
            yield f"127.0.0.1:{port}", pages


@contextmanager
def _webhook() -> Iterator[tuple[str, list[dict]]]:
    """The address of a server that appends the JSON of each request to the list."""
    pages: list[dict] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            pages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", pages
        finally:
            server.shutdown()
            thread.join(STOP_TIMEOUT_S)


@contextmanager
def _running(command: list[str], url: str, log: Path) -> Iterator[str]:
    """Runs a program of Prometheus until the block ends; yields its address once it is ready."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            until(lambda: _ready(process, url, log), f"{Path(command[0]).name} is ready", READY_TIMEOUT_S)
            yield url
        finally:
            _stop(process)


def _free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of this machine at which nothing listens, each another one."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(server.getsockname()[1] for server in servers)
    for server in servers:
        server.close()
    return ports


def _ready(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args} ended with {process.returncode}: {log.read_text()[-2000:]}")
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=180) as reply:
            return reply.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def until(holds: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
    """Waits until `holds()`; past the time-out it fails, saying what did not come true."""
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


def query(url: str, expr: str) -> list[Sample]:
    """(labels, value) of every series that an expression has now; an expression it cannot read is a ValueError."""
    body = _get(url, "query", query=expr)
    if body["resultType"] == "scalar":
        return [({}, float(body["result"][1]))]
    return [(sample["metric"], float(sample["value"][1])) for sample in body["result"]]


def query_over(url: str, expr: str, start: float, end: float, points: int) -> list[tuple[dict[str, str], list[float]]]:
    """(labels, values) of every series that an expression has over a stretch of time, unix seconds."""
    step = f"{(end - start) / points:.3f}"
    found = _get(url, "query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=step)["result"]
    return [(one["metric"], [float(value) for _, value in one["values"]]) for one in found]


def scrapes(url: str) -> int:
    """How often Prometheus has read the endpoint in the last minutes; a scrape that came too late does not count."""
    found = query(url, f'sum_over_time(up{{job="{JOB}"}}[10m])')
    return int(found[0][1]) if found else 0


def filled(samples: list[Sample], expr: str = "") -> bool:
    """Whether any series has a value. NaN is "not measured"; a rate that is 0 throughout is of a counter nobody fed."""
    values = [value for _, value in samples if not math.isnan(value)]
    return any(value > 0 for value in values) if expr.startswith("rate(") else bool(values)


def unfilled_queries(url: str) -> list[str]:
    """`panel: expression` of each query of the dashboard that a run must fill and that has no value.

    Every query is evaluated: one that Prometheus cannot read is a ValueError, whether it must be filled or not."""
    answers = [(title, expr, must, query(url, expr)) for title, expr, must in dashboard_queries()]
    return [f"{title}: {expr}" for title, expr, must, found in answers if must and not filled(found, expr)]


def rules_without_input(url: str) -> list[str]:
    """`rule: selector` of each metric of an alert rule that has no value, and `rule: error` of each rule that cannot be
    evaluated. A rule itself is empty while it does not fire, so that only its inputs show that it could."""
    rules = [rule for group in _get(url, "rules")["groups"] for rule in group["rules"]]
    broken = [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] == "err"]
    always = {rule["alert"]: SELECTOR.findall(rule["expr"]) for rule in RULES if rule["alert"] not in BLIND}
    inputs = [(name, selector) for name, selectors in always.items() for selector in dict.fromkeys(selectors)]
    return broken + [f"{name}: {selector}" for name, selector in inputs if not filled(query(url, selector))]


def alerts(url: str) -> dict[str, str]:
    """State by name of the alerts that are pending or firing."""
    return {alert["labels"]["alertname"]: alert["state"] for alert in _get(url, "alerts")["alerts"]}


def _get(url: str, endpoint: str, **parameters: str) -> dict:
    address = f"{url}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(address, timeout=180) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(f"prometheus refuses {parameters}: {error.read().decode()}") from error
