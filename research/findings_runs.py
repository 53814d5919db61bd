"""Do the findings stay silent in healthy runs, and do they name what was planted?

python -m research.findings_runs [--quick] [--json]

The 20 runs are done; research/results/findings_runs/CELL.parquet has every line of a run's metrics and what it changed
of its recipe. All was fixed before the first run, and thresholds were chosen by the runs of the part `tune` alone. The
findings are replayed over these lines, as a run follows them, with the thresholds of the present catalogue.

    healthy   recipes as they are shipped, three seeds each; `prompts` (SmolLM2) with fewer and smaller steps. No
              finding is critical in any run, and at most one of the twelve has a warning
    planted   a recipe with one fault from its first step on. An expected finding is a warning or critical within 20
              steps, or 3 scorer steps. Where a fault leaves nothing to learn the filter was off, without which the run
              would have ended after five steps (`filter.no_signal_limit`)
    cost      `seconds/findings` is at most 1% of the steps' time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from research.judging import Report, judge
from research.tables import FOLDER, read
from squelch.cluster.runs.ending import EndCause
from squelch.cluster.runs.findings import FEWEST
from squelch.kit.findings.catalogue import SEVERITIES, Severity, catalogue
from squelch.kit.findings.finder import Findings
from squelch.kit.findings.view import StepView
from squelch.kit.process.terminal import known

RESULTS = FOLDER / "findings_runs"
LINES, AT = "lines", "at"
"""The table of a run's lines of metrics, by their number, and its column with their steps: a step may have several."""
MOST_SHARE = 0.01
"""Of a step's time, for the findings."""
PLANTED, HEALTHY_RUNS = "planted", 12
EXPECTED: Mapping[str, Sequence[str]] = {
    "form": ("reward_hacked",),
    "cut": ("turns_cut",),
    "agents": ("trajectories_fail",),
    "verifier": ("reward_constant", "none_solved"),
    "entropy": ("entropy_explodes",),
    "rate": ("updates_clipped", "validation_falls", "success_collapsed"),
    "stale": ("groups_stale",),
    "penalty": ("actions_fall",),
}
"""By planted fault the findings that name it, of which one must be a warning or critical in time. A reward for the
form; turns that the limit of tokens cuts; agents that fail; a verifier that is never content; an entropy bonus that
outweighs the reward; 30 times the learning rate; groups of weights from 16 steps ago, of a policy that moves fast; and
a penalty for each action that the division by a group's deviation makes as large as success
(docs/research/findings.md)."""
IN_STEPS, IN_SCORINGS = 20, 3
"""A planted fault is found in time within so many steps, or so many scorings."""


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
            for name in set(EXPECTED[content["arm"]]) & in_time(found, latest(lines_of(content))):
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
        expected = EXPECTED[content["arm"]]
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
        f"healthy: {len(healthy)} of {HEALTHY_RUNS} runs, {sum(one['critical'] for one in healthy)} "
        f"critical findings, {sum(not one['holds'] for one in healthy)} runs with a warning (at most 1)",
        f"planted: {sum(one['holds'] for one in planted)} of {len(planted)} found in time, of {len(EXPECTED)} faults",
        f"the findings took at most {known(cost, '.3%')} of a run's steps (at most {MOST_SHARE:.0%})",
    ]
    return Report(
        {"benchmark": "findings_runs", "runs": found}, COLUMNS, [row for one in found for row in rows(one)], notes
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
