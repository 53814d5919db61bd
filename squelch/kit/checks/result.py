"""What a check of a run's files found. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from squelch.kit.diagnosis.uncertainty import wilson_interval
from squelch.kit.findings.view import MOST_EXAMPLES, Example

Verdict = Literal["sound", "fault", "unknown"]


def examples(rows: Iterable[tuple[str, str]]) -> tuple[Example, ...]:
    """The first `MOST_EXAMPLES` of (where, what it shows)."""
    return tuple(Example(*one) for one in islice(rows, MOST_EXAMPLES))


def show(shown: dict[str, list[Example]], kind: str, where: str, text: str) -> None:
    """Keeps an example of a kind, if fewer than `MOST_EXAMPLES` are kept."""
    kept = shown.setdefault(kind, [])
    if len(kept) < MOST_EXAMPLES:
        kept.append(Example(where, text))


@dataclass(frozen=True)
class Size:
    """How large a fault is, with its 95% interval where it has one. `unit`: e.g. "share of the groups"."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def share(cls, count: int, of: int, what: str) -> Size:
        """A share. `what`: of which, e.g. "groups"."""
        return cls(count / of, f"share of the {what}", *wilson_interval(count, of))


@dataclass(frozen=True)
class StepFit:
    """Which checkpoints fit one step's rows: as of `weights.StepSet`.

    Attributes:
        step: None where the files say none.
        needed: tokens that decide by ids alone; None where no number does.
        differs: whether the claimed weights are excluded.
        says: the same in words.
    """

    step: int | None
    claimed: tuple[str, ...]
    fits: tuple[str, ...]
    kl: float | None
    tokens: int
    needed: float | None
    differs: bool
    says: str


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
        steps: all steps, of a check of weights.
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
    steps: tuple[StepFit, ...] = ()
