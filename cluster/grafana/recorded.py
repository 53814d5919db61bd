"""A Prometheus of our own over one run: it holds what the run recorded, and scrapes the run while it lives.

What only a live process exports, such as its memory, is not recorded; panels of it have values from when the scraping
begins. Prometheus and promtool must be installed (Debian's package `prometheus` has both).

    party       waits for                  on time-out
    this        the run's metrics          it is not scraped if it does not answer within `ANSWER_TIMEOUT_S`
    this        promtool, to store         it is ended after `STORE_TIMEOUT_S`
    this        Prometheus, to be ready    it is ended after `READY_TIMEOUT_S`; the error shows its last lines
    this        Prometheus, to end         it is killed after `STOP_TIMEOUT_S`

It listens on 127.0.0.1, on a free port, and keeps everything in a temporary folder that ends with it.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from urllib3.exceptions import HTTPError

from actors.metrics.exporter import StoreCollector
from actors.metrics.series import MetricStore
from cluster.errors import UserError
from cluster.grafana.prometheus import MAX_ANSWER, Prometheus
from cluster.metrics import REGISTRY

ANSWER_TIMEOUT_S, STORE_TIMEOUT_S, READY_TIMEOUT_S, STOP_TIMEOUT_S = 5.0, 120.0, 30.0, 10.0
INTERVAL_S = 5.0
"""Least seconds between two samples of a series, as a scrape takes them."""
MOST_SAMPLES = 2_000
"""Samples of a series; those of a longer run are further apart."""
NAMES = {"run": "name", "environment": "environment.name", "filter": "filter.rule"}
"""Labels of `squelch_run_info`, and the settings that they show."""
JOB, ADDRESS = "squelch", "127.0.0.1:9464"
"""What a scrape adds to every series: the job and the address, here of runs that are not scraped."""


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
        store.step({key: value for key, value in line.items() if key != "schema"})
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
    lines: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], name: str, live: bool = False
) -> Iterator[Prometheus]:
    """A Prometheus that holds the run's samples, on a free port of this machine.

    Args:
        lines: of the run's metrics.jsonl; settings: the run's, by dotted key; name: the run's.
        live: whether the run is scraped too, if it answers where its settings say that it exports.
    Raises:
        UserError: Prometheus is not installed, or does not start.
    """
    programs = [_program("promtool"), _program("prometheus")]
    run = {"run": name} | {label: str(settings.get(key, "")) for label, key in NAMES.items() if label != "run"}
    address = _address(settings)
    with tempfile.TemporaryDirectory(prefix="squelch-prometheus-") as scratch:
        folder = Path(scratch)
        if lines:
            _store(programs[0], folder, samples(lines, run, address or ADDRESS))
        answers = live and address is not None and _exports(address, name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(address if answers else None)))
        with _serving(programs[1], folder) as url:
            yield Prometheus(url)


def _address(settings: Mapping[str, Any]) -> str | None:
    """HOST:PORT at which the run exports its metrics; None if it took a free port."""
    host, port = settings.get("recorder.host", "127.0.0.1"), settings.get("recorder.port", 0)
    return f"{'127.0.0.1' if host in ('0.0.0.0', '::', '') else host}:{port}" if port else None


def _exports(address: str, name: str) -> bool:
    """Whether the run of this name exports its metrics there; another run may have taken the port since."""
    text = _answer(f"http://{address}/metrics") or ""
    shown = name.replace("\\", r"\\").replace('"', r"\"")
    return any(line.startswith("squelch_run_info{") and f'run="{shown}"' in line for line in text.splitlines())


def _answer(url: str) -> str | None:
    """The text at an address of this machine; None without one. No proxy is asked."""
    try:
        answer = urllib3.request("GET", url, timeout=ANSWER_TIMEOUT_S, retries=False, preload_content=False)
        with answer:
            return answer.read(MAX_ANSWER).decode(errors="replace") if answer.status == 200 else None
    except (HTTPError, ValueError):
        return None


def _config(address: str | None) -> dict[str, Any]:
    jobs = [{"job_name": JOB, "static_configs": [{"targets": [address]}]}] if address else []
    return {"global": {"scrape_interval": f"{INTERVAL_S:g}s"}, "scrape_configs": jobs}


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
        if _answer(f"{url}/-/ready") is not None:
            return
        time.sleep(0.2)
    raise UserError(f"prometheus did not become ready: {log.read_text(errors='replace')[-1000:]}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed; on Debian and Ubuntu: apt-get install prometheus")
    return found
