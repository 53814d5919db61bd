"""Why a run ended before its last step: a cause that programs read, and a detail that people read. Pure.

`summary.json` holds both (`end_cause`, and `stopped`, the text of `Ending.text`). Summaries written before the cause
was recorded hold the text alone; `ending_of_text` takes that text apart, and nothing else parses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EndCause(StrEnum):
    """What ended a run before its last step; the values are stored."""

    EARLY_STOP = "early_stop"
    """One of the rules of `cluster.control.early_stop.EarlyStop` applied. The run is complete."""
    NO_SIGNAL = "no_signal"
    """The filter selected nothing: `filter.on_no_signal` is `abort`, or `filter.no_signal_limit` was reached."""
    REFUSED_STEPS = "refused_steps"
    """The learner refused `learner.max_bad_steps` steps in a row."""
    SIGNAL = "signal"
    """The process was asked to stop; the detail is the signal's name, e.g. `SIGTERM`."""


_OPENINGS = {
    EndCause.EARLY_STOP: "early stop: ",
    EndCause.NO_SIGNAL: "no signal: ",
    EndCause.SIGNAL: "stopped by ",
    EndCause.REFUSED_STEPS: "",
}
"""How the text of each cause begins. The empty opening stands last: it fits every text."""


@dataclass(frozen=True)
class Ending:
    """Why a run ended before its last step. `detail`: one line in plain words, without the cause."""

    cause: EndCause
    detail: str

    @property
    def text(self) -> str:
        """For people, and for `stopped` in `summary.json`: `early stop: reward variance below 10% of ...`."""
        return f"{_OPENINGS[self.cause]}{self.detail}"

    @property
    def complete(self) -> bool:
        """Whether the run reached an end that its settings provide for, so that nothing is left to resume."""
        return self.cause is EndCause.EARLY_STOP


def ending_of(summary: Mapping[str, Any]) -> Ending | None:
    """The ending that `summary.json` states; None where the run reached its last step."""
    text, cause = summary.get("stopped"), summary.get("end_cause")
    if not text:
        return None
    if cause is None:
        return ending_of_text(str(text))
    return Ending(EndCause(cause), str(text).removeprefix(_OPENINGS[EndCause(cause)]))


def ending_of_text(text: str) -> Ending:
    """The ending that a summary without `end_cause` states; inverse of `Ending.text` for endings of that time."""
    cause = next(cause for cause, opening in _OPENINGS.items() if text.startswith(opening))
    return Ending(cause, text.removeprefix(_OPENINGS[cause]))


def is_complete(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run came to its end, its last step or an early stop, with every ticket accounted for."""
    if summary is None or not summary["ledger"]["balanced"]:
        return False
    ending = ending_of(summary)
    return bool(summary["finished"]) or (ending is not None and ending.complete)
