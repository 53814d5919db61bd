"""The status of a run at one moment, computed from its folder. Pure; imports neither Ray nor torch.

A summary of an earlier process is ignored while another one drives the run (`RunFolder.current_summary`).
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from squelch.cluster.metrics import LEDGER_STATES
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.shapes import LARGEST
from squelch.kit.archive.reader import is_of_step
from squelch.kit.diagnosis.alarm import alarm_text
from squelch.kit.diagnosis.metrics import EARLIER_REGIMES, REGIMES
from squelch.kit.diagnosis.regime import decided_by
from squelch.kit.metrics.training import PARTS
from squelch.kit.process.terminal import duration, one_line

if TYPE_CHECKING:
    from squelch.kit.findings.finder import Finding

RECENT_STEPS = 20
"""Number of last steps from which the speed is computed."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class RunStatus:
    """The status of a run. None means not measured yet. Shares are in [0, 1], times in seconds."""

    run: str
    state: str
    """`starting`, `running`, `finished`, `stopped`, or `ended`: no process drives the run, and the last one left no
    summary, because it failed or was killed. If it cannot be judged whether a process drives the run, the state of a
    run that ended so remains `running`, or `starting` before its first line."""
    stopped: str | None
    """The reason if the run ended before its last step."""
    starting: str | None
    """What a run that starts is doing; else None."""
    starting_times: str | None
    """How long it has been doing that, and how long it will as far as that is known."""
    step: int
    total_steps: int
    seconds_since_step: float | None
    seconds_per_step: float | None
    seconds_left: float | None
    tokens_per_second: float | None
    mfu: float | None
    """Share of the peak of the run's GPUs that the matrix products of the last step reached over its wall time."""
    gpu_busy: float | None
    """Share of the time in which the GPUs were busy, mean over the actors that report it."""
    success: float | None
    """Success of the last step's training trajectories."""
    validation_success: float | None
    validation_low: float | None
    validation_high: float | None
    validation_step: int | None
    first_validation_success: float | None
    reward_variance_mean: float | None
    kept_mass: float | None
    kept_groups: float | None
    num_groups: float | None
    format_validity: float | None
    retrieval_accuracy: float | None
    """Retrieval accuracy at the first turn, of the step scored last."""
    retrieval_chance: float | None
    mi_est: float | None
    conditional_entropy: float | None
    dependence: str | None
    """The alarm in words while it is raised; else None."""
    regime: str | None
    """Regime of the first turn at the step scored last."""
    regime_reason: str | None
    """What decided it, in words."""
    probe: dict[str, float | None]
    """Metrics of the fixed probe's last evaluation (`last_probe`); empty before the first."""
    judge: dict[str, float | None]
    """The judge's metrics of the last scorer step, by flat key without `judge/`; empty without a judge, and where there
    was nothing to judge."""
    kinds: dict[str, float]
    """Metrics of the coverage of kinds at the last step, by flat key without `kinds/`; empty without kinds."""
    environments: dict[str, dict[str, float | None]]
    """Metrics of each of several environments by its label: `validation`, `success`, `reward`, `variance` and `kept`;
    empty in a run of one."""
    staleness_max: float | None
    no_signal_streak: float | None
    findings: list[dict[str, Any]] = field(default_factory=list)
    """What is wrong with the run, the most severe first: `name`, `severity`, `since`, `says` and the `command` of a
    remedy; empty in a run of a release without findings."""
    members: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Number of members that are up, and the wanted number, by kind: rollout workers, environment actors."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the last step by part."""
    ledger: dict[str, int] = field(default_factory=dict)
    last_event: str | None = None


def read_status(folder: RunFolder, now: float) -> RunStatus:
    """The status of a run at `now` (unix seconds)."""
    return status_of(folder, folder.metrics(), now)


