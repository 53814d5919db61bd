"""The filter's windows: which groups of a step are learned from (paper, section 3.3; docs/filter.md).

Pure logic, no Ray; `actors.filter.service` is the shell. The caller admits every group of a step as it arrives and
closes the step once each of its tickets has ended; nothing here waits. Invariants:

- Every admitted group gets exactly one decision: kept, dropped or refused, with a reason.
- A decision is final once made. A refill round is ranked with all of the step's groups, but kept stays kept and dropped
  stays dropped, so that a step never keeps more groups than its first round had. The one exception is
  `on_no_signal: passthrough`, which at the step's last close keeps all valid groups of a step that kept none.
- The state is plain JSON; a window restored from it decides as the uninterrupted one would.

Whole window (`FilterWindow`): ranked at close, exact. Sliding window (`SlidingWindow`): a group is ranked on arrival
among the last `window_size` groups, itself included, of whatever step; nothing waits for a full window.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from actors.config import FilterConfig, Rule
from actors.filter.rules import (
    ZERO,
    Code,
    GroupStatistics,
    Measured,
    Selection,
    describe,
    explain,
    measure,
    pick,
    score,
    select,
)

if TYPE_CHECKING:
    from actors.records import GroupSummary

__all__ = [
    "Action",
    "Decision",
    "FilterWindow",
    "GroupStatistics",
    "Measured",
    "NoSignal",
    "Selection",
    "SlidingWindow",
    "StepDecision",
    "describe",
    "loss_scale",
    "make_window",
    "measure",
    "score",
    "select",
]

Verdict = Literal["kept", "dropped", "refused"]
Action = Literal["learn", "skip", "abort"]
LossScale = Literal["none", "rho", "kept_mass", "kept_fraction", "sqrt_kept_fraction"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one group."""

    group_id: str
    step: int
    decision: Verdict
    code: Code
    """Short cause: selected, passthrough, zero, below_threshold, no_signal, refused."""
    reason: str
    """The same for people, with the numbers."""
    score: float | None
    """The statistic; None if refused."""
    reward_variance: float | None
    """Sample variance of the returns, penalty left out; None if refused."""
    mean_return: float | None


@dataclass(frozen=True)
class StepDecision:
    """A step after its window was ranked. The lists hold all of the step's groups so far, in order of tickets."""

    step: int
    kept: list[Decision]
    dropped: list[Decision]
    refused: list[Decision]
    kept_mass: float | None
    """Share of the step's summed reward variance in the kept groups; None when the sum is 0."""
    kept_fraction: float
    """Kept over all of the step's groups."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    threshold: float | None
    """What the rule last compared with, in its own unit; None in a sliding window, where each group had its own."""
    wanted: int
    """Further groups that a refill asks for; 0 when the step is closed."""
    action: Action
    """learn: train on `kept`. skip: no update, no new version. abort: end the run."""
    filtered: bool
    """False where no rule was applied (rule none, passthrough): the loss is then not scaled."""
    rule: Rule
    filter: str
    """The rule and its settings as text, for the archive."""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether the step has ended; while it has not, the caller plays `wanted` more tickets and closes again."""
        return self.wanted == 0

    @property
    def decisions(self) -> list[Decision]:
        return [*self.kept, *self.dropped, *self.refused]


@dataclass
class NoSignal:
    """What happens when a step selects nothing: `on_no_signal`, and the limit on such steps in a row."""

    policy: Literal["warn", "abort", "passthrough"]
    limit: int
    streak: int = 0

    def observe(self, has_signal: bool) -> Literal["learn", "skip", "abort", "passthrough"]:
        """Counts one closed step and says what to do with it."""
        self.streak = 0 if has_signal else self.streak + 1
        if has_signal:
            return "learn"
        if self.policy == "abort" or self.streak >= self.limit:
            return "abort"
        return "passthrough" if self.policy == "passthrough" else "skip"

    def state(self) -> dict[str, int]:
        return {"streak": self.streak}

    def restore(self, state: dict[str, int]) -> None:
        self.streak = int(state["streak"])


