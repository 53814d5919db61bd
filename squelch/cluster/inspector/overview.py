"""The first page: what is wrong with the run, in one sentence, and what to do next. Pure.

```
status (state, success, regime) ──┐
told events (alarms, findings) ───┼──▶ notes ──▶ verdict (one sentence), next step (a command)
findings that hold ───────────────┘       └───▶ marks on the course ◀── success, MI, D, checkpoints
score matrices of some steps ─────────────────▶ small matrices: a bright diagonal against flat
```

Everything comes from the run's own files. `verdict` takes what is worst: the first finding that holds, else an alarm
that is raised, else the regime. Notes that are marked on the course (`course`) have the numbers that stand there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.cluster.runs.status import RunStatus
from squelch.kit.process.terminal import one_line

MOST_NOTES = 40
"""Notes that are listed, the newest of a run that raises more."""
ENDS = 10
"""Steps at either end of a run over which its success is averaged, at most a third of its steps."""
BAD, GOOD = ("mute", "template", "blind", "unused", "private_code"), ("used",)
REGIME_WORDS = {
    "mute": "most turns have no reasoning",
    "template": "the reasoning does not depend on its prompt",
    "blind": "the reasoning depends on the text and not on the pictures",
    "unused": "the answer does not follow from the reasoning",
    "private_code": "much of what the reasoning states has become false",
    "used": "the reasoning depends on its prompt, and the answer follows from it",
    "unknown": "it is not known whether the answer follows from the reasoning",
}
"""What each regime means for the run, as the end of a sentence."""


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


@dataclass(frozen=True)
class Next:
    """What to do next: in words, and the command that does it."""

    words: str
    command: str


def notes(told: Sequence[Mapping[str, Any]], scored: Sequence[int]) -> list[Note]:
    """The alarms among a run's told events, in their order. `scored`: the steps that have score matrices."""
    found = []
    for event in told[-MOST_NOTES:]:
        step = event.get("step")
        if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**31:
            near = max((one for one in scored if one <= step), default=None)
            found.append(Note(len(found) + 1, "alarm", event["name"], step, one_line(event["text"]), near))
    return found


def ends_of(success: np.ndarray) -> tuple[float, float] | None:
    """Mean success of the run's first and of its last steps; None below three steps. `success`: (num_steps,)."""
    known = success[np.isfinite(success)]
    size = min(ENDS, len(known) // 3)
    return (float(known[:size].mean()), float(known[-size:].mean())) if size else None


def verdict(run: RunStatus, success: np.ndarray) -> str:
    """The run in one sentence: how far it is, what its success did, and what is worst about it."""
    ends = ends_of(success)
    worst, good = _worst(run)
    success = ""
    if ends is not None:
        success = f"success went from {ends[0]:.2f} to {ends[1]:.2f}"
    elif run.success is not None:
        success = f"success is {run.success:.2f}"
    if success:
        worst = f"{success}, {'and' if good else 'but'} {worst}"
    return f"{_progress(run)}: {worst}."


def tone(run: RunStatus) -> str:
    """`good` or `bad` as the verdict is; nothing while nothing is known."""
    if run.dependence or run.regime in BAD:
        return "bad"
    return "good" if run.regime in GOOD else ""


def _progress(run: RunStatus) -> str:
    of = f" of {run.total_steps}" if run.total_steps else ""
    if run.state == "starting" or not run.step:
        return "The run has trained no step yet"
    words = {"running": "At step {}", "finished": "Finished after step {}", "stopped": "Stopped at step {}"}
    return words.get(run.state, "Ended without a summary at step {}").format(f"{run.step}{of}")


def _worst(run: RunStatus) -> tuple[str, bool]:
    """What is worst about the run, as the end of a sentence, and whether it is good."""
    if run.dependence:
        return f"an alarm is raised: {run.dependence}", False
    if run.regime is None:
        return "no scorer step has judged its reasoning yet", False
    return REGIME_WORDS[run.regime], run.regime in GOOD


def next_step(run: RunStatus, place: str) -> Next:
    """What a reader does next with the run in a folder or store."""
    quoted = shlex.quote(place)
    if run.state in ("stopped", "ended"):
        return Next("Let it go on from its last checkpoint:", f"squelch train {quoted}/config.yaml --resume")
    if run.state == "finished":
        return Next("Measure its best checkpoint on the validation tasks:", f"squelch eval {quoted}")
    return Next("Follow it in a terminal:", f"squelch watch {quoted}")
