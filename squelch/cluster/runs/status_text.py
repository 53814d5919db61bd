"""The text and sparklines of a run's status, for `squelch status` and `squelch watch`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from squelch.cluster.runs.status import Line, RunStatus, dependence
from squelch.kit.process.terminal import UNKNOWN, duration, known

SPARK_WIDTH = 32
SPARKS = "▁▂▃▄▅▆▇█"
LATE_STEPS = 5
"""Number of usual steps without a new one after which the age of the last step is shown."""
UNTIMED_LATE_S = 60.0
"""Seconds after which the age is shown if no step has been timed yet."""


@dataclass(frozen=True)
class StatusRow:
    """One line of the view: a name, its value as text, and its history (oldest first) within [low, high]."""

    name: str
    value: str
    history: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """The last `SPARK_WIDTH` values as block characters, scaled to [low, high] or to their own range."""
    shown = [value for value in values if math.isfinite(value)][-SPARK_WIDTH:]
    if not shown:
        return ""
    floor = min(shown) if low is None else low
    span = (max(shown) if high is None else high) - floor
    if span <= 0:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[min(7, max(0, int((value - floor) / span * 8)))] for value in shown)


def _nats(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f} nats per token"


def status_rows(status: RunStatus, lines: Sequence[Line]) -> list[StatusRow]:
    """The lines of the view, in order; none before the run has measured anything."""
    if not lines:
        return []

    def history(key: str) -> tuple[float, ...]:
        return tuple(line[key] for line in lines if line.get(key) is not None)

    return [
        StatusRow("validation success", _validation(status), history("validation/success"), 0, 1),
        StatusRow("training success", known(status.success), history("success"), 0, 1),
        *(
            StatusRow(label, environment_words(found), history(f"environment/success/{label}"), 0, 1)
            for label, found in status.environments.items()
        ),
        StatusRow("kept mass", _kept(status), history("kept_mass"), 0, 1),
        *([StatusRow("kinds kept", kind_words(status.kinds), history("kinds/effective"), 0)] if status.kinds else []),
        StatusRow("reward variance", known(status.reward_variance_mean, ".4f"), history("reward_variance_mean"), 0),
        StatusRow("retrieval accuracy", _retrieval(status), history("first_turn/retrieval_accuracy"), 0, 1),
        StatusRow("MI estimate", _nats(status.mi_est), history("first_turn/mi_est"), 0),
        StatusRow("H(Z|X)", _nats(status.conditional_entropy), history("first_turn/conditional_entropy"), 0),
        StatusRow("regime", UNKNOWN if status.regime is None else regime_words(status.regime, status.regime_reason)),
        StatusRow("fixed probe", probe_words(status.probe), history("probe/mi"), 0),
        *(
            [StatusRow("near variations", hard_words(status.probe), history("probe/hard/mi"), 0)]
            if status.probe.get("hard_mi") is not None
            else []
        ),
        StatusRow("answer on reasoning", link_words(status.probe), history("probe/link/dependence"), 0),
        *(
            [StatusRow("true statements", true_words(status.judge), history("judge/right"), 0, 1)]
            if status.judge
            else []
        ),
        *([StatusRow("ALARM", status.dependence)] if status.dependence else []),
        *(StatusRow("finding", finding_words(one)) for one in status.findings),
        StatusRow("format valid", known(status.format_validity), history("format_validity"), 0, 1),
        StatusRow("throughput", _throughput(status), history("tokens/per_second"), 0),
        StatusRow("members", _members(status)),
        StatusRow(
            "seconds by part", "  ".join(f"{part} {value:.2f}" for part, value in status.seconds.items()) or UNKNOWN
        ),
        StatusRow(
            "tickets", "  ".join(f"{state} {count}" for state, count in status.ledger.items() if count) or UNKNOWN
        ),
        StatusRow("last finished", status.last_event or UNKNOWN),
    ]


def finding_words(found: Mapping[str, Any]) -> str:
    """A finding of the status in words."""
    return f"{found['severity']}: {found['says']}  ({found['name']}, since step {found['since']})"


def environment_words(found: Mapping[str, float | None]) -> str:
    """The metrics of one of several environments in words."""
    shown = {"validation": "validation", "training": "success", "reward": "reward", "kept": "kept"}
    return "  ".join(f"{word} {known(found[name])}" for word, name in shown.items())


def _validation(status: RunStatus) -> str:
    if status.validation_success is None:
        return UNKNOWN
    text = (
        f"{status.validation_success:.3f}  [{known(status.validation_low)}, {known(status.validation_high)}]"
        f"  step {status.validation_step}"
    )
    first = status.first_validation_success
    return text if first is None or not status.validation_step else f"{text}  (first {first:.3f})"


def _kept(status: RunStatus) -> str:
    groups = f"{known(status.kept_groups, '.0f')}/{known(status.num_groups, '.0f')}"
    text = f"{known(status.kept_mass)}  groups {groups}"
    return f"{text}  NO SIGNAL for {status.no_signal_streak:.0f} steps" if status.no_signal_streak else text


def kind_words(kinds: Mapping[str, float]) -> str:
    """Coverage of the kinds of tasks in words: the effective number of kept kinds, and the kind that has waited for
    longest if one is starved."""
    text = f"{known(kinds.get('effective'), '.1f')} effective of {known(kinds.get('played'), '.0f')}"
    text += f"  (played: {known(kinds.get('effective_played'), '.1f')})"
    if not kinds.get("starved"):
        return text
    starved = {key.removeprefix("kept/") for key, share in kinds.items() if key.startswith("kept/") and share == 0}
    ages = {kind: kinds[f"age/{kind}"] for kind in sorted(starved) if f"age/{kind}" in kinds}
    longest = max(ages, key=lambda kind: ages[kind], default=None)
    warning = f"  STARVED: {kinds['starved']:.0f}, success {known(kinds.get('starved_success'), '.2f')}"
    return text + warning + ("" if longest is None else f"; {longest} for {ages[longest]:.0f} steps")


def _retrieval(status: RunStatus) -> str:
    accuracy, chance = status.retrieval_accuracy, status.retrieval_chance
    if accuracy is None or not chance:
        return UNKNOWN
    return f"{accuracy:.3f}  chance {chance:.3f}  ({accuracy / chance:.1f} x)"


def probe_words(probe: Mapping[str, float | None]) -> str:
    """MI of the fixed probe's last evaluation (`cluster.runs.status.last_probe`) in words."""
    if not probe:
        return UNKNOWN
    if probe["mi"] is None:
        return f"{UNKNOWN}, nothing to score  step {known(probe['step'], '.0f')}"
    high = clipped(probe["mi_high"], probe["ceiling"])
    text = f"{known(probe['mi'], '.2f')}  [{known(probe['mi_low'], '.2f')}, {known(high, '.2f')}]"
    text += f" of {known(probe['ceiling'], '.2f')} nats  step {known(probe['step'], '.0f')}"
    change = probe["mi_change"]
    since = "" if change is None else f"  ({change:+.2f} since the first)"
    return text + since + ("  SATURATED" if probe["saturated"] else "")


