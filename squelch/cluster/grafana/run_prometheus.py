"""A Prometheus of our own over one run: it holds what the run recorded, and scrapes the run while it lives.

Metrics that only a live process exports, such as its memory, are not recorded; their panels have values from the start
of the scraping. Prometheus and promtool must be installed (Debian's package `prometheus` has both).

    actor       waits for                  on time-out
    this        the run's metrics          it is not scraped if it does not answer within `ANSWER_TIMEOUT_S`, or asks
                                           for a token that is missing here; reported
    this        promtool, to store         it is ended after `STORE_TIMEOUT_S`
    this        Prometheus, to be ready    it is ended after `READY_TIMEOUT_S`; the error shows its last lines
    this        Prometheus, to end         it is killed after `STOP_TIMEOUT_S`

It listens on 127.0.0.1, on a free port, and keeps everything in a temporary folder that ends with it. Nobody else can
enter the folder: the token of the run's metrics is there.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from urllib3.exceptions import HTTPError

from squelch.actors.process.interfaces import interface_addresses
from squelch.cluster.grafana.prometheus import MAX_ANSWER, Prometheus
from squelch.cluster.metrics import REGISTRY
from squelch.cluster.setting_keys import environment_name
from squelch.kit.base.errors import UserError
from squelch.kit.base.loopback import is_loopback
from squelch.kit.metrics.exporter import PORTS, TOKEN, StoreCollector
from squelch.kit.metrics.series import MetricStore
from squelch.kit.untrusted.secrets import token_in

ANSWER_TIMEOUT_S, STORE_TIMEOUT_S, READY_TIMEOUT_S, STOP_TIMEOUT_S = 5.0, 120.0, 30.0, 10.0
INTERVAL_S = 5.0
"""Least seconds between two samples of a series, as a scrape takes them."""
MOST_SAMPLES = 2_000
"""Samples of a series; those of a longer run are further apart."""
JOB, ADDRESS = "squelch", "127.0.0.1:9464"
"""The labels that a scrape adds to every series: the job and the address, here of runs that are not scraped."""
TOKEN_FILE = "token"


def samples(
    lines: Sequence[Mapping[str, Any]], run: Mapping[str, str], address: str = ADDRESS, interval_s: float | None = None
) -> str:
    """The run's metrics as OpenMetrics text: every series at even intervals from its first step to its last.

    Args:
        lines: of the run's metrics.jsonl. run: labels of `squelch_run_info`.
        interval_s: seconds between two samples; None takes the fewest that `MOST_SAMPLES` allows.
    """
    store, registry = MetricStore(REGISTRY), CollectorRegistry()
    registry.register(StoreCollector(store, threading.Lock()))
    store.observe("squelch_run_info", 1, **run)
    seconds = lines[-1]["time"] - lines[0]["time"] if lines else 0.0
    interval_s = interval_s or max(INTERVAL_S, math.ceil(seconds / MOST_SAMPLES))
    by_name: dict[str, list[str]] = {}
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        store.step({key: value for key, value in line.items() if REGISTRY.has_key(key)})
        until = line["time"] + interval_s if following is None else following["time"]
        own = _exposed(registry, address)
        for tick in range(max(1, math.ceil((until - line["time"]) / interval_s))):
            at = f"{line['time'] + tick * interval_s:.3f}"
            for name, sample in own:
                by_name.setdefault(name, []).append(f"{sample} {at}")
    return "\n".join([*("\n".join(rows) for rows in by_name.values()), "# EOF", ""])


def _exposed(registry: CollectorRegistry, address: str) -> list[tuple[str, str]]:
    """(name, sample) of every series that has a value, with the labels that a scrape adds."""
    found, added = [], f'job="{JOB}",instance="{address}"'
    for line in generate_latest(registry).decode().splitlines():
        name, brace, rest = line.partition("{") if "{" in line else line.partition(" ")
        if not line.startswith("#") and not line.endswith(" NaN"):
            found.append((name, f"{name}{{{added}{',' + rest if brace == '{' else '} ' + rest}"))
    return found


@contextmanager
def prometheus_over(
    lines: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    name: str,
    live: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Prometheus]:
    """A Prometheus that holds the run's samples, on a free port of this machine.

    Args:
        lines: of the run's metrics.jsonl; settings: the run's, by dotted key; name: the run's.
        live: whether the run is scraped too, if it answers where its settings say that it exports.
        say: called with the reason if a run cannot be scraped because it asks for a token.
    Raises:
        UserError: Prometheus is not installed, or does not start.
    """
    programs = [_program("promtool"), _program("prometheus")]
    played, rule = environment_name(settings), settings.get("filter.rule", "")
    run = {"run": name, "environment": str(played or ""), "filter": str(rule)}
    addresses = _addresses(settings)
    with tempfile.TemporaryDirectory(prefix="squelch-prometheus-") as scratch:
        folder = Path(scratch)
        if lines:
            _store(programs[0], folder, samples(lines, run, addresses[0] if addresses else ADDRESS))
        target = _first_target(addresses, name, say) if live and addresses else None
        if target is not None and target.token:
            (folder / TOKEN_FILE).write_text(target.token)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(target)))
        with _serving(programs[1], folder) as url:
            yield Prometheus(url)


def _addresses(settings: Mapping[str, Any]) -> list[str]:
    """HOST:PORT where the run may export its metrics; none if it took any free port, or states one that is no
    number."""
    host, port = settings.get("recorder.host", "127.0.0.1"), settings.get("recorder.port", 0)
    reached = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    if port is None:
        return [f"{reached}:{one}" for one in PORTS]
    if not isinstance(port, int) or not 0 < port < 65536:  # "1@example.org" would make another host of the address
        return []
    return [f"{reached}:{port}"]


@dataclass(frozen=True)
class Target:
    """The address at which a run exports its metrics, and the token that it asks for; empty if it asks for none."""

    address: str
    token: str = ""


def _first_target(addresses: Sequence[str], name: str, say: Callable[[str], None]) -> Target | None:
    """The first address at which the run of this name answers; all are asked at once, as each may be silent."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        return next(filter(None, pool.map(lambda address: _target(address, name, say), addresses)), None)


