"""Do the findings stay silent in healthy runs, and do they name what was planted?

python -m research.findings_runs --run [--only CELL ...] [--dir FOLDER]    # runs what is not done
python -m research.findings_runs [--quick] [--json]

`--run` writes each finished cell to research/results/findings_runs/CELL.parquet, every line of its metrics; commit it.
The judge replays the findings over these lines, as a run follows them, with the thresholds of the present catalogue.
`plan.py` has the runs, which part of them tunes, and what is expected of each planted fault.

    healthy   no finding is critical in any run, and at most one of the twelve has a warning
    planted   an expected finding is a warning or critical within 20 steps, or 3 scorer steps
    cost      `seconds/findings` is at most 1% of the steps' time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research.cells import Study, run
from research.findings_runs.plan import FAULTS, HEALTHY, IN_SCORINGS, IN_STEPS, PLANTED, SEEDS, cells
from research.judging import Report, Running, judge
from research.kept import short
from research.tables import FOLDER, read
from squelch.cluster.runs.ending import EndCause, ending_of, is_complete
from squelch.cluster.runs.findings import FEWEST
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError
from squelch.kit.findings.catalogue import SEVERITIES, Severity, catalogue
from squelch.kit.findings.finder import Findings
from squelch.kit.findings.view import StepView
from squelch.kit.process.terminal import known

NAME = "findings_runs"
RESULTS = FOLDER / NAME
COMMON = ("recorder.report=false", "recorder.port=0", "loop.keep_checkpoints=1")
LINES, AT = "lines", "at"
"""The table of a run's lines of metrics, by their number, and its column with their steps: a step may have several."""
DROPPED = ("step", "time")
WITHOUT_END = (EndCause.NOTHING_COUNTS, EndCause.REFUSED_STEPS)
"""Ends that a planted fault brings about before the planned last step, although the run could go on."""
MOST_SHARE = 0.01
"""Of a step's time, for the findings."""


def study() -> Study:
    """The study with all of its cells."""
    return Study(NAME, COMMON, cells(), RESULTS, condensed, complete)


def complete(folder: Path) -> bool:
    """Whether a run has nothing left to do, or ended as its fault makes it end."""
    summary = RunFolder(folder).summary()
    ending = None if summary is None else ending_of(summary)
    return is_complete(summary) or (ending is not None and ending.cause in WITHOUT_END)


def condensed(folder: Path, **labels: Any) -> dict[str, Any]:
    """What is kept of a run: every number of its lines of metrics. UserError if it has not ended."""
    run = RunFolder(folder)
    summary = run.summary()
    if summary is None or not complete(folder):
        raise UserError(f"{folder}: the run has not finished; continue it with --run")
    lines, ending = run.metrics(), ending_of(summary)
    keys = sorted({key for line in lines for key in line if key not in DROPPED and not key.startswith("finding/")})
    columns = {key: [short(line.get(key)) for line in lines] for key in keys}
    return {
        "name": folder.name,
        **labels,
        "seed": run.settings()["seed"],
        "steps": summary["steps"],
        **({} if ending is None else {"ended": str(ending.cause)}),
        "tables": {LINES: {"step": [*range(len(lines))], AT: [line["step"] for line in lines], **columns}},
        "groups": {},
    }


def lines_of(content: Mapping[str, Any]) -> list[dict[str, float]]:
    """The lines of metrics of a kept run; what is not known is left out."""
    table = content["tables"][LINES]
    rows = (dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True))
    return [
        {key: value for key, value in row.items() if value is not None and key != AT} | {"step": int(row[AT])}
        for row in rows
    ]


@dataclass
class Stood:
    """A finding of a run. `began`: the step in which each severity was reached; `steps`: those in which it held."""

    name: str
    began: dict[Severity, int] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    @property
    def severity(self) -> Severity:
        """The worst that it reached."""
        return max(self.began, key=SEVERITIES.index)

    @property
    def warned(self) -> int | None:
        """The first step in which it was more than a notice."""
        return min((step for severity, step in self.began.items() if severity != "notice"), default=None)


def followed(content: Mapping[str, Any]) -> Iterator[tuple[int, Findings]]:
    """The findings after each line of a kept run, with its step. One that ended because nothing was learned is judged
    by the steps that it has."""
    findings, lines = Findings(), lines_of(content)
    for number, line in enumerate(lines, start=1):
        step = int(line["step"])
        if number == len(lines) and content.get("ended") == EndCause.NO_SIGNAL:
            findings.ends(max(FEWEST, step))
        findings.step(StepView(step, {key: value for key, value in line.items() if key != "step"}))
        yield step, findings


