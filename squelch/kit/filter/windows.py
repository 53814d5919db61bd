"""The filter's windows: they decide which groups of a step are learned from (paper, section 3.3; docs/guide/filter.md).

Pure logic without Ray; `actors.filter.service` is the Ray actor. The caller admits every group of a step when it
arrives and closes the step once all its tickets have ended; nothing here waits. Invariants:

- Every admitted group gets exactly one decision: kept, dropped or refused, with a reason.
- A decision is final. A refill round ranks new groups together with all of the step's groups, but earlier decisions do
  not change, so a step never keeps more groups than its first round had. The one exception is
  `on_no_signal: passthrough`, which keeps all valid groups at the step's last close if the step kept none.
- The state is plain JSON; a restored window makes the same decisions as the uninterrupted one.

`FilterWindow` (whole window) ranks a step's groups together at close. `SlidingWindow` ranks each group on arrival among
the last `window_size` groups of any step, including itself; no group waits for a full window.

With `filter.scope=environment` every ranking is among the *peers* of a group: the groups of its environment. A rule,
its rejection of a window, floors and the sliding window then hold within each environment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from squelch.kit.filter.coverage import Coverage, Seen, kind_name
from squelch.kit.filter.decisions import Action, Decision, StepDecision, Verdict
from squelch.kit.filter.floors import Ranked, added_by_floors, may_add
from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.metrics import count_zero, environment_metrics, step_metrics
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.selection import Code, Mask, best_first, explain, pick, tied
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.ticket_order import RecentGroups, ticket_key, ticket_order

if TYPE_CHECKING:
    from squelch.kit.records.records import GroupSummary


class FilterChanged(ValueError):
    """A window's state is of other settings than this window's."""


@dataclass
class NoSignal:
    """Policy for steps that select nothing: `on_no_signal`, and the limit on consecutive such steps."""

    policy: Literal["warn", "abort", "passthrough"]
    limit: int
    streak: int = 0

    def observe(self, has_signal: bool) -> Literal["learn", "skip", "abort", "passthrough"]:
        """Counts one closed step and returns the action for it."""
        self.streak = 0 if has_signal else self.streak + 1
        if has_signal:
            return "learn"
        if self.policy == "abort" or self.streak >= self.limit:
            return "abort"
        return "passthrough" if self.policy == "passthrough" else "skip"

    def state(self) -> dict[str, int]:
        """For the checkpoint; plain JSON."""
        return {"streak": self.streak}

    def restore(self, state: dict[str, int]) -> None:
        """Restores the streak from a checkpoint."""
        self.streak = int(state["streak"])


@dataclass(slots=True)
class _Entry:
    """One admitted group. `score`, `variance` and `mean` are NaN if it was refused."""

    group_id: str
    score: float
    variance: float
    mean: float
    refusal: str | None
    verdict: Verdict | None = None
    code: Code = "refused"
    reason: str = ""
    kind: str | None = None
    success: float = math.nan
    label: str = ""

    def settle(self, kept: bool, code: Code, reason: str) -> None:
        """Sets the verdict with its cause."""
        self.verdict = "refused" if code == "refused" else "kept" if kept else "dropped"
        self.code, self.reason = code, reason

    def decision(self, step: int) -> Decision:
        """The decision on this group. Raises RuntimeError if there is none yet."""
        if self.verdict is None:
            raise RuntimeError(f"group {self.group_id} of step {step} has no decision yet")
        values = (_finite(self.score), _finite(self.variance), _finite(self.mean))
        return Decision(self.group_id, step, self.verdict, self.code, self.reason, *values)


@dataclass(slots=True)
class _Step:
    """An open step: its measured and pending groups, and the state of its refill."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    pending: dict[str, GroupStatistics] = field(default_factory=dict)
    target: int | None = None
    rounds: int = 0


_MAY_BE_NAN = ("score", "variance", "mean", "success")
"""Fields of `_Entry` that may be NaN, which JSON cannot represent."""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _kind(group: GroupStatistics) -> str | None:
    """The name under which the group's kind is counted, of several environments with the label."""
    return kind_name(f"{group.label} {group.kind}" if group.label and group.kind is not None else group.kind)


