"""The dashboards held against Grafana's schema of dashboards, and their expressions against a Prometheus."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonschema import validators

from squelch.cluster.errors import UserError, bad_files_are_the_users
from squelch.cluster.grafana.boards import Board, Expression, Tree, expressions
from squelch.cluster.grafana.prometheus import MAX_COMPLAINT, Prometheus
from squelch.envs.untrusted.files import brief, read_bytes, shortened

MAX_SCHEMA = 16 * 2**20


@dataclass(frozen=True)
class Answers:
    """Prometheus's answers to a dashboard's expressions: those with a value now, without one, and refused with the
    reason."""

    filled: Sequence[Expression]
    empty: Sequence[Expression]
    refused: Sequence[tuple[Expression, str]]


def schema_errors(board: Tree, schema: Path) -> list[str]:
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


def answers(board: Board, prometheus: Prometheus) -> Answers:
    """Evaluates every expression of a dashboard now. UserError if no Prometheus answers."""
    filled, empty, refused = [], [], []
    for one in expressions(board):
        found = prometheus.now(one.expr)
        if isinstance(found, str):
            refused.append((one, found))
        else:
            (filled if any(not math.isnan(value) for value in found) else empty).append(one)
    return Answers(filled, empty, refused)
