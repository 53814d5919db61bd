"""What a level gives: how bad it is in the newest step, and the facts that the finding's sentence names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from squelch.kit.findings.history import History


@dataclass(frozen=True)
class Level:
    """`value`: the larger, the worse; the catalogue has the thresholds. `facts`: by name, for the sentence."""

    value: float
    facts: Mapping[str, Any] = field(default_factory=dict)


Levels = Mapping[str, Callable[[History], Level | None]]
"""By finding: its level; None where the newest step does not show it."""


def of_key(key: str) -> Callable[[History], Level | None]:
    """The level that is a metric itself."""

    def level(history: History) -> Level | None:
        value = history.now(key)
        return None if value is None else Level(value)

    return level


def smoothed(key: str, steps: int = 5) -> Callable[[History], Level | None]:
    """The level that is a metric's median over the last steps that have it."""

    def level(history: History) -> Level | None:
        value = history.recent(key, steps)
        return None if value is None else Level(value)

    return level
