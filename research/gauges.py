"""Does a gauge tell whether the action uses the reasoning? Policies whose answer is known by intervention.

python -m research.gauges --list
python -m research.gauges --run [--only WORD ...] [--minutes N] [--runs-dir DIR]
python -m research.gauges [--quick] [--json]

Everything here was fixed before the first run. `--run` adds each finished cell to research/results/gauges.parquet;
commit it.

    outcome    follow = P(donor's first action | donor's reasoning) - P(the same | a second own one), per task, paired,
               first actions alone (`squelch eval --interventions`, 512 tasks); a policy with fewer than 200 counted
               tasks is left out and named
    policies   a run's last checkpoint, FrozenLake, 60 steps, five warm-ups (seeds 30 to 34), each with the start, the
               recipe as it is (filter), no filter (none), an entropy bonus of 0.03 (bonus), and `pays` mixed or left
               (left pays on half of the lakes, or on all), these three without the filter: six policies a warm-up
    gauges     MI, I_hard, D / surprise of the last evaluation of the probe; retrieval of the last scoring; entropy and
               length of the last ten steps. Of the start: the first evaluation, the first scoring, the first step
    tests      Spearman's correlation of a gauge with follow within each warm-up over its policies, 0 where the gauge
               does not differ; mean and 95% t-interval over the five; so are differences of two gauges. The same
               without the two that pay left
    decided    a gauge whose interval lies above 0 tells. MI does not tell if the upper end of its interval is below
               0.5. If no gauge tells without the two that pay left, only gross decoupling is seen
    upper      D is scored on the same splice as the outcome is: it is an upper bound, and in no comparison
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research import tables
from research.cells import Study, StudyCell, command
from research.judging import Report, interval
from research.kept import SHARE, short
from research.tables import FOLDER
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.sweep.plan import is_finished
from squelch.cluster.sweep.table import text
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.grounding import spearman
from squelch.kit.process.terminal import known

RESULTS = FOLDER / "gauges.parquet"
RECIPE, STEPS, SEEDS, STEP_S, ROOM = "frozenlake", 60, range(30, 35), 4.0, 20.0
COMMON = ("recorder.report=false", "recorder.port=0", "scorer.every=10", "scorer.probe.every=30", "validation.every=30")
NONE = {"filter.rule": "none"}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "filter": {},
    "none": NONE,
    "bonus": {**NONE, "learner.objective.entropy_coefficient": 0.03},
    "mixed": {**NONE, "environment.options.pays": "mixed"},
    "left": {**NONE, "environment.options.pays": "left"},
}
START, PAY_LEFT = "start", ("mixed", "left")
FEWEST, TELLS_NOT, EDGE = 200, 0.5, 10
PROBED = {"MI": "probe/mi", "I_hard": "probe/hard/mi", "D / surprise": SHARE}
SCORED = {"retrieval": "first_turn/retrieval_accuracy"}
STEPPED = {"entropy": "rollout_entropy", "length": "reasoning_length"}
GAUGES = (*PROBED, *SCORED, *STEPPED)
UPPER = "D / surprise"


def every_cell() -> Iterator[StudyCell]:
    """The cells, warm-up by warm-up."""
    for seed in SEEDS:
        for arm, settings in ARMS.items():
            yield StudyCell("gauges", RECIPE, arm, {**settings, "model.tiny_seed": seed}, seed, STEPS, STEP_S, ROOM)


def study() -> Study:
    """The study with all of its cells."""
    return Study("gauges", COMMON, [*every_cell()], RESULTS, condensed)


def condensed(folder: Path, **labels: Any) -> dict[str, Any]:
    """What is kept of a run: the gauges and the outcome of its last checkpoint; of the run without a filter, also those
    of the start. UserError if it has not finished, or its checkpoint cannot be evaluated."""
    run = RunFolder(folder)
    if not is_finished(folder):
        raise UserError(f"{folder}: the run has not finished; continue it with --run")
    lines, names = run.metrics(), {labels["arm"]: "last"} | ({START: "initial"} if labels["arm"] == "none" else {})
    outcomes = followed(folder, [*names.values()])
    found = {
        name: {"gauges": gauges_of(lines, last=checkpoint == "last"), "follow": outcome}
        for (name, checkpoint), outcome in zip(names.items(), outcomes, strict=True)
    }
    steps = {"seed": run.settings()["seed"], "steps": STEPS}
    return {"name": folder.name, **labels, **steps, "policies": found, "tables": {}, "groups": {}}


def gauges_of(lines: Sequence[Mapping[str, Any]], last: bool) -> dict[str, float | None]:
    """Every gauge at the end of a run, or at its start."""
    found = {}
    for name, key in {**PROBED, **SCORED}.items():
        values = [line[key] for line in lines if line.get(key) is not None]
        found[name] = short(values[-1 if last else 0]) if values else None
    steps = [line for line in lines if line["step"] > 0]
    for name, key in STEPPED.items():
        values = [line[key] for line in (steps[-EDGE:] if last else steps[:1]) if line.get(key) is not None]
        found[name] = short(math.fsum(values) / len(values)) if values else None
    return found


def followed(folder: Path, checkpoints: Sequence[str]) -> list[dict[str, Any]]:
    """The outcome of each checkpoint, by the command. UserError with its words if it fails."""
    chosen = [word for one in checkpoints for word in ("--checkpoint", one)]
    words = ["-m", "squelch.cluster.cli", "eval", str(folder), *chosen, "--interventions", "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{folder}: squelch eval {' '.join(chosen)} failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return [outcome(one) for one in found.get("checkpoints", [found])]


def outcome(found: Mapping[str, Any]) -> dict[str, Any]:
    """Tasks that count and follow with its interval, of the command's object."""
    (effect,) = found["interventions"].values()
    return {"tasks": effect["tasks"], **{end: short(effect["follow"][end]) for end in ("value", "low", "high")}}


