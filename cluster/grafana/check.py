"""The dashboards held against Grafana's schema of dashboards, and their expressions against a Prometheus.

Prometheus answers each expression within `TIMEOUT_S`, or the check ends with its address. `PROMETHEUS_TOKEN` in the
environment is sent as a bearer token.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from jsonschema import validators
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from cluster.errors import UserError, bad_files_are_the_users
from cluster.grafana.boards import Board, Expression, expressions
from envs.untrusted.files import brief, read_bytes, shortened

TIMEOUT_S = 10.0
TOKEN = "PROMETHEUS_TOKEN"
MAX_SCHEMA, MAX_ANSWER = 16 * 2**20, 16 * 2**20
MAX_COMPLAINT = 300
POINTS = 240
"""Times at which `Prometheus.over` asks for a value."""


@dataclass(frozen=True)
class Series:
    """One series over time. `times`: (num_points,) unix seconds; `values`: (num_points,), finite: others are left
    out."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Answers:
    """What Prometheus says of a dashboard's expressions: those with a value now, without one, and refused with the
    reason."""

    filled: Sequence[Expression]
    empty: Sequence[Expression]
    refused: Sequence[tuple[Expression, str]]


def schema_errors(board: Board, schema: Path) -> list[str]:
    """One line for each place in which a dashboard breaks the schema. UserError if the file is no JSON schema."""
    with bad_files_are_the_users():
        content = read_bytes(schema, MAX_SCHEMA)
    try:
        rules = json.loads(content)
        validator = validators.validator_for(rules)(rules)
        return [
            f"{error.json_path}: {shortened(error.message, MAX_COMPLAINT)}" for error in validator.iter_errors(board)
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{schema} holds no JSON schema ({brief(error)})") from error


class Prometheus:
    """The query API of one Prometheus."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        token = os.environ.get(TOKEN, "")
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._pool = urllib3.PoolManager(headers=headers, timeout=Timeout(total=timeout_s), retries=False)

    def answers(self, board: Board) -> Answers:
        """Evaluates every expression of a dashboard now. UserError if no Prometheus answers."""
        filled, empty, refused = [], [], []
        for one in expressions(board):
            found = self._evaluate(one.expr)
            if isinstance(found, str):
                refused.append((one, found))
            else:
                (filled if any(not math.isnan(value) for value in found) else empty).append(one)
        return Answers(filled, empty, refused)

    def over(self, expr: str, start: float, end: float, points: int = POINTS) -> list[Series]:
        """The expression's series from `start` to `end` (unix seconds), at about so many times. UserError if no
        Prometheus answers, or if it refuses the expression."""
        step = max(1.0, (end - start) / points)
        asked = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        status, body = self._get(f"{self.url}/api/v1/query_range?{urlencode(asked)}")
        if status != 200 or body.get("status") != "success":
            reason = shortened(str(body.get("error", f"status {status}")), MAX_COMPLAINT)
            raise UserError(f"Prometheus at {self.url} refuses `{shortened(expr, MAX_COMPLAINT)}`: {reason}")
        return [_series(found) for found in body["data"]["result"]]

    def _evaluate(self, expr: str) -> list[float] | str:
        """The values of the expression's series; the reason, if Prometheus cannot read the expression."""
        status, body = self._get(f"{self.url}/api/v1/query?{urlencode({'query': expr})}")
        if status in (400, 422):
            return shortened(str(body.get("error", "")), MAX_COMPLAINT)
        if status != 200 or body.get("status") != "success":
            raise UserError(f"Prometheus at {self.url} answers with status {status}; check the address and {TOKEN}")
        return _values(body["data"])

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


def _values(data: Mapping[str, Any]) -> list[float]:
    if data["resultType"] == "scalar":
        return [float(data["result"][1])]
    return [float(sample["value"][1]) for sample in data["result"]]


def _series(found: Mapping[str, Any]) -> Series:
    pairs = [(float(time), float(value)) for time, value in found["values"]]
    known = [(time, value) for time, value in pairs if math.isfinite(value)]
    return Series(found["metric"], tuple(time for time, _ in known), tuple(value for _, value in known))
