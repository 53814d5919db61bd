"""Does the agent do something else if it has reasoned something else? The causal check of the link from reasoning Z to
action A, on first turns.

Of task i with prompt x_i there are two turns of the policy, (z_i, a_i) and one whose reasoning is z_i', and one turn
(z_d, a_d) of a donor: a task with another best answer. The action is sampled again on x_i under three reasonings:

    a_second ~ p(. | x_i, z_i')         a_donor ~ p(. | x_i, z_d)         a_blank ~ p(. | x_i, no reasoning)

    change = P(a_donor differs from a_i) - P(a_second differs from a_i)
    follow = P(a_donor begins as a_d) - P(a_second begins as a_d)

The second own reasoning is the control: it differs from a_i as often as sampling alone makes it. An agent that ignores
its reasoning has change = 0, whatever its temperature, because a_donor and a_second then have one distribution. D
(`kit.diagnosis.links`) says by how much the likelihood of an answer depends on its reasoning; change says how often
the agent acts otherwise.

Follow compares first actions alone, so that answers of one action and of two compare. It is 0 for an agent that ignores
its reasoning, too, and large where the agent does what the donor's reasoning was for.

Each action is one of four: the own answer a_i, the donor's answer a_d, another one, or none, where the turn names no
action. A turn without an action does not count as one that differs, so that reasonings which only break the format
raise `none` and lower the format validity, and never the change. Blanked reasoning is off the distribution: the
policy never answers without one; its row is shown, and nothing is concluded from it.

Invariants:

- Tasks are independent: each has a donor of its own. A share has Wilson's interval, the change that of a mean of paired
  differences (`uncertainty.paired_interval`).
- Tasks whose own turn has no action, or whose reasonings cannot be spliced, are left out and counted by reason.

Pure numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from squelch.kit.diagnosis.uncertainty import paired_interval, wilson_interval
from squelch.kit.records.failures import Failure
from squelch.kit.records.records import Task, Ticket

Arm = Literal["second", "donor", "blank"]
"""The reasoning under which the action is sampled again: a second own one, the donor's, or none."""
ARMS: tuple[Arm, ...] = get_args(Arm)
ANSWERS = ("own", "donors", "another", "none")
Reason = Literal["no_donor", "unclosed", "no_action", "no_room", "failed"]
"""Why a task is left out. no_donor: no candidate has another best answer; unclosed: a reasoning was never closed;
no_action: the own turn names no action; no_room: the context cannot hold a turn after the prompt, or the turn no
answer after the reasoning; failed: the environment or the rollout worker failed."""


TURNS_AT_ONCE = 3
"""Turns of a task that are sampled at the same time."""


@dataclass(frozen=True)
class Swap:
    """A task whose first turn is intervened on, and the tasks among which its donor is sought, in this order."""

    ticket: Ticket
    candidates: tuple[Task, ...]


@dataclass(frozen=True)
class SampledTurn:
    """A sampled turn. `actions`: those that the environment would play, in the spelling of `read_action`; `valid`: the
    turn is well formed."""

    actions: tuple[str, ...]
    valid: bool


@dataclass(frozen=True)
class Intervention:
    """The turns of one task. `own`: its first turn; `donor`: the donor's, on the donor's own task; `again`: the turns
    of which only the action was sampled again, with the actions of the own turn, else of the donor's, where the
    environment judges them the same (`same_action`); `twin`: whether the donor is a near twin of the task."""

    label: str
    own: SampledTurn
    donor: SampledTurn
    again: Mapping[Arm, SampledTurn]
    twin: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A task without an intervention. `failure`: what failed, where the reason is `failed`."""

    label: str
    reason: Reason
    failure: Failure | None = None


@dataclass(frozen=True)
class Share:
    """A share, or a difference of two, with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The share with its interval."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


UNKNOWN = Share(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Effect:
    """The interventions of one environment. `tasks`: those that count; `twins`: those whose donor is a near twin;
    `left_out`: number of other tasks by reason; `valid`: share of the tasks' own first turns that are well formed;
    `answers`: by arm the share of each of `ANSWERS`, and `differs` and `valid`."""

    tasks: int
    twins: int
    left_out: dict[str, int]
    change: Share
    follow: Share
    valid: Share
    answers: dict[str, dict[str, Share]]

    def data(self) -> dict[str, Any]:
        """As plain JSON; None for what is not known."""
        return _plain(asdict(self))


def read_interventions(found: Sequence[Intervention | LeftOut]) -> Effect:
    """The effect over the tasks whose own turn names an action."""
    played = [one for one in found if isinstance(one, Intervention)]
    used = [one for one in played if one.own.actions]
    left_out = Counter(one.reason for one in found if isinstance(one, LeftOut))
    left_out["no_action"] += len(played) - len(used)
    kinds = {arm: [answer_of(one, arm) for one in used] for arm in ARMS}
    differ = {arm: np.array([kind in ("donors", "another") for kind in kinds[arm]], dtype=bool) for arm in ARMS}
    change = differ["donor"].astype(float) - differ["second"]
    begins = {arm: np.array([_begins_as_donors(one, arm) for one in used], dtype=bool) for arm in ARMS}
    follow = begins["donor"].astype(float) - begins["second"]
    return Effect(
        tasks=len(used),
        twins=sum(one.twin for one in used),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
        change=Share(*paired_interval(change)) if used else UNKNOWN,
        follow=Share(*paired_interval(follow)) if used else UNKNOWN,
        valid=_share([one.own.valid for one in used]),
        answers={
            arm: {answer: _share([kind == answer for kind in kinds[arm]]) for answer in ANSWERS}
            | {"differs": _share(differ[arm].tolist()), "valid": _share([one.again[arm].valid for one in used])}
            for arm in ARMS
        },
    )


def answer_of(one: Intervention, arm: Arm) -> str:
    """Which of `ANSWERS` the action is that was sampled again."""
    actions = one.again[arm].actions
    if not actions:
        return "none"
    return "own" if actions == one.own.actions else "donors" if actions == one.donor.actions else "another"


def _begins_as_donors(one: Intervention, arm: Arm) -> bool:
    """Whether the first action that was sampled again is the donor's first one."""
    actions = one.again[arm].actions
    return bool(actions) and actions[:1] == one.donor.actions[:1]


def _share(hits: Sequence[bool]) -> Share:
    return Share(sum(hits) / len(hits), *wilson_interval(sum(hits), len(hits))) if hits else UNKNOWN


def effects(found: Sequence[Intervention | LeftOut]) -> dict[str, Effect]:
    """The effect in each environment, by its label."""
    labels = dict.fromkeys(one.label for one in found)
    return {label: read_interventions([one for one in found if one.label == label]) for label in labels}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
