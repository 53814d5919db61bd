"""The first page: what is wrong with the run, in one sentence, and what to do next. Pure.

```
status (state, success, regime) ──┬──▶ verdict (one sentence), next step (a command)
findings that hold ───────────────┴──▶ notes ──▶ marks on the course ◀── success, MI, D, checkpoints
events (alarms, ended findings) ──────▶   ┘
score matrices of some steps ────────────▶ small matrices: a strong diagonal against flat
```

Everything comes from the run's own files. `verdict` takes what is worst: the first finding that holds, else an alarm
that is raised, else the regime. Notes that are marked on the course (`course`) have the numbers that stand there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from squelch.cluster.runs.status import RunStatus
from squelch.kit.findings.catalogue import SEVERITIES
from squelch.kit.findings.finder import Finding
from squelch.kit.findings.view import Example
from squelch.kit.findings.words import evidence_text
from squelch.kit.process.terminal import one_line

FINDINGS = "findings"
"""The actor of the findings' events."""
MOST_NOTES = 40
"""Notes that are listed."""
ENDS = 10
"""Steps at either end of a run over which its success is averaged, at most a third of its steps."""
BAD, GOOD = ("mute", "template", "echo", "blind", "unused", "private_code"), ("used",)
REGIME_WORDS = {
    "unmarked": "no turn marks a reasoning, so that it is not known",
    "mute": "most turns have no reasoning",
    "template": "the reasoning does not depend on its prompt",
    "echo": "the reasoning repeats its prompt",
    "blind": "the reasoning depends on the text and not on the pictures",
    "unused": "the answer does not follow from the reasoning",
    "private_code": "much of what the reasoning states has become false",
    "used": "the reasoning depends on its prompt, and the answer follows from it",
    "unknown": "it is not known whether the answer follows from the reasoning",
}
"""What each regime means for the run, as the end of a sentence."""


Held = Sequence[tuple[Finding, str]]
"""The findings that hold, the most severe first, each with its command."""


@dataclass(frozen=True)
class Note:
    """A finding or an alarm. `number`: its mark's on the course, from 1; `step`: where it is marked."""

    number: int
    kind: str
    """`critical`, `warning` or `notice` of a finding; `alarm`."""
    name: str
    step: int
    says: str
    scored: int | None = None
    """The scored step nearest before it, whose matrix shows it."""
    ended: int | None = None
    """The step at which the finding ended."""
    found: Finding | None = None
    """The finding while it holds, with causes and remedy."""
    command: str = ""

    @property
    def evidence(self) -> str:
        """The finding's numbers."""
        return ", ".join(map(evidence_text, self.found.evidence)) if self.found is not None else ""

    @property
    def examples(self) -> list[tuple[Example, tuple[int, str, int] | None]]:
        """The finding's examples, each with (step, group, trajectory) if a page shows it."""
        return [] if self.found is None else [(one, _place(one.row)) for one in self.found.examples]


@dataclass(frozen=True)
class Next:
    """What to do next: in words, and the command that does it, if there is one."""

    words: str
    command: str


def notes(held: Held, events: Sequence[Mapping[str, Any]], scored: Sequence[int]) -> list[Note]:
    """The findings that hold, then the alarms, then the findings that have ended, each in their order.

    Args:
        events: the run's events that say something in words, in order.
        scored: the steps that have score matrices.
    """
    found = [
        Note(0, one.severity, one.name, one.since, one_line(one.says), found=one, command=command)
        for one, command in held
    ]
    known = [event for event in events if _is_step(event.get("step"))]
    alarms = [event for event in known if event["actor"] != FINDINGS]
    found += [Note(0, "alarm", event["name"], event["step"], one_line(event["text"])) for event in alarms]
    ended = {
        (name, since): Note(0, _severity(event), name, since, one_line(event["text"]), ended=event["step"])
        for event in known
        if event["actor"] == FINDINGS and event.get("change") == "ended" and _is_step(since := event.get("since"))
        if isinstance(name := event.get("finding"), str)
    }
    found += ended.values()
    return [
        replace(one, number=number, scored=_before(scored, one.step)) for number, one in enumerate(_fewer(found), 1)
    ]


