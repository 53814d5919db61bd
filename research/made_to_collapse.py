"""Runs that are made to collapse, and whether the alarm on the fixed probe says so in time.

python -m research.made_to_collapse [--quick] [--json]

Seven runs of FrozenLake are made to collapse by four means, 120 steps each, without the filter:

    entropy   an entropy bonus of 0.4 and of 1.0 (the recipe has 0.001)
    blind     a reward that ignores the task: every action Left pays (`environment.options.pays=left`)
    length    a penalty of 3 for turns of 20 tokens, which begins at 4: it outweighs the task's reward of 1
    format    every well-formed action pays, the task nothing (`environment.options.pays=format`)

Six healthy runs have the recipe's settings, with and without the filter. All have a reading of the fixed probe, with
the links to answers, every 10 steps.

Those means ruin success within 7 to 23 steps, before an alarm that needs four readings can come. So the part `gentle`
has means that are slow, and a reading every 3 steps; its healthy runs are the part `steady`. It was written down before
the first of its runs, with what is expected of it: the alarm comes before the fall, a mean lead above 0.

    blind, format   as above, at a quarter of the learning rate
    entropy         an entropy bonus of 0.2

`format` was added, and a second run of `length` left out, when the first run of `length` was seen: it did not collapse.
It stays in the table.

The alarm (`actors/diagnosis/probe_alarm.py`) was frozen before the first of these runs; FROZEN repeats its parameters,
and a test compares them. (That its sum is capped at THRESHOLD + MOST came after the first run. The first alarm, the
only one that is judged, cannot depend on it.) Its figures, from research/results/made_to_collapse.parquet:

- the fall: the first step from which the task's success in training, a mean over five steps, stays below 80% of its
  best. It counts only if the last validation lies below 80% of the best one, too: the best of many noisy means is so
  high that half of all runs with a steady success have such a step near their end;
- the alarm of a collapse: the first that is still raised at the fall or is raised later, at the step at which the run
  knew the reading, a few steps after the weights that were read. Alarms that cleared before the fall are `early`;
- the lead: steps from the alarm to the fall, with a t-interval over the runs that have both;
- false alarms: series drawn from the healthy runs, which are resampled, each with the noise of its readings resampled
  around its own course (a running mean). The upper end of Wilson's interval must be at most 2%. It is a bound for these
  runs, however their readings may fall; for other runs only the number of runs counts, and that interval stands beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from research.alarm import REWARD_SHARE, Series, reward_fall
from research.judging import Report, judge
from research.kept import RECORDED, Kept, caveats, read_all
from research.renoising import renoised
from research.tables import FOLDER
from squelch.actors.diagnosis import alarm, probe_alarm
from squelch.actors.diagnosis.probe_alarm import WATCHED, ProbeAlarm
from squelch.actors.diagnosis.uncertainty import wilson_interval
from squelch.cluster.errors import UserError
from squelch.cluster.sweep.table import INTERVAL, t_interval

RESULTS = FOLDER / "made_to_collapse.parquet"
FROZEN = {
    "watched": ("mi", "dependence"),
    "baseline": 2,
    "drift": 0.25,
    "told": 0.05,
    "floor": 0.05,
    "allowance": 0.5,
    "most": 3.0,
    "threshold": 4.0,
}
"""The alarm's parameters as they were before the first run."""
LARGEST_FALSE = 0.02
FEWEST_READINGS = probe_alarm.BASELINE + 2
"""Readings for a level, and two low ones that raise the alarm."""
SERIES, QUICK_SERIES = 2000, 1000


def frozen() -> dict[str, Any]:
    """The alarm's parameters now, in the form of FROZEN."""
    return {
        "watched": tuple(WATCHED),
        "baseline": probe_alarm.BASELINE,
        "drift": probe_alarm.DRIFT,
        "told": probe_alarm.SIGNIFICANT,
        "floor": alarm.FLOOR,
        "allowance": alarm.ALLOWANCE,
        "most": alarm.MOST,
        "threshold": alarm.THRESHOLD,
    }


def readings(run: Kept) -> list[tuple[int, dict[str, float]]]:
    """(step, figures by flat key) of each reading of the probe."""
    keys = [f"{key}{end}" for key in WATCHED.values() for end in ("", "_standard_error", "_p_value")]
    keys.append(RECORDED)
    series = {key: run.series(key) for key in keys}
    return [(step, {key: own[step] for key, own in series.items() if step in own}) for step in series["probe/mi"]]


@dataclass(frozen=True)
class Alarm:
    """One alarm. `end`: the step at which no figure was low any more; None if that never came."""

    step: int
    figures: tuple[str, ...]
    end: int | None = None


def alarms(found: Sequence[tuple[int, Mapping[str, float]]]) -> list[Alarm]:
    """Every alarm, from the first figure whose fall is told to the recovery of the last."""
    watching, raised = ProbeAlarm(), list[Alarm]()
    for step, one in found:
        watching.update(step, one)
        at, standing = int(one.get(RECORDED, step)), watching.raised
        if standing and not (raised and raised[-1].end is None):
            raised.append(Alarm(at, standing))
        elif not standing and raised and raised[-1].end is None:
            raised[-1] = replace(raised[-1], end=at)
    return raised


def judged(run: Kept) -> dict[str, Any]:
    """A run's alarm, its fall and the lead, in steps; None where there is none."""
    success = Series(run.name, [], list(run.series("success").items()))
    fall, raised = reward_fall(success) if has_fallen(run) else None, alarms(readings(run))
    standing = [one for one in raised if fall is None or one.end is None or one.end > fall]
    warning = standing[0] if standing else None
    return {
        "run": run.name,
        "alarm": None if warning is None else warning.step,
        "by": "" if warning is None else " and ".join(warning.figures),
        "early": len(raised) - len(standing),
        "fall": fall,
        "lead": None if warning is None or fall is None else fall - warning.step,
        "ends": {key: _ends(run, key) for key in ("success", *WATCHED.values())},
    }