@dataclass(slots=True)
class _Entry:
    """One admitted group. `score` and its neighbours are NaN where refused."""

    group_id: str
    score: float
    variance: float
    mean: float
    refusal: str | None
    verdict: Verdict | None = None
    code: Code = "refused"
    reason: str = ""

    def settle(self, kept: bool, code: Code, reason: str) -> None:
        self.verdict = "refused" if code == "refused" else "kept" if kept else "dropped"
        self.code, self.reason = code, reason

    def decision(self, step: int) -> Decision:
        if self.verdict is None:
            raise RuntimeError(f"group {self.group_id} of step {step} has no decision yet")
        figures = (_finite(self.score), _finite(self.variance), _finite(self.mean))
        return Decision(self.group_id, step, self.verdict, self.code, self.reason, *figures)


@dataclass(slots=True)
class _Step:
    """An open step: its groups, measured or pending, and its refill."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    pending: dict[str, GroupStatistics] = field(default_factory=dict)
    target: int | None = None
    rounds: int = 0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@lru_cache(maxsize=8192)
def ticket_key(group_id: str) -> tuple[str | int, ...]:
    """Sorts ticket ids by their numbers as numbers: `7-10` after `7-9`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", group_id))


def ticket_order(group_ids: Sequence[str]) -> np.ndarray:
    """(n,) rank of each id among the tickets; breaks ties between scores."""
    ranks = np.empty(len(group_ids), dtype=np.int64)
    ranks[sorted(range(len(group_ids)), key=lambda i: ticket_key(group_ids[i]))] = np.arange(len(group_ids))
    return ranks


