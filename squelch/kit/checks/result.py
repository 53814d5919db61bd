"""What a check of a run's files found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from squelch.kit.findings.view import Example

Verdict = Literal["sound", "fault", "unknown"]
MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Size:
    """How large a fault is, with its 95% interval where it has one. `unit`: e.g. "share of the groups"."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Result:
    """One check's verdict.

    Attributes:
        name: the check's, as in `catalogue.yaml`.
        says: one sentence in plain words, with the numbers that decided it.
        count: how many rows, groups or steps have the fault; `of`: how many were looked at.
        examples: up to `MOST_EXAMPLES` of them, by row.
        needs: of `unknown`: which file, column or option, or how many tokens, would decide it.
        step: the first step that shows the fault, where the check is made step by step.
    """

    name: str
    verdict: Verdict
    says: str
    count: int | None = None
    of: int | None = None
    size: Size | None = None
    examples: tuple[Example, ...] = ()
    needs: str = ""
    step: int | None = None
