"""Measures the alarm: false alarms on healthy runs, and delay and lead on collapsed runs.

python -m research.alarm [--healthy RUN ...] [--collapsed RUN ...] [--quick] [--json]

RUN is a run's folder, of which metrics.jsonl is read. From each healthy run, series of scorings are drawn by a
moving-block bootstrap (blocks of neighbouring scorings of one run). The alarm of squelch/kit/diagnosis/alarm.py,
with its fixed parameters, watches each series; the metric is the share of series in which it was raised, with Wilson's
95% interval. There are two such metrics. The first draws blocks of scorings; it can place the low start of a run that
learned after its high end, and so count the run's rise as a fall. The second draws blocks of the noise around the run's
trend (a running mean), which keeps the trend.

For each collapsed run the benchmark prints the onset (the first scoring from which MI-Seq-Est stays below half of the
run's best level), the alarm's delay after the onset in steps, and its lead over the reward: the steps from the alarm
until the success of training trajectories, a mean over five steps, stays below 80% of its best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser_of, print_metrics
from research.renoising import BLOCK, renoised, share
from squelch.kit.archive.reader import read_metrics
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.alarm import BASELINE, DependenceAlarm, Scored, score_of

ONSET_SHARE = 0.5
REWARD_SHARE = 0.8
SMOOTH = 5


@dataclass(frozen=True)
class Series:
    """One run: its scorings, and success by step."""

    name: str
    scorings: list[Scored]
    success: list[tuple[int, float]]


def read_series(run_dir: Path) -> Series:
    """Reads a run's folder; ValueError, which names it, if it holds fewer than twice BASELINE scorings."""
    lines = read_metrics(run_dir)
    scorings = [seen for line in lines if (seen := score_of(line)) is not None and math.isfinite(seen[1])]
    if len(scorings) < 2 * BASELINE:
        raise ValueError(
            f"{run_dir}: {len(scorings)} scorings with a first-turn estimate; judging needs {2 * BASELINE}. Is it the "
            "folder of a run with scorer.enabled, and long enough?"
        )
    success = [(line["step"], line["success"]) for line in lines if line.get("success") is not None and line["step"]]
    return Series(run_dir.name, scorings, success)


def resampled(series: Series, length: int, rng: np.random.Generator) -> list[Scored]:
    """`length` scorings, drawn in blocks of BLOCK neighbours that start anywhere in the run."""
    count, found = len(series.scorings), []
    while len(found) < length:
        start = int(rng.integers(max(1, count - BLOCK + 1)))
        found += series.scorings[start : start + BLOCK]
    return [(index, *scoring[1:]) for index, scoring in enumerate(found[:length])]


def around_trend(series: Series, rng: np.random.Generator) -> list[Scored]:
    """The run's scorings with the noise of their values resampled around the run's trend (`research.renoising`)."""
    drawn = renoised(np.array([scoring[1] for scoring in series.scorings]), rng).tolist()
    return [(scoring[0], value, *scoring[2:]) for scoring, value in zip(series.scorings, drawn, strict=True)]


def alarms(scorings: Sequence[Scored]) -> list[tuple[int, int | None]]:
    """(step at which it was raised, step at which it cleared or None) of each alarm."""
    alarm, found = DependenceAlarm(), []
    for scoring in scorings:
        if alarm.update(*scoring):
            found.append((scoring[0], None))
        elif found and found[-1][1] is None and not alarm.raised:
            found[-1] = (found[-1][0], scoring[0])
    return found


def false_alarms(runs: Sequence[Series], num_series: int, seed: int = 0, course: bool = False) -> dict[str, Any]:
    """The share of series, each as long as its run, in which the alarm is raised; `course`: only the noise is
    resampled."""
    rng, raised = np.random.default_rng(seed), list[bool]()
    for index in range(num_series):
        run = runs[index % len(runs)]
        drawn = around_trend(run, rng) if course else resampled(run, len(run.scorings), rng)
        raised.append(bool(alarms(drawn)))
    return {"runs": len(runs), **share(raised)}


