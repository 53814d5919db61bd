"""Reads what a trainer's files show of each step, for the findings (`kit.findings`): rewards, lengths and texts.

Only the first turn of a rollout counts. Of a text a digest, its length in words, or tokens where it is ids, and its
beginning are kept.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.base.values import known_id
from squelch.kit.findings.view import GroupView, StepView, TextView
from squelch.kit.readers.format_rows import LeftOut, as_float, is_number, whole_step
from squelch.kit.readers.formats import files_of, format_named, recognised
from squelch.kit.readers.records import Record, columns_of, records
from squelch.kit.records.repetition import repetition
from squelch.kit.untrusted.decoder_process import bounded_reading

SHOWN = 200
"""Characters of a text that an example shows."""
CUT = {
    **dict.fromkeys(("truncated", "is_truncated", "response_truncated"), (True, 1)),
    **dict.fromkeys(("finish_reason", "stop_reason", "status"), ("length", "truncated", "max_tokens")),
}
"""Columns that say whether the limit of tokens cut a text, and the values that say so."""


@dataclass
class _Group:
    name: str
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    cut: list[bool | None] = field(default_factory=list)
    terms: list[Mapping[str, float]] = field(default_factory=list)

    def view(self, key: bytes) -> GroupView:
        names = {name for terms in self.terms for name in terms}
        terms = {name: [one.get(name, 0.0) for one in self.terms] for name in names} if len(names) > 1 else {}
        cut = [bool(one) for one in self.cut] if None not in self.cut else None
        return GroupView(self.name, self.rewards, key.hex(), lengths=self.lengths, cut=cut, terms=terms)


@dataclass
class _Step:
    groups: dict[bytes, _Group] = field(default_factory=dict)
    texts: list[TextView] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def view(self, step: int) -> StepView:
        scored = {key: group for key, group in self.groups.items() if group.rewards}
        means = [statistics.fmean(group.rewards) for group in scored.values()]
        variances = [statistics.variance(group.rewards) for group in scored.values() if len(group.rewards) > 1]
        metrics: dict[str, float | None] = {
            "reward_mean": statistics.fmean(means) if means else None,
            "reward_variance_mean": statistics.fmean(variances) if variances else None,
            "reasoning_length": statistics.fmean(self.lengths) if self.lengths else None,
        }
        return StepView(step, metrics, [group.view(key) for key, group in scored.items()], self.texts)


def step_views(path: Path, name: str | None = None) -> tuple[list[StepView], list[str]]:
    """Each step of a file or folder, in their order, and what to know of it. Rows without a step are of step 0.

    Raises:
        UserError: the file is damaged, of no known format, or holds no rows.
    """
    steps: dict[int, _Step] = {}
    notes, left = list[str](), Counter[str]()
    with bad_files_are_the_users(), bounded_reading(str(path)):
        for where, record, row, step in _rows(path, name, notes, left):
            _add(steps.setdefault(step, _Step()), where, record, row)
    if not steps:
        raise UserError(f"{path} holds no rows of a training")
    notes += [f"left out, {reason}: {count}" for reason, count in sorted(left.items())]
    return [steps[step].view(step) for step in sorted(steps)], notes


def view_of(step: int, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> StepView:
    """What (number, row) of one step show."""
    found = _Step()
    for number, row in rows:
        if not row.get("turn"):
            _add(found, f"row {number}", {}, row)
    return found.view(step)


def _rows(
    path: Path, name: str | None, notes: list[str], left: Counter[str]
) -> Iterator[tuple[str, Record, Mapping[str, Any], int]]:
    """(where it is, the record, the row, its step) of each first turn."""
    named = None if name is None else format_named(name)
    for file in files_of(path, named):
        found = named or recognised(file, columns_of(file))
        of_file = found.step_of(file)
        for number, record in records(file, None, notes):
            where = f"{file.name} row {number}"
            for row in found.rows(record, where):
                if isinstance(row, LeftOut):
                    left[row.reason] += 1
                elif not row.get("turn"):
                    step = whole_step(row["step"] if known_id(row.get("step")) else of_file, where)
                    yield where, record, row, step or 0


def _add(step: _Step, where: str, record: Record, row: Mapping[str, Any]) -> None:
    shared = next((row[key] for key in ("group", "prompt_ids", "prompt") if known_id(row.get(key))), None)
    if shared is None and callable(row.get("content")):
        shared = where  # the prompts of a long rollout are not read
    key = blake2b(repr(shared).encode(errors="replace"), digest_size=16).digest()
    parts, shown = _said(row)
    if parts:
        digest = blake2b(repr(parts).encode(errors="replace"), digest_size=16).digest()
        step.texts.append(TextView(where, key, digest, repetition(parts), shown))
        step.lengths.append(len(parts))
    group = step.groups.setdefault(key, _Group(where))
    terms = _rewards(record, row)
    if terms:
        group.rewards.append(math.fsum(terms.values()))
        group.terms.append(terms)
        group.lengths.append(len(parts))
        group.cut.append(_cut(record))


def _rewards(record: Record, row: Mapping[str, Any]) -> dict[str, float]:
    """The finite rewards by name; in a table of the user's own, numbers whose column is called one."""
    given = row.get("rewards")
    if given is None:
        given = {name: value for name, value in record.items() if "reward" in name or "score" in name}
    numbers = {name: as_float(value) for name, value in given.items() if is_number(value)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _said(row: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
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


def _cut(record: Record) -> bool | None:
    """Whether the record says that its text was cut; None if it does not tell."""
    for name, values in CUT.items():
        if name in record:
            with suppress(TypeError):
                return record[name] in values
    return None