def stood(content: Mapping[str, Any]) -> tuple[list[Stood], set[str]]:
    """The findings of a kept run, in the order in which they began, and the names of those that it can show."""
    found, can = dict[str, Stood](), set[str]()
    for step, findings in followed(content):
        can.update(name for name in catalogue() if findings.level(name) is not None)
        for one in findings.open:
            own = found.setdefault(one.name, Stood(one.name))
            own.began.setdefault(one.severity, step)
            own.steps.add(step)
    return list(found.values()), can


def seen(contents: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[str], str]]:
    """By finding: the planted faults that it named in time, and in how many of the healthy runs that can show it it
    never began; empty where none can."""
    named, silent = defaultdict[str, list[str]](list), Counter[str]()
    able = Counter[str]()
    for content in contents:
        found, can = stood(content)
        if content["part"] == PLANTED:
            for name in set(FAULTS[content["arm"]].expected) & in_time(found, latest(lines_of(content))):
                named[name].append(content["arm"])
            continue
        able.update(can)
        silent.update(can - {one.name for one in found})
    counted = {name: f"{silent[name]} of {able[name]} healthy runs" if able[name] else "" for name in catalogue()}
    return {name: (sorted(named[name]), counted[name]) for name in catalogue()}


def in_time(found: Sequence[Stood], last: int) -> set[str]:
    """The findings that were more than a notice so early that a planted fault counts as found. `last`: as of
    `latest`."""
    return {one.name for one in found if one.warned is not None and one.warned <= last}


def latest(lines: Sequence[Mapping[str, float]]) -> int:
    """The last step in which a planted fault is found in time."""
    scorings = sorted({int(line["step"]) for line in lines if "scorer/step" in line})
    return max(IN_STEPS, *scorings[IN_SCORINGS - 1 : IN_SCORINGS], 0)


def share(lines: Sequence[Mapping[str, float]]) -> float:
    """The share of the steps' time that the findings took."""
    took, steps = (sum(line.get(f"seconds/{key}", 0.0) for line in lines) for key in ("findings", "step"))
    return took / steps if steps else 0.0


COLUMNS = ("run", "steps", "finding", "severity", "from step", "steps that it held", "verdict")


def judged(content: Mapping[str, Any]) -> dict[str, Any]:
    """What was found in a run, and the verdict: of a planted fault, whether an expected finding came in time; of a
    healthy run, whether none is more than a notice."""
    lines = lines_of(content)
    (found, _), last = stood(content), latest(lines)
    warned = {one.name: one.warned for one in found if one.warned is not None}
    if content["part"] == PLANTED:
        expected = FAULTS[content["arm"]].expected
        at = min((step for name, step in warned.items() if name in expected), default=None)
        holds = not in_time(found, last).isdisjoint(expected)
        said = f"{' or '.join(expected)}, step {known(at, 'd')} of at most {last}"
        verdict = f"{'found' if holds else 'missed'}: {said}"
    else:
        holds = not warned
        verdict = "silent" if holds else f"warns: {', '.join(warned)}"
    return {
        "run": content["name"],
        "part": content["part"],
        "steps": content["steps"],
        "ended": content.get("ended"),
        "findings": [
            {"name": one.name, "severity": one.severity, "began": one.began, "held": len(one.steps)} for one in found
        ],
        "critical": sum(one.severity == "critical" for one in found),
        "share": share(lines),
        "holds": holds,
        "verdict": verdict,
    }


def rows(found: Mapping[str, Any]) -> list[list[Any]]:
    """The printed rows of a run: its verdict, and a row for each finding."""
    first = [found["run"], found["steps"], "", "", "", "", found["verdict"]]
    each = [
        ["", "", one["name"], one["severity"], one["began"][one["severity"]], one["held"], ""]
        for one in found["findings"]
    ]
    return [first, *each]


def report(quick: bool = False) -> Report:
    """Judges the runs that are kept."""
    found = [judged(content) for content in read(RESULTS)]
    healthy, planted = (
        [one for one in found if (one["part"] == PLANTED) is is_planted] for is_planted in (False, True)
    )
    cost = max((one["share"] for one in found), default=None)
    notes = [
        f"healthy: {len(healthy)} of {len(HEALTHY) * len(SEEDS)} runs, {sum(one['critical'] for one in healthy)} "
        f"critical findings, {sum(not one['holds'] for one in healthy)} runs with a warning (at most 1)",
        f"planted: {sum(one['holds'] for one in planted)} of {len(planted)} found in time, of {len(FAULTS)} faults",
        f"the findings took at most {known(cost, '.3%')} of a run's steps (at most {MOST_SHARE:.0%})",
    ]
    return Report(
        {"benchmark": "findings_runs", "runs": found}, COLUMNS, [row for one in found for row in rows(one)], notes
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    own = {cell.name: cell for cell in cells()}
    running = Running(
        tuple(own), "findings-runs", lambda folder, names: run(study(), [own[one] for one in names], folder)
    )
    return judge(__doc__, report, argv, running=running)
