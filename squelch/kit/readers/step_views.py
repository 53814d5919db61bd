"""Reads what a trainer's files show of each step, for the findings (`kit.findings`): rewards, lengths, texts, failures.

Of a rollout with several turns the first turn's text counts, and the last turn's reward; that a limit ended it does not
say that tokens were it. Of a text a digest, its length in words, or tokens where it is ids, and its beginning are kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from squelch.kit.base.values import digest, first, known_id
from squelch.kit.findings.view import SHOWN, GroupView, StepView, TextView
from squelch.kit.readers.format_rows import as_float, is_number
from squelch.kit.readers.rows import Read
from squelch.kit.records.repetition import repetition

Row = Mapping[str, Any]


@dataclass
class _Completion:
    group: bytes
    where: str
    terms: Mapping[str, float]
    length: int
    cut: bool | None
    failed: str | None


@dataclass
class _Step:
    """The rows of a step, as they are read."""

    completions: dict[str, _Completion] = field(default_factory=dict)
    """By rollout, or by row."""
    texts: list[TextView] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, where: str, row: Row) -> None:
        """Adds a row."""
        rollout = f"rollout {row['rollout']}" if known_id(row.get("rollout")) else where
        before = self.completions.get(rollout)
        shared = first(row.get(key) for key in ("group", "prompt_ids", "prompt") if known_id(row.get(key)))
        group = digest(where if shared is None else shared)
        parts, shown = _said(row) if not row.get("turn") else ((), "")
        if parts:
            self.texts.append(TextView(where, group, digest(parts), repetition(parts), shown))
            self.lengths.append(len(parts))
        failed, cut = row.get("failed"), row.get("truncated")
        self.completions[rollout] = _Completion(
            before.group if before is not None else group,
            before.where if before is not None else where,
            {} if failed is not None else _rewards(row),
            len(parts) + (before.length if before is not None else 0),
            None if cut is None or before is not None else bool(cut),
            None if failed is None else str(failed),
        )

    def view(self, step: int) -> StepView:
        """What the rows show together."""
        groups: dict[bytes, list[_Completion]] = {}
        for one in self.completions.values():
            groups.setdefault(one.group, []).append(one)
        views = [_group(key, rows) for key, rows in groups.items() if any(row.terms or row.failed for row in rows)]
        means = [statistics.fmean(view.rewards) for view in views if len(view.rewards)]
        variances = [statistics.variance(view.rewards) for view in views if len(view.rewards) > 1]
        failed = sum(len(view.failures) for view in views)
        metrics: dict[str, float | None] = {
            "reward_mean": statistics.fmean(means) if means else None,
            "reward_variance_mean": statistics.fmean(variances) if variances else None,
            "reasoning_length": statistics.fmean(self.lengths) if self.lengths else None,
            "trajectories_failed": float(failed),
            "trajectories": float(len(self.completions) - failed),
        }
        return StepView(step, metrics, views, self.texts)


class StepViews:
    """The steps of rows, as they are read. Rows without a step are of step 0."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}

    def add(self, read: Read) -> None:
        """Adds a row."""
        self._steps.setdefault(read.row["step"] or 0, _Step()).add(name_of(read), read.row)

    def views(self) -> list[StepView]:
        """Each step, in their order."""
        return [self._steps[step].view(step) for step in sorted(self._steps)]


def name_of(read: Read) -> str:
    """How a reader finds a row: its file's name, without the folder, and its number."""
    return f"{read.file.name} row {read.where.rpartition(' ')[2]}"


def view_of(step: int, rows: Sequence[tuple[int, Row]]) -> StepView:
    """What (number, row) of one step show."""
    found = _Step()
    for number, row in rows:
        found.add(f"row {number}", row)
    return found.view(step)


def _group(key: bytes, rows: Sequence[_Completion]) -> GroupView:
    scored = [row for row in rows if row.terms]
    names = {name for row in scored for name in row.terms}
    return GroupView(
        rows[0].where,
        [math.fsum(row.terms.values()) for row in scored],
        key.hex(),
        lengths=[row.length for row in scored],
        cut=[bool(row.cut) for row in scored] if all(row.cut is not None for row in scored) else None,
        terms={name: [row.terms.get(name, 0.0) for row in scored] for name in names} if len(names) > 1 else {},
        failures=[row.failed for row in rows if row.failed is not None],
    )


def _rewards(row: Row) -> dict[str, float]:
    """The finite rewards by name."""
    numbers = {name: as_float(value) for name, value in (row.get("rewards") or {}).items() if is_number(value)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _said(row: Row) -> tuple[Sequence[Any], str]:
    """The tokens or words of what was sampled, and its beginning; none where they are not at hand."""
    for name in ("completion", "reasoning"):
        text = row.get(name)
        if isinstance(text, list):
            text = " ".join(str(one.get("content") or "") for one in text if isinstance(one, dict))
        if isinstance(text, str) and text:
            return text.split(), text[:SHOWN]
    for name in ("completion_ids", "reasoning_ids"):
        ids = row.get(name)
        if ids is not None and len(ids):
            return [int(one) for one in ids], ""
    return (), ""
