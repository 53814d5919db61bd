"""The run that nothing interrupts: one for all tests that read what a finished run leaves behind."""

import re
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from squelch.cluster.fleet import local_ray
from tests.e2e.support import STEPS, Finished, Run, children, compared_run
from tests.exposure import sockets
from tests.prometheus import query, rules_without_input, running_prometheus, unfilled_queries

SCRAPE_S = 1.0


@pytest.fixture(scope="session")
def whole(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Scraped by a Prometheus while it runs, where one is installed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run = Run(*compared_run(folder, tiny_policy), "recorder.report=true")
    port = int(re.search(r":(\d+)/metrics", run.until(lambda line: "/metrics" in line))[1])
    installed = shutil.which("prometheus") is not None
    with running_prometheus(folder.parent / "prometheus", port) if installed else nullcontext() as url:
        run.until(lambda line: line.startswith(f"step    {STEPS - 1}/{STEPS}"))
        processes = children(run.process.pid)
        found = sockets([*processes, psutil.Process(run.process.pid)])
        unfilled = _unfilled(run, url) if url else []
        code = run.finish()
        ended = [value for _, value in query(url, "last_over_time(squelch_run_ended[1h])")] if url else []
    left = {path.name for path in local_ray.own_folder().glob("*/session_2*/*")}
    return Finished(folder, run, code, processes, found, left, unfilled, ended)


def _unfilled(run: Run, url: str) -> list[str]:
    """Queries and inputs of rules without a value, asked again while the run lives, as a scrape may be late."""
    time.sleep(2 * SCRAPE_S)
    while (found := unfilled_queries(url) + rules_without_input(url)) and run.process.poll() is None:
        time.sleep(SCRAPE_S)
    return found
