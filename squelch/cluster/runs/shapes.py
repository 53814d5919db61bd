"""The shape of a run's files: what a reader of metrics may rely on, whoever wrote the file.

A file that has another shape is refused by name. Keys that no reader uses are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from squelch.cluster.runs.ending import EndCause
from squelch.kit.untrusted.files import Unreadable, brief, shortened

LARGEST = 1e300
"""No metric is larger, so that differences of two metrics are finite."""
LARGEST_STEP = 2**31
Metric = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Metrics = dict[str, Metric | None]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Success(_Shape):
    before: Metrics = {}
    after: Metrics = {}
    gain: Metrics = {}
    best: Metric | None = None


class _Ledger(_Shape):
    balanced: bool = False


class _Summary(_Shape):
    """The keys of `summary.json` that readers use; each may be missing."""

    finished: bool = False
    stopped: str | None = None
    end_cause: EndCause | None = None
    driver: str = ""
    steps: int = Field(0, ge=0, le=LARGEST_STEP)
    kept_mass_mean: Metric | None = None
    seconds_per_step_median: Metric | None = None
    success: _Success = _Success()
    reasoning: Metrics = {}
    ledger: _Ledger = _Ledger()


def checked_summary(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The content of `summary.json`. Raises Unreadable, naming file and key, for another shape."""
    try:
        return _Summary.model_validate(found).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = shortened(".".join(map(str, first["loc"])), 80)
        raise Unreadable(f"{where}: `{key}`: {first['msg']} (got {brief(first['input'])})") from error


def check_metrics(lines: Sequence[Mapping[str, Any]], where: str, first: int = 1) -> None:
    """Raises Unreadable, naming file, record and key, unless every record has a step, a time, and metrics that are
    numbers or null. `first`: the number of the first record."""
    for number, line in enumerate(lines, start=first):
        here = f"{where}, record {number}"
        if not isinstance(line.get("step"), int) or not 0 <= line["step"] <= LARGEST_STEP:
            raise Unreadable(f"{here}: `step` is {brief(line.get('step'))}; it must be a whole number from 0 on")
        wrong = next((key for key, value in line.items() if not (value is None or _is_number(value))), None)
        if wrong is not None or line.get("time") is None:
            key = "time" if wrong is None else wrong
            raise Unreadable(f"{here}: `{shortened(key, 80)}` is {brief(line.get(key))}; it must be a finite number")


def checked_event(event: dict[str, Any], where: str) -> dict[str, Any]:
    """The span. Raises Unreadable, naming file and key, unless it has an actor, a name, and finite times."""
    for key in ("actor", "name"):
        if not isinstance(event.get(key), str):
            raise Unreadable(f"{where}: `{key}` of a span is {brief(event.get(key))}; it must be text")
    for key in ("start", "end"):
        if not _is_number(event.get(key)):
            raise Unreadable(f"{where}: `{key}` of a span is {brief(event.get(key))}; it must be a finite number")
    return event


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST
