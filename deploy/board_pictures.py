"""Draws the dashboards over a run as Grafana would show them, for the docs.

    python -m deploy.board_pictures runs/frozenlake docs

A real Prometheus answers the dashboards' own queries, and the answers are drawn with the dashboards' own layout
(`cluster.figures.panels`). `--prometheus URL` names one that scraped the run. Without it, one is started (Debian's,
with promtool) that holds the run's recorded metrics as samples at the times of its steps. What only a live process
exports, such as its memory, is not among them; its panels say that they have no data.

    party       waits for                  on time-out
    this        promtool, to store         it is ended after `STORE_TIMEOUT_S`
    this        Prometheus, to be ready    it is ended after `READY_TIMEOUT_S`; the error shows its last lines
    this        each answer                `cluster.grafana.check.Prometheus`
"""

from __future__ import annotations

import argparse
import math
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from actors.metrics.exporter import StoreCollector
from actors.metrics.series import MetricStore
from cluster.errors import UserError
from cluster.figures import boards, panels
from cluster.figures.style import standalone
from cluster.grafana.check import Prometheus
from cluster.metrics import REGISTRY
from cluster.runs.folder import RunFolder

STORE_TIMEOUT_S, READY_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 30.0, 10.0
INTERVAL_S = 5.0
"""Seconds between two samples of a series, as a scrape would take them."""
README = "reasoning"
"""The dashboard whose first two rows the README shows."""
JOB = 'job="squelch",instance="127.0.0.1:9464"'
"""Labels that a scrape adds to every series."""


def samples(lines: Sequence[Mapping[str, Any]], run: Mapping[str, str]) -> str:
    """The run's metrics as OpenMetrics text: every series every `INTERVAL_S` from its first step to its last.

    Args:
        lines: of the run's metrics.jsonl. run: labels of `squelch_run_info`.
    """
    store, registry = MetricStore(REGISTRY), CollectorRegistry()
    registry.register(StoreCollector(store, threading.Lock()))
    store.observe("squelch_run_info", 1, **run)
    by_name: dict[str, list[str]] = {}
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        store.step({key: value for key, value in line.items() if key != "schema"})
        until = line["time"] + INTERVAL_S if following is None else following["time"]
        own = _exposed(registry)
        for tick in range(max(1, math.ceil((until - line["time"]) / INTERVAL_S))):
            at = f"{line['time'] + tick * INTERVAL_S:.3f}"
            for name, sample in own:
                by_name.setdefault(name, []).append(f"{sample} {at}")
    return "\n".join([*("\n".join(rows) for rows in by_name.values()), "# EOF", ""])


def _exposed(registry: CollectorRegistry) -> list[tuple[str, str]]:
    """(name, sample) of every series that has a value, with the labels that a scrape adds."""
    found = []
    for line in generate_latest(registry).decode().splitlines():
        name, brace, rest = line.partition("{") if "{" in line else line.partition(" ")
        if not line.startswith("#") and not line.endswith(" NaN"):
            found.append((name, f"{name}{{{JOB}{',' + rest if brace == '{' else '} ' + rest}"))
    return found


@contextmanager
def prometheus_over(lines: Sequence[Mapping[str, Any]], run: Mapping[str, str]) -> Iterator[Prometheus]:
    """A Prometheus that holds the run's samples, on a free port of this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "samples.txt").write_text(samples(lines, run), encoding="utf-8")
        (folder / "prometheus.yml").write_text("scrape_configs: []\n")
        store = [_program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
        subprocess.run(store, cwd=folder, check=True, capture_output=True, timeout=STORE_TIMEOUT_S)
        with _serving(folder) as url:
            yield Prometheus(url)


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--storage.tsdb.retention.time=100y"]
    command = [_program("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]
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


def _until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise UserError(f"prometheus did not become ready: {log.read_text(errors='replace')[-1000:]}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed; on Debian and Ubuntu: apt-get install prometheus")
    return found


def main() -> None:
    """Writes dashboard-NAME.svg for every dashboard, with the rows that have data, and the README's view."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, for example runs/frozenlake")
    parser.add_argument("out", type=Path, help="the folder of the pictures, for example docs")
    parser.add_argument("--prometheus", metavar="URL", help="a Prometheus that scraped the run")
    args = parser.parse_args()
    folder = RunFolder(args.run)
    lines, settings = folder.metrics(), folder.settings()
    run = {"run": folder.name, "environment": settings["environment.name"], "filter": settings["filter.rule"]}
    with nullcontext(Prometheus(args.prometheus)) if args.prometheus else prometheus_over(lines, run) as prometheus:
        for name, board in boards.shipped().items():
            answers = panels.answers(board, prometheus, lines[0]["time"], lines[-1]["time"])
            rows = panels.rows_with_data(board, answers)
            _write(args.out / f"dashboard-{name}.svg", panels.picture(board, answers, rows))
            if name == README:
                _write(args.out / f"{name}-view.svg", panels.picture(board, answers, rows[:2]))


def _write(path: Path, svg: str) -> None:
    path.write_text(standalone(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