def _ticket(decision: Decision) -> tuple[str | int, ...]:
    return ticket_key(decision.group_id)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


class FilterWindow:
    """Ranks a step's groups together when the step is closed."""

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self._no_signal = NoSignal(config.on_no_signal, config.no_signal_limit)
        self._steps: dict[int, _Step] = {}
        self._coverage = Coverage(config.kind_window)

    def admit(self, summary: GroupSummary | GroupStatistics) -> None:
        """Adds a group to its step. Raises RuntimeError if it was admitted before."""
        group = summary if isinstance(summary, GroupStatistics) else GroupStatistics.of(summary)
        step = self._steps.setdefault(group.step, _Step())
        if group.group_id in step.entries or group.group_id in step.pending:
            raise RuntimeError(f"group {group.group_id} of step {group.step} was admitted twice")
        step.pending[group.group_id] = group

    def close(self, step: int, final: bool = False, target: int | None = None) -> StepDecision:
        """Ranks the step's groups; called once all its tickets have ended.

        With `refill`, and unless `final`, a close that kept fewer groups than `target` requests the missing ones
        (`wanted`) and leaves the step open. `target` is the number of groups that the step should train on; by default
        the number of groups in its first round. Raises ValueError if a rule that sums scores meets a negative score.
        """
        found = self._steps.setdefault(step, _Step())
        self._measure(found)
        if found.target is None:
            found.target = len(found.entries) if target is None else target
        masks = self._rank(found)
        num_kept = sum(entry.verdict == "kept" for entry in found.entries.values())
        may_refill = self.config.refill and not final and found.rounds < self.config.max_refill_rounds
        wanted = max(0, found.target - num_kept) if may_refill else 0
        if wanted:
            found.rounds += 1
            return self._report(step, found, masks, wanted, "skip", True)
        return self._end(step, found, masks, num_kept > 0)

    def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """Everything that later decisions depend on, as plain JSON; of the open steps only those in `steps`, by default
        all."""
        held = {step: found for step, found in self._steps.items() if steps is None or step in steps}
        for found in held.values():
            self._measure(found)
        return {
            "measured": self._measured_by(),
            "no_signal": self._no_signal.state(),
            "coverage": self._coverage.state(),
            "epsilon_unit": self.config.unit_of_epsilon,
            "steps": {str(step): _step_state(found) for step, found in held.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of `state`. Raises FilterChanged if that state was measured under other settings."""
        if state["measured"] != self._measured_by():
            raise FilterChanged(
                f"the checkpoint's filter used {state['measured']}, this run uses {self._measured_by()}: restore "
                "filter.statistic, filter.compat, filter.window and filter.scope, or start without --resume"
            )
        self._require_unit(state)
        self._no_signal.restore(state["no_signal"])
        self._coverage.restore(state["coverage"])
        self._steps = {int(step): _step_from(found) for step, found in state["steps"].items()}

    def _require_unit(self, state: dict[str, Any]) -> None:
        """Raises FilterChanged if the checkpoint names no unit of epsilon, which is absolute then, and the run would
        take it for relative unasked."""
        config = self.config
        decides = config.rule == "top_p" and config.rho < 1 and config.epsilon > 0 and config.compat == "paper"
        if "epsilon_unit" not in state and decides and config.epsilon_unit is None:
            raise FilterChanged(
                f"the checkpoint's filter used an absolute filter.epsilon={config.epsilon:g}: set "
                "filter.epsilon_unit=absolute to go on with it, or filter.epsilon_unit=relative"
            )

    def _measured_by(self) -> dict[str, str]:
        config = self.config
        scope = {} if config.scope == "run" else {"scope": config.scope}
        return {"statistic": config.statistic, "compat": config.compat, "window": config.window, **scope}

    def _measure(self, found: _Step) -> list[_Entry]:
        """Scores the pending groups in one call; returns their entries."""
        groups = list(found.pending.values())
        measured = measure(groups, self.config.statistic, self.config.compat, self.config.rule)
        columns = (measured.scores.tolist(), measured.variances.tolist(), measured.means.tolist(), measured.refusals)
        rows = zip(groups, zip(*columns, strict=True), strict=True)
        entries = [_Entry(g.group_id, *row, kind=_kind(g), success=g.success, label=g.label) for g, row in rows]
        found.entries.update((entry.group_id, entry) for entry in entries)
        found.pending.clear()
        return entries

    def _rank(self, found: _Step) -> list[Mask]:
        """Ranks all of the step's groups and decides the undecided ones; returns the rule's selection among each
        group's peers."""
        fresh = {entry.group_id for entry in found.entries.values() if entry.verdict is None}
        masks = [self._rank_peers(peers, fresh) for peers in self._peers(found.entries.values())]
        self._raise_to_floors(found, fresh)
        return masks

    def _rank_peers(self, peers: Sequence[_Entry], fresh: Collection[str]) -> Mask:
        order = ticket_order([entry.group_id for entry in peers])
        mask = pick(np.array([entry.score for entry in peers], dtype=np.float64), order, self.config)
        for entry, kept in zip(peers, mask.kept.tolist(), strict=True):
            if entry.group_id in fresh:
                entry.settle(kept, *explain(entry.score, kept, entry.refusal, mask, self.config))
        return mask

    def _peers(self, entries: Iterable[_Entry]) -> list[list[_Entry]]:
        """The groups in sets of those that are ranked together."""
        found: dict[str, list[_Entry]] = {}
        for entry in entries:
            found.setdefault(self._scope_of(entry), []).append(entry)
        return list(found.values()) or [[]]

    def _scope_of(self, entry: _Entry) -> str:
        """The name of the set in which a group is ranked."""
        return entry.label if self.config.scope == "environment" else ""

    def _raise_to_floors(self, found: _Step, fresh: Collection[str]) -> None:
        """Keeps further groups among the `fresh` ones, as `kit.filter.floors` says."""
        if not (self.config.kind_floor or self.config.min_groups):
            return
        for peers in self._peers(entry for entry in found.entries.values() if entry.verdict != "refused"):
            for group_id, reason in self._added_to(peers, fresh).items():
                entry = found.entries[group_id]
                entry.settle(True, "floor", f"{reason} ({entry.reason})")

    def _added_to(self, valid: Sequence[_Entry], fresh: Collection[str]) -> dict[str, str]:
        tickets = ticket_order([entry.group_id for entry in valid])
        best = best_first(tied(np.array([entry.score for entry in valid])), tickets, self.config)
        spare = {e.group_id for e in valid if e.group_id in fresh and may_add(e.code, e.score, e.variance)}
        groups = [
            Ranked(e.group_id, e.kind, rank, e.verdict == "kept", e.group_id in spare)
            for rank, e in enumerate(valid[i] for i in best)
        ]
        return added_by_floors(groups, self._coverage.played, self._coverage.kept, self.config)

    def _end(self, step: int, found: _Step, masks: Sequence[Mask], has_signal: bool) -> StepDecision:
        """Closes the step finally."""
        verdict = self._no_signal.observe(has_signal)
        if verdict == "passthrough":
            for entry in found.entries.values():
                if entry.verdict == "dropped":
                    entry.settle(True, "passthrough", f"no signal in the step ({entry.reason}), passed through")
        learns = any(entry.verdict == "kept" for entry in found.entries.values())
        action: Action = "abort" if verdict == "abort" else "learn" if learns else "skip"
        report = self._report(step, found, masks, 0, action, verdict != "passthrough")
        self._cover(step, found, report)
        del self._steps[step]
        return report

    def _cover(self, step: int, found: _Step, report: StepDecision) -> None:
        """Counts the closed step in the coverage of kinds, whose metrics join the report's."""
        ordered = [found.entries[decision.group_id] for decision in sorted(report.decisions, key=_ticket)]
        valid = [e for e in ordered if e.verdict != "refused"]
        self._coverage.add(step, [Seen(e.kind, e.verdict == "kept", e.success) for e in valid if e.kind is not None])
        report.metrics.update(self._coverage.metrics(step))
        report.metrics["floor_groups"] = float(sum(entry.code == "floor" for entry in ordered))

    def _report(
        self, step: int, found: _Step, masks: Sequence[Mask], wanted: int, action: Action, filtered: bool
    ) -> StepDecision:
        ordered = sorted(found.entries.values(), key=lambda entry: ticket_key(entry.group_id))
        lists: dict[str, list[Decision]] = {"kept": [], "dropped": [], "refused": []}
        for entry in ordered:
            decision = entry.decision(step)
            lists[decision.decision].append(decision)
        metrics = step_metrics(ordered, found.rounds, self._no_signal.streak) | environment_metrics(ordered)
        rejections = dict.fromkeys(mask.rejection for mask in masks if mask.rejection)
        threshold = masks[0].threshold if len(masks) == 1 else None
        return StepDecision(
            step, **lists, kept_mass=_finite(metrics["kept_mass"]), kept_fraction=metrics["kept_fraction"],
            num_zero=count_zero(entry.score for entry in ordered), threshold=threshold,
            wanted=wanted, action=action, filtered=filtered and RULES[self.config.rule].filters, rule=self.config.rule,
            filter=self.config.describe(), metrics=metrics, rejection="; ".join(rejections),
        )  # fmt: skip


class SlidingWindow(FilterWindow):
    """Ranks each group on arrival among the last `window_size` groups, including itself.

    The first groups are ranked among few others. A decision never waits, and better groups that arrive later do not
    change it. With `on_no_signal: passthrough` the caller must hold dropped groups until their step is closed.
    """

    def __init__(self, config: FilterConfig) -> None:
        super().__init__(config)
        self._recent: dict[str, RecentGroups] = {}

    def _recent_of(self, scope: str) -> RecentGroups:
        return self._recent.setdefault(scope, RecentGroups(self.config.window_size))

    def admit(self, summary: GroupSummary | GroupStatistics) -> None:
        """Adds a group and decides on it immediately."""
        super().admit(summary)
        found = self._steps[summary.step]
        (entry,) = self._measure(found)
        recent = self._recent_of(self._scope_of(entry))
        recent.add(entry.group_id, entry.score)
        mask = pick(recent.scores, recent.order, self.config)
        kept = bool(mask.kept[-1])
        code, reason = explain(entry.score, kept, entry.refusal, mask, self.config)
        entry.settle(kept, code, f"{reason} ({mask.rejection})" if code == "no_signal" else reason)
        self._raise_to_floors(found, [entry.group_id])

    def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """As `FilterWindow.state`, with the recent groups."""
        rows = [[*row, *[scope] * bool(scope)] for scope, recent in self._recent.items() for row in recent.state()]
        return {**super().state(steps), "recent": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of `state`; errors as in `FilterWindow.restore`."""
        super().restore(state)
        self._recent = {}
        for group_id, value, *scope in state["recent"]:
            self._recent_of(scope[0] if scope else "").add(group_id, _number(value))

    def _rank(self, found: _Step) -> list[Mask]:
        """Does nothing: all groups were decided on arrival."""
        return []


def make_window(config: FilterConfig) -> FilterWindow:
    """The window of the kind `config.window`."""
    return SlidingWindow(config) if config.window == "sliding" else FilterWindow(config)


def _step_state(found: _Step) -> dict[str, Any]:
    rows = [asdict(entry) for entry in found.entries.values()]
    for row in rows:
        row |= {key: _finite(row[key]) for key in _MAY_BE_NAN}
        if not row["label"]:
            del row["label"]  # of a run's only environment
    return {"target": found.target, "rounds": found.rounds, "entries": rows}


def _step_from(state: dict[str, Any]) -> _Step:
    entries = {}
    for row in state["entries"]:
        values: dict[str, Any] = {key: _number(row.get(key)) for key in _MAY_BE_NAN}
        entries[row["group_id"]] = _Entry(**(row | values))
    return _Step(entries=entries, target=state["target"], rounds=state["rounds"])