def clipped(high: float | None, ceiling: float | None) -> float | None:
    """The upper end of an interval of MI as it is shown: no MI exceeds its ceiling, though its t-interval may."""
    return high if high is None or ceiling is None else min(high, ceiling)


NONE_STATES = "no reasoning states anything"


def true_words(judge: Mapping[str, float | None]) -> str:
    """The judge's metrics in words: how many of the first reasonings that state anything state nothing false."""
    names, right = judge["names"] or 0.0, judge["right"] or 0.0
    text = f"{right / names:.3f} of those that state anything, {names:.3f} of all" if names else NONE_STATES
    return f"{text}  UNTRUE" if judge.get("untrue") == 1 else text


def regime_words(regime: str, reason: str | None) -> str:
    """The regime with what decided it."""
    name = regime.replace("_", " ")
    return f"{name}  {reason}" if reason else name


def hard_words(probe: Mapping[str, float | None]) -> str:
    """MI against near variations of the tasks at the fixed probe's last evaluation, in words."""
    high = clipped(probe["hard_mi_high"], probe["hard_ceiling"])
    text = f"{known(probe['hard_mi'], '.2f')}  [{known(probe['hard_mi_low'], '.2f')}, {known(high, '.2f')}]"
    return f"{text} of {known(probe['hard_ceiling'], '.2f')} nats"