def _target(address: str, name: str, say: Callable[[str], None]) -> Target | None:
    """The run of this name, if it exports its metrics there; another run may have taken the port since. The token is
    sent to this machine alone, because the address is what a run's folder says, which may be a stranger's."""
    try:
        token, host = token_in(TOKEN), address.rpartition(":")[0]
    except ValueError as error:
        return say(f"{name} is not scraped: {error}")
    status, text = _answer(f"http://{address}/metrics")
    if status != 401:
        return Target(address) if _shows(text, name) else None
    if not token:
        return say(f"{name} is not scraped: {address} asks for a token; set {TOKEN} to that of the run")
    if not _is_here(host):
        return say(f"{name} is not scraped: {TOKEN} is sent to this machine alone, and {host} is no address of it")
    status, text = _answer(f"http://{address}/metrics", {"Authorization": f"Bearer {token}"})
    if status != 200:
        return say(f"{name} is not scraped: {address} refuses the token in {TOKEN}; set it to that of the run")
    return Target(address, token) if _shows(text, name) else None


def _is_here(host: str) -> bool:
    return is_loopback(host) or any(host in held for held in interface_addresses().values())


def _shows(text: str, name: str) -> bool:
    """Whether these are the metrics of the run of this name."""
    shown = name.replace("\\", r"\\").replace('"', r"\"")
    return any(line.startswith("squelch_run_info{") and f'run="{shown}"' in line for line in text.splitlines())


def _answer(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The status and the text at an address; 0 without an answer. No proxy is asked, and no redirection followed."""
    try:
        answer = urllib3.request(
            "GET", url, headers=headers, timeout=ANSWER_TIMEOUT_S, retries=False, redirect=False, preload_content=False
        )
        with answer:
            return answer.status, answer.read(MAX_ANSWER).decode(errors="replace")
    except (HTTPError, ValueError):
        return 0, ""


def _config(target: Target | None) -> dict[str, Any]:
    job: dict[str, Any] = {"job_name": JOB, "static_configs": [{"targets": [target.address]}]} if target else {}
    if target and target.token:
        job |= {"authorization": {"credentials_file": TOKEN_FILE}, "follow_redirects": False}
    return {"global": {"scrape_interval": f"{INTERVAL_S:g}s"}, "scrape_configs": [job] if job else []}


def _store(promtool: str, folder: Path, text: str) -> None:
    (folder / "samples.txt").write_text(text, encoding="utf-8")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=STORE_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise UserError(f"promtool could not store the run: {error.stderr.decode(errors='replace')[-1000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"promtool did not store the run within {STORE_TIMEOUT_S:g} s") from error
    (folder / "samples.txt").unlink()


@contextmanager
def _serving(prometheus: str, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--storage.tsdb.retention.time=100y"]
    command = [prometheus, *flags, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            _until_ready(process, f"http://127.0.0.1:{port}", folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


def _until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        if _answer(f"{url}/-/ready")[0] == 200:
            return
        time.sleep(0.2)
    raise UserError(f"prometheus did not become ready: {log.read_text(errors='replace')[-1000:]}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed; on Debian and Ubuntu: apt-get install prometheus")
    return found