def onset(series: Series) -> int | None:
    """Step of the first scoring from which MI-Seq-Est stays below half the best earlier mean of BASELINE scorings."""
    values = [scoring[1] for scoring in series.scorings]
    best, at = -math.inf, None
    for index, value in enumerate(values):
        if index >= BASELINE:
            best = max(best, sum(values[index - BASELINE : index]) / BASELINE)
        low = best > 0 and value < ONSET_SHARE * best
        at = (series.scorings[index][0] if at is None else at) if low else None
    return at


def reward_fall(series: Series) -> int | None:
    """Step from which the mean success over SMOOTH steps stays below REWARD_SHARE of its earlier best."""
    best, at = 0.0, None
    for index in range(SMOOTH, len(series.success) + 1):
        mean = sum(value for _, value in series.success[index - SMOOTH : index]) / SMOOTH
        best = max(best, mean)
        at = (series.success[index - 1][0] if at is None else at) if mean < REWARD_SHARE * best else None
    return at


def judged(series: Series) -> dict[str, Any]:
    """Onset, alarm, delay and lead of one run in steps, each None if it does not exist. The alarm of a collapse is the
    first that is still raised at the onset or is raised later; alarms that cleared before the onset are `early`."""
    began, fall, raised = onset(series), reward_fall(series), alarms(series.scorings)
    standing = [start for start, end in raised if began is None or end is None or end > began]
    alarm = standing[0] if standing else None
    return {
        "run": series.name,
        "onset": began,
        "alarm": alarm,
        "early": len(raised) - len(standing),
        "delay": None if began is None or alarm is None else alarm - began,
        "reward_fall": fall,
        "lead": None if fall is None or alarm is None else fall - alarm,
    }


def measure(healthy: Sequence[Series], collapsed: Sequence[Series], num_series: int) -> dict[str, Any]:
    """All metrics that are printed."""
    return {
        "false_alarms": false_alarms(healthy, num_series) if healthy else None,
        "false_alarms_on_course": false_alarms(healthy, num_series, course=True) if healthy else None,
        "healthy": [judged(series) for series in healthy],
        "collapsed": [judged(series) for series in collapsed],
    }


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """The lines under the table."""
    lines = list[str]()
    for key, kind in (("false_alarms", "blocks of scorings"), ("false_alarms_on_course", "noise around the course")):
        if found := metrics[key]:
            low, high = found["interval"]
            lines.append(
                f"false alarms, {kind}: {found['raised']} of {found['series']} series of {found['runs']} healthy runs, "
                f"{found['rate']:.3f} [{low:.3f}, {high:.3f}]"
            )
    if metrics["healthy"]:
        raised = sum(row["alarm"] is not None for row in metrics["healthy"])
        lines.append(f"alarms in the healthy runs themselves: {raised} of {len(metrics['healthy'])}")
    return lines


def main() -> None:
    """Prints one line for each collapsed run, and the rate of false alarms."""
    parser = parser_of(__doc__, "200 series instead of 1,000")
    parser.add_argument("--healthy", type=Path, nargs="*", default=[], metavar="RUN", help="folders of healthy runs")
    parser.add_argument(
        "--collapsed", type=Path, nargs="*", default=[], metavar="RUN", help="folders of collapsed runs"
    )
    args = parser.parse_args()
    if not (args.healthy or args.collapsed):
        parser.error("name the folders of runs: --healthy, --collapsed")
    try:
        healthy, collapsed = ([read_series(path) for path in paths] for paths in (args.healthy, args.collapsed))
    except (UserError, ValueError, OSError) as error:
        parser.error(str(error))
    metrics = measure(healthy, collapsed, 200 if args.quick else 1000)
    columns = ("run", "onset", "alarm", "early", "delay", "reward_fall", "lead")
    rows = [["-" if row[key] is None else row[key] for key in columns] for row in metrics["collapsed"]]
    print_metrics(metrics, args.json, columns, rows, notes(metrics))


if __name__ == "__main__":
    main()
