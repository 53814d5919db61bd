"""Scaling: how many rollout workers and environment actors a live run wants, and which of them leave. Pure.

The wanted number is set by `squelch scale`, by `rollout.count: auto` (`cluster.control.autoscaling`), or stays as the
run was started. It is always within the bounds below. Deaths do not change it: a dead member is replaced. A member that
must leave because its node will be taken away does not change it either: it gets a successor.

    kind          least                   most                                setting
    rollout       rollout.min_count       rollout.max_count, if it is set     rollout.count
    environment   1                       -                                   environment_actor.count
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from squelch.cluster.config import RunConfig
from squelch.cluster.control.membership import Member, MemberState

P = TypeVar("P")
LEAVING_ORDER = (MemberState.STARTING, MemberState.STALE, MemberState.SUSPECT, MemberState.HEALTHY)
"""The order in which members leave: the cheapest to lose first."""


class Kind(StrEnum):
    """The kinds of actors that can be scaled; the value is their label in metrics and events."""

    ROLLOUT = "rollout"
    ENVIRONMENT = "environment"


WORDS = {Kind.ROLLOUT: "rollout workers", Kind.ENVIRONMENT: "environment actors"}
PREFIXES = {Kind.ROLLOUT: "rollout", Kind.ENVIRONMENT: "env"}


class By(StrEnum):
    """The cause of a change of a number."""

    COMMAND = "command"
    AUTO = "auto"
    PREEMPTION = "preemption"
    FAILURE = "failure"


@dataclass(frozen=True)
class Request:
    """A wanted number. `at_once`: members that leave are cut off instead of finishing their groups."""

    kind: Kind
    count: int
    at_once: bool = False
    by: By = By.COMMAND
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """The run's answer to a request."""

    accepted: bool
    text: str


def start_counts(config: RunConfig) -> dict[Kind, int]:
    """The numbers with which a run starts."""
    return {Kind.ROLLOUT: config.rollout.start_count, Kind.ENVIRONMENT: config.environment_actor.count}


def start_names(config: RunConfig, kind: Kind) -> list[str]:
    """Names of the members with which a run starts."""
    return [name_of(kind, index) for index in range(start_counts(config)[kind])]


def name_of(kind: Kind, index: int) -> str:
    """The name of a member."""
    return f"{PREFIXES[kind]}-{index}"


def free_names(kind: Kind, taken: Collection[str], count: int) -> list[str]:
    """The first `count` names that nobody has."""
    names = (name_of(kind, index) for index in range(len(taken) + count))
    return [name for name in names if name not in taken][:count]


def refusal(config: RunConfig, kind: Kind, count: int) -> str | None:
    """Why a number is out of bounds, with the setting that says so; None if it is within them."""
    rollout, words = config.rollout, WORDS[kind]
    low, high = (rollout.min_count, rollout.max_count) if kind is Kind.ROLLOUT else (1, None)
    if count < low:
        bound = f"rollout.min_count={low}" if kind is Kind.ROLLOUT else "1, the least that can play"
        return f"{count} {words} are fewer than {bound}"
    if high is not None and count > high:
        return f"{count} {words} are more than rollout.max_count={high}, which --resume can change"
    return None


def leavers(members: Sequence[Member[P]], surplus: int) -> list[Member[P]]:
    """The members that leave, in that order: those that do no work yet first, of equals the one that joined last."""
    newest_first = list(reversed(members))
    return sorted(newest_first, key=lambda member: LEAVING_ORDER.index(member.state))[: max(0, surplus)]


def packed(value: Request | Answer) -> dict[str, Any]:
    """A request or answer as plain data."""
    return json.loads(json.dumps(asdict(value)))


def unpacked_request(data: Mapping[str, Any]) -> Request:
    """A request from plain data. ValueError if it is none, as from another version of Squelch."""
    try:
        return TypeAdapter(Request).validate_python(data)
    except ValidationError as error:
        raise ValueError(f"the request is not one of this version of Squelch: {error.errors()[0]['msg']}") from error