def has_fallen(run: Kept) -> bool:
    """Whether the last validation's success is below REWARD_SHARE of the best one's."""
    success = list(run.series("validation/success").values())
    return bool(success) and success[-1] < REWARD_SHARE * max(success)


def _ends(run: Kept, key: str) -> list[float]:
    values = list(run.series(key).values())
    return [values[0], values[-1]] if values else []


def drawn(run: Kept, rng: np.random.Generator) -> list[tuple[int, dict[str, float]]]:
    """The run's readings with the noise of each figure resampled around its own course."""
    found = [(step, dict(one)) for step, one in readings(run)]
    for key in WATCHED.values():
        known = [one for _, one in found if key in one]
        values = renoised(np.array([one[key] for one in known]), rng).tolist()
        for one, value in zip(known, values, strict=True):
            one[key] = value
    return found


def false_alarms(runs: Sequence[Kept], number: int, seed: int = 0) -> dict[str, Any]:
    """Share of `number` series from resampled healthy runs that raise the alarm, with Wilson's interval.

    Raises:
        UserError: a run has too few readings of a watched figure to raise the alarm, so that it would count as quiet.
    """
    for run, key in ((run, key) for run in runs for key in WATCHED.values()):
        known = sum(key in one and f"{key}_standard_error" in one for _, one in readings(run))
        if known < FEWEST_READINGS:
            raise UserError(f"{run.name}: {known} readings of {key} with an error; judging needs {FEWEST_READINGS}")
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(runs), size=number)
    raised = sum(bool(alarms(drawn(runs[int(place)], rng))) for place in chosen)
    low, high = wilson_interval(raised, number)
    own = sum(bool(alarms(readings(run))) for run in runs)
    return {
        **{"runs": len(runs), "series": number, "raised": raised, "low": low, "high": high},
        "themselves": {"raised": own, "interval": list(wilson_interval(own, len(runs)))},
    }


def measure(runs: Sequence[Kept], number: int) -> dict[str, Any]:
    """All figures; `gentle`: those of the gentle means."""
    figures = {"benchmark": "made_to_collapse", "frozen": FROZEN, **_measured(runs, "collapse", "healthy", number)}
    return figures | {"gentle": _measured(runs, "gentle", "steady", number)}


def _measured(runs: Sequence[Kept], collapsing: str, steady: str, number: int) -> dict[str, Any]:
    """The figures of one part of runs that are made to collapse, and one of healthy runs with as many readings."""
    collapsed = [judged(run) for run in runs if run.part == collapsing]
    healthy = [run for run in runs if run.part == steady]
    leads = [row["lead"] for row in collapsed if row["lead"] is not None]
    return {
        "collapsed": collapsed,
        "healthy": [judged(run) for run in healthy],
        "lead": {**t_interval([float(lead) for lead in leads]), "interval": INTERVAL.replace("seeds", "runs")},
        "false_alarms": false_alarms(healthy, number) if healthy else None,
    }


COLUMNS = ("run", "alarm", "by", "early", "fall of success", "lead", "success", "MI", "D")


def rows(figures: Mapping[str, Any]) -> list[list[str]]:
    """The printed rows."""
    found = []
    gentle = figures["gentle"]
    for row in [*figures["collapsed"], *figures["healthy"], *gentle["collapsed"], *gentle["healthy"]]:
        ends = [f"{e[0]:.2f} to {e[1]:.2f}" if e else "-" for e in row["ends"].values()]
        told = ["-" if row[key] is None else str(row[key]) for key in ("alarm", "by", "early", "fall", "lead")]
        found.append([row["run"], *(word or "-" for word in told), *ends])
    return found


def notes(figures: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    gentle = figures["gentle"]
    under = [f"gentle means: {line}" for line in _notes(gentle)] if gentle["collapsed"] else []
    return [*_notes(figures), *under]


def _notes(figures: Mapping[str, Any]) -> list[str]:
    lead, false = figures["lead"], figures["false_alarms"]
    runs = figures["collapsed"]
    fallen = [row for row in runs if row["fall"] is not None]
    low, high = wilson_interval(lead["n"], len(fallen))
    lines = [
        f"collapsed runs: {len(runs)}; those whose success fell: {len(fallen)}, of these with an alarm: {lead['n']} "
        f"[{low:.2f}, {high:.2f}]"
    ]
    if lead["low"] is not None:
        lines.append(
            f"lead of the alarm over the fall: {lead['mean']:.1f} [{lead['low']:.1f}, {lead['high']:.1f}] steps"
        )
    if false:
        verdict = "at most 2%, as wanted" if false["high"] <= LARGEST_FALSE else "not shown to be at most 2%"
        share = f"{false['raised']} of {false['series']} series of {false['runs']} healthy runs"
        lines.append(f"false alarms: {share} [{false['low']:.4f}, {false['high']:.4f}], {verdict}")
        own = false["themselves"]
        between = "[{:.2f}, {:.2f}]".format(*own["interval"])
        lines.append(f"false alarms in the healthy runs themselves: {own['raised']} of {false['runs']} {between}")
    return lines


def report(quick: bool) -> Report:
    """Judges the table."""
    runs = read_all(RESULTS)
    figures = measure(runs, QUICK_SERIES if quick else SERIES)
    return Report(figures, COLUMNS, rows(figures), [*notes(figures), *caveats(runs)])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv, quick=f"{QUICK_SERIES} series instead of {SERIES}")


if __name__ == "__main__":
    raise SystemExit(main())