Policy = Mapping[str, Any]
"""Its gauges, and its outcome (`follow`)."""


def policies(contents: Sequence[Mapping[str, Any]]) -> tuple[dict[int, dict[str, Policy]], list[str]]:
    """By warm-up, the policies that count, and the names of those that are left out."""
    found, left_out = dict[int, dict[str, Policy]](), list[str]()
    for content in contents:
        for name, policy in content["policies"].items():
            if policy["follow"]["tasks"] < FEWEST:
                left_out.append(f"{name} of seed {content['seed']} ({policy['follow']['tasks']} tasks)")
            else:
                found.setdefault(content["seed"], {})[name] = policy
    return found, left_out


def correlation(gauge: str, own: Mapping[str, Policy]) -> float | None:
    """Spearman's correlation of a gauge with the outcome over the policies of a warm-up; None if one lacks it or there
    are fewer than three."""
    pairs = [(policy["gauges"].get(gauge), policy["follow"]["value"]) for policy in own.values()]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(both) < len(pairs) or len(both) < 3:
        return None
    found = spearman([a for a, _ in both], [b for _, b in both])
    return found if math.isfinite(found) else 0.0


def table(found: Mapping[int, Mapping[str, Policy]], without: Sequence[str] = ()) -> dict[str, list[float | None]]:
    """By gauge, its correlation in every warm-up."""
    kept = [{name: one for name, one in own.items() if name not in without} for own in found.values()]
    return {gauge: [correlation(gauge, own) for own in kept] for gauge in GAUGES}


def tells(gauge: str, found: Mapping[str, Any]) -> str:
    """Whether a gauge tells, by the interval of its correlations, once every warm-up is there."""
    if found["n"] < len(SEEDS):
        return f"{found['n']} of {len(SEEDS)} warm-ups"
    not_mi = gauge == "MI" and found["high"] < TELLS_NOT
    said = "tells" if found["low"] > 0 else "does not tell" if not_mi else "undecided"
    return f"{said} (upper bound)" if gauge == UPPER else said


COLUMNS = ("gauge", "all policies", "", "without those that pay left", "")


def report(quick: bool = False) -> Report:
    """The correlations and what they decide."""
    contents = tables.read(RESULTS)
    found, left_out = policies(contents)
    whole, rest = table(found), table(found, PAY_LEFT)
    rows, metrics = list[list[str]](), dict[str, Any]()
    for gauge in GAUGES:
        both = [interval(one[gauge]) for one in (whole, rest)]
        said = [tells(gauge, one) for one in both]
        rows.append([gauge, *(cell for one, word in zip(both, said, strict=True) for cell in (text(one, "+"), word))])
        metrics[gauge] = {"all": whole[gauge], "without": rest[gauge], "verdicts": said}
    contest = [gauge for gauge in GAUGES if gauge not in (UPPER, "MI")]
    notes = [f"MI minus {gauge}: {_minus(whole['MI'], whole[gauge])}" for gauge in contest]
    notes.append(f"{len(contents)} of {len(study().cells)} runs; left out: {', '.join(left_out) or 'none'}")
    for seed, own in found.items():
        each = ", ".join(f"{name} {known(one['follow']['value'], '+.3f')}" for name, one in own.items())
        notes.append(f"follow, seed {seed}: {each}")
    return Report({"benchmark": "gauges", "runs": len(contents), "gauges": metrics}, COLUMNS, rows, notes)


def _minus(one: Sequence[float | None], other: Sequence[float | None]) -> str:
    pairs = zip(one, other, strict=True)
    return text(interval([a - b for a, b in pairs if a is not None and b is not None]), "+")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, study, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