def status_of(folder: RunFolder, lines: Sequence[Line], now: float) -> RunStatus:
    """The status of a run at `now` (unix seconds), of which the lines of `metrics.jsonl` have been read."""
    driven = folder.driven()  # before the summary, which a process writes before it gives up the lock
    summary = folder.current_summary()
    steps = [line for line in lines if line["step"] > 0 and not is_scorer_step_alone(line)]
    last: Line = steps[-1] if steps else {"step": 0}
    total = int(next((line["total_steps"] for line in reversed(lines) if line.get("total_steps")), 0))
    pace = seconds_per_step([line["time"] for line in steps]) or last.get("seconds/step")
    validated = [line for line in lines if line.get("validation/success") is not None]
    checked: Line = validated[-1] if validated else {}
    scored = last_scorer_step(lines)
    stage = folder.stage()
    regime, reason = _regime(lines)
    state = "starting" if stage else _state(lines, summary, driven)
    return RunStatus(
        run=folder.name,
        state=state,
        stopped=one_line(summary["stopped"]) if summary and summary.get("stopped") else None,
        starting=one_line(stage.words) if stage else None,
        starting_times=one_line(stage.times(now)) if stage else None,
        step=last["step"],
        total_steps=total,
        seconds_since_step=max(0.0, now - lines[-1]["time"]) if lines else None,
        seconds_per_step=pace,
        seconds_left=_left(pace, total - last["step"]) if pace is not None and state == "running" else None,
        tokens_per_second=last.get("tokens/per_second"),
        mfu=last.get("mfu/step/products"),
        gpu_busy=_gpu_busy(last),
        success=last.get("success"),
        validation_success=checked.get("validation/success"),
        validation_low=checked.get("validation/success_low"),
        validation_high=checked.get("validation/success_high"),
        validation_step=checked.get("step"),
        first_validation_success=_first_success(validated),
        reward_variance_mean=last.get("reward_variance_mean"),
        kept_mass=last.get("kept_mass"),
        kept_groups=last.get("kept_groups"),
        num_groups=last.get("num_groups"),
        format_validity=last.get("format_validity"),
        retrieval_accuracy=scored.get("first_turn/retrieval_accuracy"),
        retrieval_chance=scored.get("first_turn/retrieval_chance"),
        mi_est=scored.get("first_turn/mi_est"),
        conditional_entropy=scored.get("first_turn/conditional_entropy"),
        dependence=dependence(last),
        regime=regime,
        regime_reason=reason,
        probe=last_probe(lines),
        judge=_judge(scored),
        kinds=_kinds(last),
        environments=_environments(checked, last),
        staleness_max=last.get("staleness_max"),
        no_signal_streak=last.get("no_signal_streak"),
        findings=[_finding(*one) for one in folder.findings() or ()],
        members=_members(last),
        seconds={part: last[f"seconds/{part}"] for part in PARTS if last.get(f"seconds/{part}") is not None},
        ledger=_tickets(last),
        last_event=_event_text(folder.last_event(), now),
    )


def is_scorer_step_alone(line: Line) -> bool:
    """Whether the line holds an earlier scorer step alone; it has the number of the last step, whose record follows
    it."""
    return line["step"] > 0 and line.get("scorer/step") is not None and not is_of_step(line)


def _gpu_busy(line: Line) -> float | None:
    """The mean over the actors that report how busy their GPU is; None without any."""
    known = [value for key, value in line.items() if re.fullmatch("gpu/[^/]+/busy", key) and value is not None]
    return sum(known) / len(known) if known else None


def _left(pace: float, steps: int) -> float:
    """Seconds that so many steps take; finite, whatever the file says."""
    return min(LARGEST, max(0.0, pace * steps))


def dependence(line: Line) -> str | None:
    """The alarm in words if the step's metrics say that it is raised; else None."""
    if line.get("alarm/raised") != 1:
        return None
    return alarm_text(line.get("alarm/since"), max(-1.0, min(1.0, line.get("alarm/reward_trend") or 0.0)))


def _finding(found: Finding, command: str) -> dict[str, Any]:
    told = {"name": found.name, "severity": found.severity, "since": found.since, "says": one_line(found.says)}
    return {**told, "command": one_line(command)}


PROBED = (
    *("step", "mi", "mi_low", "mi_high", "mi_upper", "ceiling", "saturated", "mi_change", "mi_change_low"),
    *("mi_change_high", "link/dependence", "link/dependence_low", "link/dependence_high", "link/information"),
    *("link/dependence_share", "link/information_upper", "link/past_reasoning", "link/follows"),
    *("hard/mi", "hard/mi_low", "hard/mi_high", "hard/ceiling"),
)
"""Metrics of `last_probe`."""


def last_probe(lines: Sequence[Line]) -> dict[str, float | None]:
    """The metrics of the last evaluation of the fixed probe, None for unknown ones, and for all but the step if nothing
    could be scored in it; empty if none was recorded."""
    read = [line for line in lines if line.get("probe/step") is not None]
    return {name.replace("/", "_"): read[-1].get(f"probe/{name}") for name in PROBED} if read else {}


