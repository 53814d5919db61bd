"""The reason why a run ended before its last step: a cause for programs, and a detail for people. Pure.

`summary.json` holds the cause as `end_cause` and `Ending.text` as `stopped`. Older summaries hold only the text, which
`ending_of_text` alone parses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EndCause(StrEnum):
    """The cause that ended a run before its last step. The values are stored in summaries."""

    EARLY_STOP = "early_stop"
    """One of the rules of `cluster.control.early_stop.EarlyStop` applied. The run is complete."""
    NO_SIGNAL = "no_signal"
    """The filter selected nothing: `filter.on_no_signal` is `abort`, or `filter.no_signal_limit` was reached."""
    NOTHING_COUNTS = "nothing_counts"
    """No trajectory counted, in `filter.no_signal_limit` steps in a row or in any step of the run: all failed."""
    REFUSED_STEPS = "refused_steps"
    """The learner refused `learner.max_bad_steps` steps in a row."""
    STORE = "store"
    """The run's store failed for `upload.give_up_after_s`, or another driver took the run over."""
    PAUSED = "paused"
    """An alarm was raised and `loop.on_alarm` is `pause`. A resumed run goes on, and does not pause for it again."""
    SIGNAL = "signal"
    """The process was asked to stop; the detail is the signal's name, e.g. `SIGTERM`."""
    FAILED = "failed"
    """An error of an actor, of Ray or of the driver."""


_OPENINGS = {
    EndCause.EARLY_STOP: "early stop: ",
    EndCause.NO_SIGNAL: "no signal: ",
    EndCause.NOTHING_COUNTS: "nothing counts: ",
    EndCause.PAUSED: "paused: ",
    EndCause.SIGNAL: "stopped by ",
    EndCause.STORE: "store: ",
    EndCause.FAILED: "failed: ",
    EndCause.REFUSED_STEPS: "",
}
"""The opening words of each cause's text. The empty opening is last, because it fits every text."""


@dataclass(frozen=True)
class Ending:
    """The reason why a run ended before its last step. `detail`: one line of text, without the cause."""

    cause: EndCause
    detail: str

    @property
    def text(self) -> str:
        """Text for people and for `stopped` in `summary.json`, e.g. `early stop: reward variance below 10% of ...`."""
        return f"{_OPENINGS[self.cause]}{self.detail}"

    @property
    def complete(self) -> bool:
        """Whether the run's own settings ended it as planned, so that it need not be resumed."""
        return self.cause is EndCause.EARLY_STOP

    @property
    def final(self) -> bool:
        """Whether the run's own settings ended it and would end it again if it were continued."""
        return self.complete or self.cause is EndCause.NO_SIGNAL


def ending_of(summary: Mapping[str, Any]) -> Ending | None:
    """The ending that `summary.json` states; None if the run reached its last step."""
    text, cause = summary.get("stopped"), summary.get("end_cause")
    if not text:
        return None
    if cause is None:
        return ending_of_text(str(text))
    return Ending(EndCause(cause), str(text).removeprefix(_OPENINGS[EndCause(cause)]))


def ending_of_text(text: str) -> Ending:
    """The ending that an older summary without `end_cause` states: the inverse of `Ending.text`."""
    cause = next(cause for cause, opening in _OPENINGS.items() if text.startswith(opening))
    return Ending(cause, text.removeprefix(_OPENINGS[cause]))


def is_complete(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run has nothing left to do: it reached its last step, or its own settings ended it and would end it
    again (`Ending.final`). Its ledger balances."""
    if summary is None or not summary.get("ledger", {}).get("balanced"):
        return False
    ending = ending_of(summary)
    return bool(summary.get("finished")) or (ending is not None and ending.final)
