"""A result as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from squelch.kit.checks.catalogue import PAGE, checks
from squelch.kit.checks.result import Result
from squelch.kit.findings.view import SHOWN
from squelch.kit.findings.words import with_bounds


def fault_lines(result: Result) -> list[str]:
    """The lines of a fault, as those of a critical finding."""
    entry = checks().get(result.name)
    since = f", since step {result.step}" if result.step is not None else ""
    lines = [f"{result.name} (fault{since})", f"  {result.says.rstrip('.')}."]
    if result.size is not None:
        size = result.size
        lines.append(f"  size: {with_bounds(size.value, size.low, size.high)} {size.unit}")
    if differing := [one for one in result.steps if one.differs]:
        lines += [f"  step {one.step}: {one.says}" for one in differing]
    else:
        lines += [f"  example: {one.row}: {' '.join(one.text.split())[:SHOWN]}" for one in result.examples]
    if entry is not None:
        lines += [f"  usual causes: {entry.causes}", f"  what to do: {entry.change}"]
    return [*lines, f"  {PAGE}#{result.name}"]


def short_lines(results: Sequence[Result]) -> list[str]:
    """A line for each result that is no fault, first of those that are sound."""
    found = sorted((one for one in results if one.verdict != "fault"), key=lambda one: one.verdict != "sound")
    width = max((len(one.name) for one in found), default=0)
    return [
        f"  {one.verdict:<7}  {one.name:<{width}}  {one.says.rstrip('.')}"
        + (f"; needs {one.needs}" if one.needs else "")
        for one in found
    ]


def as_json(result: Result) -> dict[str, Any]:
    """The result as JSON, with its causes and remedy."""
    entry = checks().get(result.name)
    told = {"causes": entry.causes, "change": entry.change} if entry is not None else {}
    return {**asdict(result), **told, "page": f"{PAGE}#{result.name}"}