def _judge(scored: Line) -> dict[str, float | None]:
    names = ("names", "right", "untrue")
    return {} if scored.get("judge/names") is None else {name: scored.get(f"judge/{name}") for name in names}


def _kinds(line: Line) -> dict[str, float]:
    """The known metrics of the coverage of kinds."""
    return {
        key.removeprefix("kinds/"): float(value)
        for key, value in line.items()
        if key.startswith("kinds/") and value is not None
    }


def _first_success(validated: Sequence[Line]) -> float | None:
    """Success at the first validation on the tasks of the last one: the newest that has no gain over another."""
    first = next((line for line in reversed(validated) if line.get("gain") is None), None)
    return None if first is None else first["validation/success"]


def _regime(lines: Sequence[Line]) -> tuple[str, str] | tuple[None, None]:
    """The first turn's regime in the newest line that has one, and what decided it: D is of the probe's last evaluation
    before."""
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        if (name := regime_of(line)) is not None:
            read = next((one for one in reversed(lines[:index]) if one.get("probe/step") is not None), {})
            links = _below(read, "probe/link/") | ({"step": read["probe/step"]} if read else {})
            return name, decided_by(name, _below(line, "first_turn/") | _below(line, "judge/", "judge/"), links)
    return None, None


def regime_of(line: Line) -> str | None:
    """The first turn's regime that the line holds; None without one."""
    for name in REGIMES:
        if 1 in (line.get(f"first_turn/regime/{one}") for one in (name, EARLIER_REGIMES.get(name))):
            return name
    return None


def _below(line: Line, prefix: str, named: str = "") -> dict[str, float]:
    """The known metrics whose keys begin with the prefix, without it."""
    return {
        f"{named}{key.removeprefix(prefix)}": value
        for key, value in line.items()
        if key.startswith(prefix) and isinstance(value, int | float)
    }


def _state(lines: Sequence[Line], summary: Line | None, driven: bool | None) -> str:
    if summary is not None:
        return "finished" if summary.get("finished") else "stopped"
    if driven is False:
        return "ended"
    return "running" if lines else "starting"


def _members(line: Line) -> dict[str, tuple[int, int | None]]:
    """Members that are up and the wanted number, by kind, of the kinds that the step's metrics name."""
    found = {}
    for words, kind, prefix in (
        ("rollout workers", "rollout", "rollout"),
        ("environment actors", "environment", "env"),
    ):
        up = [value for key, value in line.items() if re.fullmatch(rf"up/{prefix}-\d+", key)]
        wanted = line.get(f"wanted/{kind}")
        if up:
            found[words] = (sum(value == 1 for value in up), None if wanted is None else int(wanted))
    return found


def _environments(checked: Line, last: Line) -> dict[str, dict[str, float | None]]:
    """The metrics of each environment: of the last validation, and of the last step."""
    of_validation = [key.split("/", 2) for key in checked if key.startswith("environment/validation/")]
    of_steps = [key.split("/", 2) for key in last if key.startswith("environment/groups/")]
    labels = dict.fromkeys(one_line(label) for *_, label in (*of_validation, *of_steps))
    return {
        label: {"validation": checked.get(f"environment/validation/{label}")}
        | {name: last.get(f"environment/{name}/{label}") for name in ("success", "reward", "variance", "kept")}
        for label in labels
    }


def _tickets(line: Line) -> dict[str, int]:
    """Number of tickets by state."""
    known = {state: line.get(f"ledger/{state}") for state in LEDGER_STATES}
    return {state: int(count) for state, count in known.items() if count is not None}


def last_scorer_step(lines: Sequence[Line]) -> Line:
    """The newest line with a scorer step; unknown metrics are None there, whatever earlier ones were. Empty without
    one."""
    return next((line for line in reversed(lines) if line.get("scorer/step") is not None), {})


def _event_text(event: Line | None, now: float) -> str | None:
    if event is None:
        return None
    took, ago = event["end"] - event["start"], max(0.0, now - event["end"])
    return one_line(f"{event['actor']} {event['name']} took {took:.1f} s, {duration(ago)} ago")


def seconds_per_step(times: Sequence[float]) -> float | None:
    """Mean wall seconds from one step to the next over the last steps. A pause (before a resume) counts as at most ten
    steps."""
    recent = times[-RECENT_STEPS - 1 :]
    gaps = [after - before for before, after in itertools.pairwise(recent)]
    if not gaps:
        return None
    usual = statistics.median(gaps)
    return statistics.fmean(min(gap, 10 * usual) for gap in gaps)