class RecentGroups:
    """The last `size` groups of whatever step: their scores, and their order among the tickets, kept up as groups come
    and go, so that nothing is sorted anew for each."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: deque[str] = deque()
        self._tickets: list[tuple[str | int, ...]] = []  # sorted; equal ones in order of arrival
        self._scores, self._order = np.empty(size), np.empty(size, dtype=np.int64)

    @property
    def scores(self) -> np.ndarray:
        """(n,) float64 in order of arrival, NaN where refused."""
        return self._scores[: len(self._ids)]

    @property
    def order(self) -> np.ndarray:
        """(n,) `ticket_order` of the same groups."""
        return self._order[: len(self._ids)]

    def add(self, group_id: str, score: float) -> None:
        """Takes a group; the oldest goes when there are `size`."""
        if len(self._ids) == self._size:
            self._drop_oldest()
        ticket, order, last = ticket_key(group_id), self.order, len(self._ids)
        rank = bisect.bisect_right(self._tickets, ticket)
        self._tickets.insert(rank, ticket)
        order += order >= rank
        self._ids.append(group_id)
        self._scores[last], self._order[last] = score, rank

    def _drop_oldest(self) -> None:
        rank = bisect.bisect_left(self._tickets, ticket_key(self._ids.popleft()))
        del self._tickets[rank]
        self._scores[:-1] = self._scores[1:]
        self._order[:-1] = self._order[1:]
        order = self.order
        order -= order > rank

    def state(self) -> list[list[Any]]:
        """[id, score or None] of each, oldest first."""
        return [[group_id, _finite(score)] for group_id, score in zip(self._ids, self.scores.tolist(), strict=True)]


class FilterWindow:
    """A step's groups ranked together, at close. Four methods besides `close`: admit, metrics, state, restore."""

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self._text = describe(config)
        self._no_signal = NoSignal(config.on_no_signal, config.no_signal_limit)
        self._steps: dict[int, _Step] = {}
        self._totals: dict[str, int] = {"kept": 0, "dropped": 0, "refused": 0}

    def admit(self, summary: GroupSummary | GroupStatistics) -> list[Decision]:
        """Takes a group of an open step; returns what was decided at once, here nothing.

        Raises RuntimeError if the group was admitted before.
        """
        group = summary if isinstance(summary, GroupStatistics) else GroupStatistics.of(summary)
        step = self._steps.setdefault(group.step, _Step())
        if group.group_id in step.entries or group.group_id in step.pending:
            raise RuntimeError(f"group {group.group_id} of step {group.step} was admitted twice")
        step.pending[group.group_id] = group
        return []

    def close(self, step: int, final: bool = False, target: int | None = None) -> StepDecision:
        """Ranks what the step has, once each of its tickets has ended.

        With `refill`, and unless `final`, a close that kept fewer groups than `target` asks for the rest (`wanted`) and
        leaves the step open. `target` is the number of groups the step should train on: by default those of its first
        round. Raises ValueError when a mass rule meets a negative score.
        """
        found = self._steps.setdefault(step, _Step())
        self._measure(found)
        if found.target is None:
            found.target = len(found.entries) if target is None else target
        threshold = self._rank(found)
        num_kept = sum(entry.verdict == "kept" for entry in found.entries.values())
        may_refill = self.config.refill and not final and found.rounds < self.config.max_refill_rounds
        wanted = max(0, found.target - num_kept) if may_refill else 0
        if wanted:
            found.rounds += 1
            return self._report(step, found, threshold, wanted, "skip", True)
        return self._end(step, found, threshold, num_kept > 0)

    def metrics(self) -> dict[str, float]:
        """Totals over the run, open steps and the streak without signal."""
        totals = {f"{name}_groups": float(count) for name, count in self._totals.items()}
        return {**totals, "open_steps": float(len(self._steps)), "no_signal_streak": float(self._no_signal.streak)}

    def state(self) -> dict[str, Any]:
        """Everything that later decisions depend on, as plain JSON."""
        for found in self._steps.values():
            self._measure(found)
        return {
            "measured": self._measured_by(),
            "no_signal": self._no_signal.state(),
            "totals": dict(self._totals),
            "steps": {str(step): _step_state(found) for step, found in self._steps.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of `state`. Raises ValueError if that state was measured under other settings."""
        if state["measured"] != self._measured_by():
            raise ValueError(
                f"the checkpoint's filter scored groups with {state['measured']}, this run with {self._measured_by()}: "
                "set filter.statistic, filter.compat and filter.window as they were, or start without --resume"
            )
        self._no_signal.restore(state["no_signal"])
        self._totals = dict(state["totals"])
        self._steps = {int(step): _step_from(found) for step, found in state["steps"].items()}

    def _measured_by(self) -> dict[str, str]:
        config = self.config
        return {"statistic": config.statistic, "compat": config.compat, "window": config.window}

    def _measure(self, found: _Step) -> list[_Entry]:
        """Scores the pending groups in one call; returns their entries."""
        groups = list(found.pending.values())
        measured = measure(groups, self.config.statistic, self.config.compat, self.config.rule)
        columns = (measured.scores.tolist(), measured.variances.tolist(), measured.means.tolist(), measured.refusals)
        entries = [_Entry(group.group_id, *row) for group, *row in zip(groups, *columns, strict=True)]
        found.entries.update((entry.group_id, entry) for entry in entries)
        found.pending.clear()
        return entries

    def _rank(self, found: _Step) -> float | None:
        """Decides the undecided groups of the step among all of its groups; returns the rule's threshold."""
        entries = list(found.entries.values())
        order = ticket_order(list(found.entries))
        scores = np.array([entry.score for entry in entries], dtype=np.float64)
        mask = pick(scores, order, self.config)
        for entry, kept in zip(entries, mask.kept.tolist(), strict=True):
            if entry.verdict is None:
                entry.settle(kept, *explain(entry.score, kept, entry.refusal, mask, self.config))
        return mask.threshold

    def _end(self, step: int, found: _Step, threshold: float | None, has_signal: bool) -> StepDecision:
        """Closes the step for good."""
        verdict = self._no_signal.observe(has_signal)
        if verdict == "passthrough":
            for entry in found.entries.values():
                if entry.verdict == "dropped":
                    entry.settle(True, "passthrough", f"no signal in the step ({entry.reason}), passed through")
        learns = any(entry.verdict == "kept" for entry in found.entries.values())
        action: Action = "abort" if verdict == "abort" else "learn" if learns else "skip"
        report = self._report(step, found, threshold, 0, action, verdict != "passthrough")
        for name in self._totals:
            self._totals[name] += int(report.metrics[f"{name}_groups"])
        del self._steps[step]
        return report

    def _report(
        self, step: int, found: _Step, threshold: float | None, wanted: int, action: Action, filtered: bool
    ) -> StepDecision:
        ordered = sorted(found.entries.values(), key=lambda entry: ticket_key(entry.group_id))
        lists: dict[str, list[Decision]] = {"kept": [], "dropped": [], "refused": []}
        for entry in ordered:
            decision = entry.decision(step)
            lists[decision.decision].append(decision)
        mass = _kept_mass(ordered)
        fraction = len(lists["kept"]) / len(ordered) if ordered else 0.0
        metrics = _metrics(ordered, {name: len(found) for name, found in lists.items()})
        metrics |= {"kept_mass": _number(mass), "kept_fraction": fraction, "refill_rounds": float(found.rounds)}
        metrics["no_signal_streak"] = float(self._no_signal.streak)
        num_zero = sum(abs(entry.score) <= ZERO for entry in ordered)
        is_filtered = filtered and self.config.rule != "none"
        return StepDecision(
            step, **lists, kept_mass=mass, kept_fraction=fraction, num_zero=num_zero, threshold=threshold,
            wanted=wanted, action=action, filtered=is_filtered, rule=self.config.rule, filter=self._text,
            metrics=metrics,
        )  # fmt: skip


class SlidingWindow(FilterWindow):
    """Each group ranked on arrival among the last `window_size` groups, itself included.

    Early groups are ranked among few; a decision never waits and is never revised when better groups follow. With
    `on_no_signal: passthrough` the caller keeps the payload of dropped groups until their step is closed.
    """

    def __init__(self, config: FilterConfig) -> None:
        super().__init__(config)
        self._recent = RecentGroups(config.window_size)

    def admit(self, summary: GroupSummary | GroupStatistics) -> list[Decision]:
        """Takes a group and decides on it at once."""
        super().admit(summary)
        found = self._steps[summary.step]
        (entry,) = self._measure(found)
        self._recent.add(entry.group_id, entry.score)
        mask = pick(self._recent.scores, self._recent.order, self.config)
        kept = bool(mask.kept[-1])
        entry.settle(kept, *explain(entry.score, kept, entry.refusal, mask, self.config))
        return [entry.decision(summary.step)]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "recent": self._recent.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._recent = RecentGroups(self.config.window_size)
        for group_id, value in state["recent"]:
            self._recent.add(group_id, _number(value))

    def _rank(self, found: _Step) -> float | None:
        """Everything was decided on arrival."""
        return None


def make_window(config: FilterConfig) -> FilterWindow:
    """The window that `config.window` names."""
    return SlidingWindow(config) if config.window == "sliding" else FilterWindow(config)


def _step_state(found: _Step) -> dict[str, Any]:
    rows = [asdict(entry) for entry in found.entries.values()]
    for row in rows:
        row |= {key: _finite(row[key]) for key in ("score", "variance", "mean")}
    return {"target": found.target, "rounds": found.rounds, "entries": rows}


def _step_from(state: dict[str, Any]) -> _Step:
    entries = {}
    for row in state["entries"]:
        figures = {key: _number(row[key]) for key in ("score", "variance", "mean")}
        entries[row["group_id"]] = _Entry(**{**row, **figures})
    return _Step(entries=entries, target=state["target"], rounds=state["rounds"])


def _kept_mass(entries: Sequence[_Entry]) -> float | None:
    """`kept_mass` of entries; sums are exact, so that the figure does not depend on the order of arrival."""
    total = math.fsum(entry.variance for entry in entries if entry.verdict != "refused")
    if total <= 0:
        return None
    return min(1.0, math.fsum(entry.variance for entry in entries if entry.verdict == "kept") / total)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _metrics(entries: Sequence[_Entry], counts: dict[str, int]) -> dict[str, float]:
    """Flat keys of `actors.metrics.registry`; refused groups have no figures."""
    valid = [entry for entry in entries if entry.verdict != "refused"]
    return {
        "num_groups": float(len(entries)),
        **{f"{name}_groups": float(count) for name, count in counts.items()},
        "zero_variance_groups": float(sum(entry.variance <= ZERO for entry in valid)),
        "reward_variance_mean": _mean([entry.variance for entry in valid]),
        "reward_mean": _mean([entry.mean for entry in valid]),
        "reward_mean_kept": _mean([entry.mean for entry in valid if entry.verdict == "kept"]),
        "reward_mean_dropped": _mean([entry.mean for entry in valid if entry.verdict == "dropped"]),
    }


def loss_scale(kind: LossScale, decision: StepDecision, rho: float) -> float:
    """Factor on a loss that was normalised over the kept groups (paper, section 4.1; design decision 3), in [0, 1].

    1 where nothing was filtered (rule none, passthrough), for `rho` under `band`, which has no rho, and for `kept_mass`
    when the window has no reward variance to share out.
    """
    if kind == "none" or not decision.filtered:
        return 1.0
    if kind == "rho":
        return 1.0 if decision.rule == "band" else rho
    if kind == "kept_mass":
        return 1.0 if decision.kept_mass is None else decision.kept_mass
    return decision.kept_fraction if kind == "kept_fraction" else math.sqrt(decision.kept_fraction)