def _is_step(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _severity(event: Mapping[str, Any]) -> str:
    """The severity that an event names, as the style sheet knows it."""
    return next((one for one in SEVERITIES if one == event.get("severity")), SEVERITIES[0])


def _fewer(found: list[Note]) -> list[Note]:
    """At most `MOST_NOTES`: the first ones, which hold, and the newest."""
    return found if len(found) <= MOST_NOTES else [*found[: MOST_NOTES // 2], *found[-MOST_NOTES // 2 :]]


def _before(scored: Sequence[int], step: int) -> int | None:
    return max((one for one in scored if one <= step), default=None)


def _place(row: str) -> tuple[int, str, int] | None:
    """The group's page of an example that names a group, and perhaps a trajectory."""
    named = re.fullmatch(r"(([0-9]{6,9})-[0-9]{3,9})(?: ([0-9]{1,6}))?", row)
    return None if named is None else (int(named[2]), named[1], int(named[3] or 0))


def ends_of(success: np.ndarray) -> tuple[float, float] | None:
    """Mean success of the run's first and of its last steps; None below three steps. `success`: (num_steps,)."""
    known = success[np.isfinite(success)]
    size = min(ENDS, len(known) // 3)
    return (float(known[:size].mean()), float(known[-size:].mean())) if size else None


def verdict(run: RunStatus, held: Held, success: np.ndarray, validation: np.ndarray) -> str:
    """The run in one sentence: how far it is, what its success did, unless what is worst tells it, and that. `success`,
    `validation`: (num_steps,), the success of each step's training and validation."""
    known = validation[np.isfinite(validation)]
    ends, of = ((known[0], known[-1]), "validation") if len(known) > 1 else (ends_of(success), "training")
    worst, good = _worst(run, held)
    course = ""
    if ends is not None:
        course = f"{of} success went from {ends[0]:.2f} to {ends[1]:.2f}"
    elif run.success is not None:
        course = f"success is {run.success:.2f}"
    if course and "success" not in worst:
        worst = f"{course}, {'and' if good else 'but'} {worst}"
    return f"{_progress(run)}: {worst}."


def within(sentence: str) -> str:
    """A finding's sentence within another one: its first word is small, unless it is an abbreviation."""
    first, space, rest = one_line(sentence).rstrip(".").partition(" ")
    small = first.lower() if first == first.capitalize() and first != "D" else first
    return f"{small}{space}{rest}"


def _severe(held: Held) -> Finding | None:
    """The worst finding that is more than a notice."""
    return next((one for one, _ in held if one.severity != "notice"), None)


def tone(run: RunStatus, held: Held) -> str:
    """`good` or `bad` as the verdict is; nothing while nothing is known."""
    if _severe(held) is not None or run.dependence or run.regime in BAD:
        return "bad"
    return "good" if run.regime in GOOD else ""


def _progress(run: RunStatus) -> str:
    of = f" of {run.total_steps}" if run.total_steps else ""
    if run.state == "starting" or not run.step:
        return "The run has trained no step yet"
    words = {"running": "At step {}", "finished": "Finished after step {}", "stopped": "Stopped at step {}"}
    return words.get(run.state, "Ended without a summary at step {}").format(f"{run.step}{of}")


def _worst(run: RunStatus, held: Held) -> tuple[str, bool]:
    """What is worst about the run, as the end of a sentence, and whether it is good."""
    if (found := _severe(held)) is not None:
        return f"{within(found.says)} (found at step {found.since})", False
    if run.dependence:
        return f"an alarm is raised: {run.dependence}", False
    if run.regime is None:
        return "no scorer step has judged its reasoning yet", False
    return REGIME_WORDS[run.regime], run.regime in GOOD


def next_step(run: RunStatus, held: Held, place: str) -> Next:
    """What a reader does next with the run in a folder or store: what its worst finding asks for, else what follows."""
    quoted = shlex.quote(place)
    if held:
        found, command = held[0]
        change = " ".join(found.entry.change.split())
        return Next(f"{change[:1].upper()}{change[1:]}.", command)
    if run.state in ("stopped", "ended"):
        return Next("Let it go on from its last checkpoint:", f"squelch train {quoted}/config.yaml --resume")
    if run.state == "finished":
        return Next("Measure its best checkpoint on the validation tasks:", f"squelch eval {quoted}")
    return Next("Follow it in a terminal:", f"squelch watch {quoted}")
