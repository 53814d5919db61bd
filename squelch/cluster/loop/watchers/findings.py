"""The watcher of the findings (`kit.findings`): follows every record, and tells what changes. Waits for nobody.

It takes each record as it is complete, with its times (`RunLog.judge`). What changes is told in the terminal, in at
most one line a record, and as events; those that hold stand in `findings.json` of the run's folder, for readers. With
`loop.on_alarm=pause` a critical one makes the next step the run's last, unless an alarm says the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints, newest_until
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.findings import FEWEST, check_command, write_findings
from squelch.cluster.runs.next_run import remedy, ways_on
from squelch.kit.findings.finder import Change, Finding, Findings
from squelch.kit.findings.view import GroupView, StepView, TextView
from squelch.kit.findings.words import step_lines
from squelch.kit.records.records import GroupSummary

log = logging.getLogger(__name__)
LASTING = 5
"""Steps for which a warning must have held to stand in the summary."""


class FindingsWatcher(Watcher):
    """Tells each finding when it begins, worsens and ends. It is the last watcher, which sees what others found."""

    name = "findings"

    def __init__(self, config: RunConfig, run_log: RunLog) -> None:
        self.config, self.run_log = config, run_log
        self.findings = Findings(config.findings.ignore)
        self._played: Sequence[GroupSummary] = ()
        self._pause: Ending | None = None
        run_log.judge = self.record

    async def begin(self, clock: int) -> None:
        """Writes the file: a run without it is of an earlier release."""
        write_findings(self.config, self.findings.open)

    async def after_train(self, step: Step) -> Ending | None:
        """The pause for a critical finding of the record before, if the run pauses for such."""
        pause, self._pause = self._pause, None
        return pause

    def metrics(self, step: Step) -> dict[str, float]:
        """Keeps the step's groups for its record. A run that ends because it learns nothing is judged by the steps that
        it has."""
        self._played = step.window.summaries()
        if step.decision.action == "abort":
            self.findings.ends(max(FEWEST, step.number))
        return {}

    def record(self, step: int, flat: dict[str, float]) -> list[str]:
        """Takes a record, and adds the findings' own metrics to it; returns the lines to print after it."""
        played, self._played = self._played, ()
        view = StepView(step, flat, groups_of(played), texts_of(played))
        metrics, changes = self.findings.step(view)
        flat |= metrics
        if changes:
            self._tell(step, changes)
        told = [change for change in changes if not _is_told(change.finding)]
        lines = step_lines(told, lambda finding: remedy(self.config, finding), check_command(self.config.run_dir))
        return [f"step {step:4d}  {line}" for line in lines]

    def _tell(self, step: int, changes: Sequence[Change]) -> None:
        now = time.time()
        for change in changes:
            found = change.finding
            facts = {"step": step, "finding": found.name, "severity": found.severity, "change": change.kind}
            self.run_log.event("findings", "finding", now, now, **facts, since=found.since, text=found.says)
            if change.kind != "ended" and found.severity == "critical" and not _is_told(found):
                self._critical(change)
        write_findings(self.config, self.findings.open)

    def _critical(self, change: Change) -> None:
        found = change.finding
        log.warning("%s: %s", found.name, found.says)
        if self.config.loop.on_alarm == "pause":
            kept = newest_until(checkpoints(self.config.run_dir), found.since)
            text = f"{found.name}: {found.says}. {ways_on(self.config, kept, found.entry.settings)}"
            self._pause = Ending(EndCause.PAUSED, text)

    def verdict(self) -> str:
        """The worst finding that holds, for the summary: a critical one, or a warning that has held for `LASTING`
        steps."""
        since = self.findings.last_step - LASTING + 1
        found = [
            one
            for one in self.findings.open
            if one.severity == "critical" or (one.severity == "warning" and one.since <= since)
        ]
        if not found:
            return ""
        more = f" (and {len(found) - 1} more: {check_command(self.config.run_dir)})" if len(found) > 1 else ""
        worst = found[0]
        return f"{worst.name} ({worst.severity}, since step {worst.since}): {worst.says}{more}"

    def state(self) -> dict[str, Any]:
        """Where every finding stands."""
        return self.findings.state()

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Takes it."""
        self.findings.restore(state)


def _is_told(finding: Finding) -> bool:
    """Whether an alarm says the same (`cluster.loop.watchers.alarms`)."""
    return finding.entry.told and finding.severity != "notice"


def groups_of(played: Sequence[GroupSummary]) -> list[GroupView]:
    """A step's groups as the findings see them."""
    return [
        GroupView(
            one.group_id,
            one.returns.tolist(),
            f"{one.label} {one.task_key}",
            one.successes.tolist(),
            one.lengths.tolist(),
            one.format_penalties.tolist(),
            one.cuts if len(one.cuts) == len(one.returns) else None,
            failures=tuple(map(str, one.failures)),
            prompts_differ=one.prompts_differ,
        )
        for one in played
    ]


def texts_of(played: Sequence[GroupSummary]) -> list[TextView]:
    """The first turns of a step's trajectories."""
    return [
        TextView(f"{one.group_id} {index}", one.task_key, key, repetition)
        for one in played
        for index, (key, repetition) in zip(one.indices, one.first_texts, strict=False)
    ]