def link_words(probe: Mapping[str, float | None]) -> str:
    """D of the fixed probe's last evaluation in words: whether the answer follows from the reasoning."""
    if probe.get("link_dependence") is None:
        return UNKNOWN
    low, high = known(probe["link_dependence_low"], ".2f"), known(probe["link_dependence_high"], ".2f")
    follows = probe["link_follows"]
    verdict = "" if follows is None else "  follows" if follows else "  DOES NOT FOLLOW"
    share = probe.get("link_dependence_share")
    part = "" if share is None else f", {share:.0%} of the surprise"
    return f"D {known(probe['link_dependence'], '.2f')}  [{low}, {high}] nats{part}{verdict}"


def _members(status: RunStatus) -> str:
    """The number of members that are up, and the wanted number if it differs."""
    shown = [
        f"{words} {up}" + (f" ({wanted} wanted)" if wanted not in (None, up) else "")
        for words, (up, wanted) in status.members.items()
    ]
    return "  ".join(shown) or UNKNOWN


def _throughput(status: RunStatus) -> str:
    text = f"{known(status.tokens_per_second, '.0f')} tokens/s  {known(status.seconds_per_step, '.2f')} s/step"
    text += "" if status.gpu_busy is None else f"  GPUs {status.gpu_busy:.0%} busy"
    return text + ("" if status.mfu is None else f"  MFU {status.mfu:.1%}")


def is_late(status: RunStatus) -> bool:
    """Whether a run that seems to be running has made no step for longer than a few steps take."""
    age, pace = status.seconds_since_step, status.seconds_per_step
    if status.state != "running" or age is None:
        return False
    return age > (UNTIMED_LATE_S if pace is None else LATE_STEPS * pace)


def headline(status: RunStatus) -> str:
    """The view's title, e.g. `frozenlake: running, step 12/60, 3 min 20 s left`. If a run is late or ended without a
    summary, it contains the age of the last step."""
    parts = [status.state if not status.stopped else f"{status.state} ({status.stopped})"]
    if status.starting:
        parts[0] = f"{status.state}, {status.starting} ({status.starting_times})"
    if status.total_steps or status.step:
        parts.append(f"step {status.step}/{status.total_steps or '?'}")
    elif status.state == "ended":
        parts.append("before its first step")
    if status.seconds_left:
        parts.append(f"{duration(status.seconds_left)} left")
    if status.seconds_since_step is not None and (status.state == "ended" or is_late(status)):
        parts.append(f"last step {duration(status.seconds_since_step)} ago")
    return f"{status.run}: {', '.join(parts)}"


def step_text(line: Line) -> str:
    """One step as one line of text, with the metrics that the step has."""
    shown = {
        "success": "success",
        "validation": "validation/success",
        "kept mass": "kept_mass",
        "retrieval": "first_turn/retrieval_accuracy",
        "chance": "first_turn/retrieval_chance",
        "s": "seconds/step",
    }
    found = [f"{name} {line[key]:.3f}" for name, key in shown.items() if line.get(key) is not None]
    found += [text for text in [dependence(line)] if text]
    return f"step {line['step']}: " + ", ".join(found)
