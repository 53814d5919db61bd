"""When each bad state of the reasoning began, so that the checkpoint from before it can be kept.

    mute, template, unused        the regime of first turns (`kit.diagnosis.regime`)
    blind                         that of either scope, in an environment whose pictures alone show the task: elsewhere
                                  reasoning that does without them is no fault
    untrue                        the judge's verdict, whatever the regime

A state counts as absent only if the scorer step could decide it: the regime `template` does not show whether the answer
follows from the reasoning, and the regime `unknown` shows nothing. An undecided state stays as it was. The falls that
the alarms detect are not watched here. Pure; plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from squelch.kit.diagnosis.metrics import EARLIER_REGIMES, REGIMES, SCOPES
from squelch.kit.diagnosis.regime import BLIND, MUTE, TEMPLATE, UNKNOWN, UNUSED

UNTRUE = "untrue"
REGIME = "first_turn/regime/{}"
ASKED = (MUTE, TEMPLATE, UNUSED)
"""The regimes that are bad states, in the order in which the regime's rules test them."""
KNOWN = REGIMES[: REGIMES.index(UNKNOWN)]
"""The known regimes in that order: a regime implies that no earlier one holds."""


@dataclass
class Soundness:
    """The bad states that hold, and the last good step of each state; see the module's head."""

    pictures_alone: bool = False
    """Whether pictures alone show the task."""
    bad: list[str] = field(default_factory=list)
    good: dict[str, int] = field(default_factory=dict)
    """The last step at which the state was known to be absent."""
    blind: bool | None = None
    """Whether the last scorer step found the reasoning blind; None if it did not decide that."""

    def update(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Records the flat metrics of one scorer step; returns the states that begin with it."""
        began = []
        blind = _blind(metrics) if self.pictures_alone else {}
        another = any(metrics.get(f"trajectory/regime/{name}") == 1.0 for name in KNOWN)
        self.blind = blind.get(BLIND, False if another else None)
        for state, holds in (_states(metrics) | blind).items():
            if not holds:
                self.good[state] = step
                self.bad = [name for name in self.bad if name != state]
            elif state not in self.bad:
                self.bad.append(state)
                began.append(state)
        return began

    @property
    def until(self) -> int | None:
        """The last step before the first of the bad states that hold; None if none holds or none was ever absent."""
        return min((self.good[state] for state in self.bad if state in self.good), default=None)

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry; none where text shows the task too."""
        return {"alarm/blind": math.nan if self.blind is None else float(self.blind)} if self.pictures_alone else {}

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return {"bad": list(self.bad), "good": dict(self.good), "blind": self.blind}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint, which may be one of an earlier commit."""
        names = {earlier: name for name, earlier in EARLIER_REGIMES.items()}
        self.bad = [names.get(one, one) for one in state["bad"]]
        self.good = {names.get(one, one): step for one, step in state["good"].items()}
        self.blind = state.get("blind")


def _states(metrics: Mapping[str, float]) -> dict[str, bool]:
    """Whether each state holds, for the states that these metrics decide."""
    found = {}
    regime = next((name for name in KNOWN if metrics.get(REGIME.format(name)) == 1.0), None)
    if regime is not None:
        passed = KNOWN.index(regime)
        found = {name: name == regime for name in ASKED if KNOWN.index(name) <= passed}
    if (untrue := metrics.get("judge/untrue")) in (0.0, 1.0):
        found[UNTRUE] = untrue == 1.0
    return found


def _blind(metrics: Mapping[str, float]) -> dict[str, bool]:
    """Whether the reasoning is blind, if these metrics decide it: first turns may all show one text."""
    holds = any(metrics.get(f"{scope}/regime/{BLIND}") == 1.0 for scope in SCOPES)
    return {BLIND: holds} if holds or metrics.get("trajectory/modality/text_alone") == 0.0 else {}
