"""What one training step shows, as far as a caller knows it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from squelch.kit.records.repetition import repetition

SHOWN = 200
"""Characters of a text that an example shows."""
MOST_EXAMPLES = 3
"""Rows that are shown of a finding, or of a check's fault."""


@dataclass(frozen=True)
class GroupView:
    """The completions of one prompt. Sequences have one entry for each completion that did not fail."""

    name: str
    """How a reader finds it, e.g. its ticket or the row where it begins."""
    rewards: Sequence[float]
    """What the trainer learns from, without penalties for the format."""
    task: str = ""
    """Equal for groups of one task, in whatever step; empty if that is not known."""
    solved: Sequence[bool] | None = None
    lengths: Sequence[int] | None = None
    """Sampled tokens, or another measure of length."""
    penalties: Sequence[float] | None = None
    """Penalties for the format, 0 or negative."""
    cut: Sequence[bool] | None = None
    """Whether the limit of tokens cut it."""
    terms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The terms whose sum are the rewards, by name."""
    failures: Sequence[str] = ()
    """Why the others failed, in words."""
    prompts_differ: str | None = None
    """What differs between the first prompts that the completions' agents wrote, in words; empty if nothing does."""


@dataclass(frozen=True)
class TextView:
    """One sampled text: a completion, or the first turn of a trajectory."""

    row: str
    """How a reader finds it."""
    prompt: Hashable
    """Equal for texts of one prompt."""
    key: Hashable
    """Equal for equal texts."""
    repetition: float | None = None
    """How much it repeats itself (`kit.records.repetition`); None for a short one."""
    shown: str = ""
    """Its beginning, as an example; empty if it is not at hand."""

    @classmethod
    def of(cls, row: str, prompt: Hashable, parts: Sequence[Hashable], shown: str = "") -> TextView:
        """The view of a text of these tokens or words."""
        return cls(row, prompt, tuple(parts), repetition(parts), shown)


@dataclass(frozen=True)
class StepView:
    """One training step. `metrics`: flat keys of a run (docs/reference/metrics.md); None, NaN and a missing key are not
    known."""

    step: int
    metrics: Mapping[str, float | None]
    groups: Sequence[GroupView] | None = None
    texts: Sequence[TextView] | None = None


@dataclass(frozen=True)
class Example:
    """A row that shows a finding. `row`: how a reader finds it; `text`: what it shows."""

    row: str
    text: str
