"""The query API of a Prometheus.

Prometheus answers within `TIMEOUT_S`, or the call ends with a UserError that names its address. `PROMETHEUS_TOKEN` in
the environment is sent as a bearer token. An answer is at most `MAX_ANSWER` bytes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from squelch.cluster.grafana.boards import Chosen
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.untrusted.files import shortened
from squelch.kit.untrusted.secrets import bearer

TIMEOUT_S = 10.0
TOKEN = "PROMETHEUS_TOKEN"
MAX_ANSWER = 16 * 2**20
MAX_COMPLAINT = 300
POINTS = 240
"""Times at which `over` asks for a value."""
SCRAPE_S = 15.0
"""Seconds between two scrapes where Prometheus does not show them: its users' usual setting."""
RATE_SCRAPES = 4
"""Scrapes that a rate is taken over at least, as Grafana does."""


@dataclass(frozen=True)
class Span:
    """A stretch of time, unix seconds, and the number of times in it at which values are asked for."""

    start: float
    end: float
    points: int = POINTS

    @property
    def step(self) -> float:
        """Seconds between two of these times."""
        return max(1.0, (self.end - self.start) / self.points)


@dataclass(frozen=True)
class Series:
    """One series over time. `times`: (num_points,) unix seconds; `values`: (num_points,), finite: others are left
    out."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


class Prometheus:
    """One Prometheus. Threads may share it."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        with as_user_error():
            headers = {"Accept-Encoding": "identity"} | bearer(TOKEN)
        self._pool = urllib3.PoolManager(headers=headers, timeout=Timeout(total=timeout_s), retries=False)

    def over(self, expr: str, span: Span) -> list[Series]:
        """The expression's series over the span. UserError if no Prometheus answers, or if it refuses the
        expression."""
        asked = {"query": expr, "start": f"{span.start:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:.3f}"}
        return [_series(found) for found in self._result("query_range", expr, asked)]

    def chosen(self, instance: str, span: Span) -> Chosen:
        """Grafana's variables for the runs at these addresses (a regular expression) over the span: rates are taken
        over at least `RATE_SCRAPES` scrapes."""
        scrape = self._scrape_s(f'squelch_run_info{{instance=~"{instance}"}}[10m]', span.end)
        return Chosen(instance, f"{math.ceil(max(span.step + scrape, RATE_SCRAPES * scrape))}s")

    def _scrape_s(self, samples: str, at: float) -> float:
        """Seconds between two samples before `at`."""
        found = self._result("query", samples, {"query": samples, "time": f"{at:.3f}"})
        apart = [float(b[0]) - float(a[0]) for series in found for a, b in pairwise(series["values"])]
        return max(1.0, statistics.median(apart)) if apart else SCRAPE_S

    def _result(self, endpoint: str, expr: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        status, body = self._get(f"{self.url}/api/v1/{endpoint}?{urlencode(asked)}")
        if status != 200 or body.get("status") != "success":
            reason = shortened(str(body.get("error", f"status {status}")), MAX_COMPLAINT)
            raise UserError(f"Prometheus at {self.url} refuses `{shortened(expr, MAX_COMPLAINT)}`: {reason}")
        return body["data"]["result"]

    def _get(self, url: str) -> tuple[int, Mapping[str, Any]]:
        try:
            answer = self._pool.request("GET", url, preload_content=False)
            data = answer.read(MAX_ANSWER + 1)
            answer.release_conn()
        except (HTTPError, ValueError) as error:
            words = shortened(" ".join(str(error).split()), MAX_COMPLAINT)
            raise UserError(f"Prometheus at {self.url} cannot be reached ({words}); is it running?") from error
        try:
            body = json.loads(data) if len(data) <= MAX_ANSWER else None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise UserError(f"{self.url} does not answer as Prometheus does (status {answer.status})")
        return answer.status, body


def _series(found: Mapping[str, Any]) -> Series:
    pairs = [(float(time), float(value)) for time, value in found["values"]]
    known = [(time, value) for time, value in pairs if math.isfinite(value)]
    return Series(found["metric"], tuple(time for time, _ in known), tuple(value for _, value in known))
