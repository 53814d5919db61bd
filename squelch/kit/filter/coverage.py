"""Coverage of the kinds of tasks (`info["task_kind"]`): which kinds the filter keeps, and which it starves. Pure.

A filter that prefers some kinds of tasks narrows what the policy learns. Over the last `filter.kind_window` groups that
were not refused, with w_k the number of kept groups of kind k:

    effective kinds   (sum w)^2 / sum w^2: 1 if one kind holds all kept groups, K if K kinds hold the same number
    starved           a kind that was played in the window and of which no group there was kept
    age               steps since a kind was last kept, 0 if this step kept it; a kind that was never kept counts from
                      the step before it was first played

Invariants:

- Groups enter in order of their steps, and of tickets within a step, so that no metric depends on the order of arrival.
- A kind's name is made printable and cut to `MAX_NAME` characters, because a remote environment may send any text. A
  name that this changes ends with a digest of the original, so that no two kinds are counted as one.
- Memory is bounded: the window, and the ages of the `MAX_KINDS` kinds that were played last, or of as many kinds as the
  window has groups if that is more; a forgotten age is NaN. The first `SHOWN_KINDS` kinds have metrics of their own;
  further kinds count in the metrics over all kinds.
- The state is plain JSON.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from squelch.kit.filter.metrics import mean

MAX_NAME = 40
DIGITS = 6
MAX_KINDS = 1000
SHOWN_KINDS = 24
_FOREIGN = re.compile(r"[^\w .+\-]", flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class Seen:
    """One decided group. `success`: share of its trajectories that solved the task, NaN if unknown."""

    kind: str
    kept: bool
    success: float


def kind_name(kind: str | None) -> str | None:
    """The name under which a kind is counted; None if the environment declares none."""
    if kind is None:
        return None
    name = _FOREIGN.sub("_", kind)[:MAX_NAME]
    if name == kind and kind:
        return name
    digest = hashlib.sha256(kind.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
    return f"{name[: MAX_NAME - DIGITS - 1]}-{digest}"


def effective_number(weights: Iterable[float]) -> float:
    """(sum w)^2 / sum w^2 of non-negative weights; NaN if all are 0."""
    given = [float(weight) for weight in weights]
    squares = math.fsum(weight * weight for weight in given)
    return math.fsum(given) ** 2 / squares if squares > 0 else math.nan


class Coverage:
    """The kinds of the last `size` groups, and when each kind was last kept."""

    def __init__(self, size: int) -> None:
        self._recent: deque[Seen] = deque(maxlen=size)
        self._fed: dict[str, int] = {}
        """The step at which each kind was last kept, or the one before it was first played; the kind that was played
        last is the last entry."""
        self._shown: list[str] = []

    def add(self, step: int, groups: Sequence[Seen]) -> None:
        """Adds the decided groups of a step."""
        self._recent.extend(groups)
        for group in groups:
            before = self._fed.pop(group.kind, step - 1)
            self._fed[group.kind] = step if group.kept else before
            if group.kind not in self._shown and len(self._shown) < SHOWN_KINDS:
                self._shown.append(group.kind)
        held = max(MAX_KINDS, self._recent.maxlen or 0)  # so that every kind in the window has an age
        for gone in list(self._fed)[: max(0, len(self._fed) - held)]:
            del self._fed[gone]

    @property
    def played(self) -> Counter[str]:
        """Groups in the window, by kind."""
        return Counter(group.kind for group in self._recent)

    @property
    def kept(self) -> Counter[str]:
        """Kept groups in the window, by kind."""
        return Counter(group.kind for group in self._recent if group.kept)

    def metrics(self, step: int) -> dict[str, float]:
        """The flat metrics after a step; empty as long as no environment has declared a kind."""
        played, kept = self.played, self.kept
        if not self._fed:
            return {}
        starved = {kind for kind in played if not kept[kind]}
        return {
            "kinds/played": float(len(played)),
            "kinds/effective_played": effective_number(played.values()),
            "kinds/effective": effective_number(kept.values()),
            "kinds/starved": float(len(starved)),
            "kinds/starved_success": self._success(starved),
            "kinds/oldest_steps": max((self.age(kind, step) for kind in played), default=0.0),
            **self._by_kind(step, played, kept),
        }

    def age(self, kind: str, step: int) -> float:
        """Steps since a kind was last kept, 0 if it was kept at this step; NaN if that is forgotten."""
        return float(step - self._fed[kind]) if kind in self._fed else math.nan

    def _by_kind(self, step: int, played: Mapping[str, int], kept: Mapping[str, int]) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind in self._shown:
            count = played[kind]
            found[f"kinds/kept/{kind}"] = kept[kind] / count if count else math.nan
            found[f"kinds/age/{kind}"] = self.age(kind, step)
            found[f"kinds/success/{kind}"] = self._success({kind})
        return found

    def _success(self, kinds: set[str]) -> float:
        """Mean success of the window's groups of these kinds; NaN without one."""
        return mean(g.success for g in self._recent if g.kind in kinds and not math.isnan(g.success))

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        rows = [list(astuple(group)) for group in self._recent]
        recent = [[kind, kept, None if math.isnan(success) else success] for kind, kept, success in rows]
        return {"recent": recent, "fed": [list(item) for item in self._fed.items()], "shown": list(self._shown)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint, as far as the window reaches."""
        rows = ((kind, kept, math.nan if success is None else success) for kind, kept, success in state["recent"])
        self._recent = deque((Seen(*row) for row in rows), maxlen=self._recent.maxlen)
        self._fed = {kind: int(step) for kind, step in state["fed"]}
        self._shown = list(state["shown"])
