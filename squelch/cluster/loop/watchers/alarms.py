"""The watcher of the scorer's metrics: the alarms (`kit.diagnosis.alarm`, `probe_alarm`) and the state of the
reasoning (`kit.diagnosis.bad_states`). Waits for nobody.

The alarms run beside the coordinator and not in the scorer, because the first needs the rewards of every step too. They
see each scorer step and each probe evaluation once, when it is recorded. While an alarm is raised, or the reasoning is
in a bad state, the newest checkpoint from before is kept, so that a new run can start from there. With
`loop.on_alarm=pause` the step after the report is the run's last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints, newest_until
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.next_run import ways_on
from squelch.kit.diagnosis.alarm import DependenceAlarm, score_of
from squelch.kit.diagnosis.bad_states import UNTRUE, Soundness
from squelch.kit.diagnosis.probe_alarm import WORDS, ProbeAlarm
from squelch.kit.diagnosis.regime import BLIND, MUTE

log = logging.getLogger(__name__)


class Alarms(Watcher):
    """Reports each alarm once: in the log, in the terminal and as an event."""

    name = "alarms"

    def __init__(self, config: RunConfig, run_log: RunLog) -> None:
        self.config, self.run_dir, self.run_log = config, config.run_dir, run_log
        self._pause: Ending | None = None
        self.alarm, self.probe_alarm = DependenceAlarm(), ProbeAlarm()
        self._soundness = Soundness(pictures_alone=config.pictures_alone)
        self._blind: tuple[str, ...] = ()
        """Metrics of the probe's alarm that were unknown in the last evaluation; a resumed run reports them again."""
        self._named: tuple[int, int] | None = None
        """The step of the last report that named a checkpoint, and the checkpoint's."""

    async def after_train(self, step: Step) -> Ending | None:
        """The pause for what was reported since the step before, if the run pauses for alarms."""
        pause, self._pause = self._pause, None
        return pause

    def metrics(self, step: Step) -> dict[str, float]:
        """Passes the step's scorer metrics and mean reward to the alarms; returns the alarms' metrics."""
        found = step.metrics
        if "probe/step" in found:
            self._watch_probe(found)
        self.alarm.reward(step.number, found["reward_mean"])
        self._watch(found)
        return self.alarm.metrics() | self.probe_alarm.metrics() | self._soundness.metrics()

    def recorded_alone(self, found: dict[str, float]) -> None:
        """Takes the metrics of a scorer step, or of a probe evaluation, that get a record of their own."""
        if "probe/step" in found:
            self._watch_probe(found)
        else:
            self._watch(found)

    def _watch(self, taken: dict[str, float]) -> None:
        """Passes new metrics to the alarm. Reports once when it is raised, when reasoning falls silent (the alarm is
        then blind), and when reasoning becomes untrue or does without its pictures (which the alarm does not see)."""
        if "scorer/step" in taken:
            self._watch_soundness(int(taken["scorer/step"]), taken)
        seen = score_of(taken)
        if seen is None or not self.alarm.update(*seen):
            return
        facts = {"since": self.alarm.since, "reward_trend": self.alarm.reward_trend}
        self._report_fall(seen[0], "input_dependence_falling", self.alarm.text(), **facts)

    def _watch_soundness(self, step: int, taken: dict[str, float]) -> None:
        began = self._soundness.update(step, taken)
        if MUTE in began and MUTE in self._soundness.good:  # else it never had any: a model's own format may have none
            text = "reasoning has fallen silent: fewer than half of the first turns have any (regime mute)"
            self._report_fall(step, "reasoning_mute", text)
        if BLIND in began:
            text = "reasoning is blind: it depends on the text, and not on the pictures that alone show the task"
            self._report_fall(step, "reasoning_blind", text)
        if UNTRUE in began:
            share = taken["judge/true_share"]
            text = f"reasoning has become untrue: of what states a fact the judge finds {share:.0%} entirely true, the "
            text += (
                "mean of the last two scorer steps, which is below half of the run's first ones; MI does not show it"
            )
            self._report_fall(step, "reasoning_untrue", text, true_share=share)

    def _watch_probe(self, found: dict[str, float]) -> None:
        """Passes a new evaluation of the fixed probe to its alarm, and reports each metric once when it falls, or when
        it becomes unknown, which leaves its alarm blind."""
        step = int(found["probe/step"])
        for metric in self.probe_alarm.update(step, found):
            self._report_fall(step, "probe_falling", self.probe_alarm.text(metric), figure=metric)
        before, self._blind = self._blind, self.probe_alarm.blind(found)
        for metric in self._blind:
            if metric not in before:
                text = f"the fixed probe cannot show whether {WORDS[metric]}: too little could be scored"
                self._report(step, "probe_blind", text, figure=metric)

    def _report_fall(self, step: int, event: str, text: str, **facts: Any) -> None:
        """As `_report`, with the checkpoint from before the drop or the bad state."""
        kept = newest_until(checkpoints(self.run_dir), self.healthy_until)
        which = "no checkpoint is from before it"
        if kept is not None:
            self._named = step, kept
            which = f"checkpoints/step-{kept} is from before it, and stays"
        self._report(step, event, f"{text}; {which}", checkpoint=kept, **facts)
        if self.config.loop.on_alarm == "pause":
            self._pause = Ending(EndCause.PAUSED, f"{text}; {which}. {ways_on(self.config, kept)}")

    @property
    def healthy_until(self) -> int | None:
        """The last step at which no alarm saw a drop and the reasoning was in no bad state; None before the first
        scorer step."""
        watching = (self.alarm, *self.probe_alarm.alarms.values())
        known = (*(alarm.since for alarm in watching), self._soundness.until)
        return min((step for step in known if step is not None), default=None)

    @property
    def named(self) -> int | None:
        """Step of the checkpoint that the last report names, while what it reported lasts: a newer one from before it
        may have been written at that moment."""
        if self._named is None:
            return None
        reported, kept = self._named
        return kept if self.healthy_until is None or self.healthy_until < reported else None

    def _report(self, step: int, event: str, text: str, **facts: Any) -> None:
        """Reports an alarm in the log, in the terminal and as an event."""
        now = time.time()
        log.warning("%s", text)
        self.run_log.say(f"step {step:4d}  ALARM: {text}")
        self.run_log.event("scorer", event, now, now, step=step, **facts, text=text)

    def state(self) -> dict[str, Any]:
        """The states of both alarms and of the judge's baseline, and the checkpoint that the last report names."""
        states = {"probe": self.probe_alarm.state(), "soundness": self._soundness.state()}
        return {**self.alarm.state(), **states, "named": self._named}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """An alarm compares with a level, so it starts over if the measurement has changed."""
        if "scorings" not in anew:
            own = {key: value for key, value in state.items() if key not in ("probe", "soundness", "named")}
            self.alarm.restore(own)
            self._named = tuple(state["named"]) if state.get("named") else None
            self._soundness.restore(state["soundness"])
        if "probe" not in anew:
            kept = {name: own for name, own in state["probe"].items() if "answers" not in anew or name != "dependence"}
            self.probe_alarm.restore(kept)
