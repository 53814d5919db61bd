"""The study on a real language model: does it learn, and what does its reasoning do meanwhile?

python -m benchmarks.studies.real_model --run PART ... [--seeds 0,1] [--runs-dir DIR] [--set KEY=VALUE ...]
python -m benchmarks.studies.real_model --keep DIR ...
python -m benchmarks.studies.real_model [--quick] [--json]

The model is SmolLM2-135M-Instruct (docs/real-models.md). The parts and their arms were fixed before the first run:

    part                  recipe               steps   arms                                             seeds
    countdown             smollm2-countdown    60      as it comes                                      0, 1
    frozenlake            smollm2-frozenlake   60      as it comes                                      0
    question              smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.03      0, 1, 2
    question-entropy      smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.001     0
    question-frozenlake   smollm2-frozenlake   60      no filter and top-p 0.9, entropy bonus 0.03      0

`--run` sweeps a part's cells, one run each, and goes on where it was interrupted. `--keep` condenses finished runs into
one small file each under `benchmarks/studies/results/real_model`, with ten reasonings of the first and the last step,
which `--json` prints. Without either the committed files are reported, `--quick` alike; nothing is run. First and last
are the first and the last measurement; the judge's figure is the share of true reasonings among those that state
anything. Under the table, the filter is compared with none: differences of the last figures, paired by seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.archive.reader import read_groups
from actors.archive.rows import from_table
from benchmarks.common import print_figures
from benchmarks.studies.kept import finished
from cluster.errors import UserError
from cluster.inspector.texts import Pieces
from cluster.inspector.trajectories import prompt_of, reasoning_of
from cluster.sweep.plan import Arm, make_plan, read_seeds
from cluster.sweep.table import t_interval, text

RESULTS = Path(__file__).parent / "results" / "real_model"
ENTROPY = "learner.objective.entropy_coefficient"
REASONINGS = 10


@dataclass(frozen=True)
class Part:
    """A sweep of the study. `tasks`: fixed validation tasks before and after."""

    recipe: str
    steps: int
    tasks: int
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]


def _filters(entropy: float) -> tuple[Arm, ...]:
    chosen: Mapping[str, Mapping[str, Any]] = {"none": {"filter.rule": "none"}, "top_p": {"filter.rule": "top_p"}}
    return tuple(Arm(f"{name}_ent{entropy:g}", {**rule, ENTROPY: entropy}) for name, rule in chosen.items())


AS_IT_COMES = (Arm("base", {}),)
PARTS = {
    "countdown": Part("smollm2-countdown", 60, 1024, AS_IT_COMES, (0, 1)),
    "frozenlake": Part("smollm2-frozenlake", 60, 512, AS_IT_COMES, (0,)),
    "question": Part("smollm2-countdown", 100, 512, _filters(0.03), (0, 1, 2)),
    "question-entropy": Part("smollm2-countdown", 100, 512, _filters(0.001), (0,)),
    "question-frozenlake": Part("smollm2-frozenlake", 60, 256, _filters(0.03), (0,)),
}
FIGURES = {
    "success": "success",
    "reward": "reward_mean",
    "entropy": "first_turn/conditional_entropy",
    "retrieval": "first_turn/retrieval_accuracy",
    "probe_mi": "probe/mi",
    "probe_mi_low": "probe/mi_low",
    "probe_mi_high": "probe/mi_high",
    "judge": "judge/right",
    "judge_names": "judge/names",
    "scored_step": "scorer/step",
    "probe_step": "probe/step",
    "format_validity": "format_validity",
    "length": "reasoning_length",
    "step_seconds": "seconds/step",
}
"""Figures of a step that are kept, by the keys of metrics.jsonl; those that a run lacks are left out. A scoring and a
reading of the probe are recorded with a later step than `scored_step` and `probe_step`, which they describe."""


def run_part(name: str, seeds: Sequence[int], runs_dir: str, words: Sequence[str]) -> int:
    """Sweeps a part; returns the sweep's exit code."""
    from cluster.sweep.cells import execute

    part = PARTS[name]
    overrides = [
        f"runs_dir={json.dumps(runs_dir)}",
        f"loop.steps={part.steps}",
        f"validation.tasks={part.tasks}",
        f"validation.every={part.steps}",
        *words,
    ]
    by_label = {arm.label: list(seeds or part.seeds) for arm in part.arms}
    return execute(make_plan(part.recipe, overrides, part.arms, by_label, name=f"real-{name}", parallel=1), 1)


def keep(folder: Path) -> Path:
    """Writes what the report needs of a finished run; returns the file."""
    run, summary = finished(folder)
    settings = run.settings()
    steps = run.steps()
    found = {
        "run": f"{folder.parent.name}/{folder.name}",
        "environment": summary["environment"],
        "filter": summary["filter"]["rule"],
        "entropy": settings[ENTROPY],
        "seed": settings["seed"],
        "steps": summary["steps"],
        "success": summary["success"],
        "probe": summary.get("probe"),
        "seconds": summary["seconds"],
        "rows": [_row(row) for row in run.metrics()],
        "reasonings": {str(step): reasonings(folder, step) for step in (steps[0], steps[-1])},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{folder.parent.name}-{folder.name}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")
    return file


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: row[key] for name, key in FIGURES.items() if row.get(key) is not None}
    return {"step": row["step"]} | {name: round(value, 4) for name, value in kept.items()}


def reasonings(folder: Path, step: int) -> list[dict[str, str]]:
    """The end of the prompt and the first reasoning of the first trajectories of a step, one a group at first."""
    data = (folder / "tokenizer.json").read_bytes()
    pieces = Pieces(data, str(folder / "tokenizer.json"))
    trajectories = [one for one in from_table(read_groups(folder, [step])) if one.turns]
    first = sorted(trajectories, key=lambda one: one.index)[:REASONINGS]
    return [
        {"prompt": pieces.text(prompt_of(one, 0))[-240:], "reasoning": pieces.text(reasoning_of(one, 0))}
        for one in first
    ]


COLUMNS = (
    *("run", "seed", "filter", "entropy", "steps", "success before", "after", "gain"),
    *("H(Z|X) first", "last", "judge first", "last", "probe MI first", "last"),
)
Kept = Mapping[str, Any]


def report(found: Sequence[Kept]) -> list[list[Any]]:
    """A row for each kept run."""
    rows = []
    for one in found:
        success, gain = one["success"], one["success"].get("gain")
        gained = f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]" if gain else "-"
        ends = [f"{success[end]['success']:.3f}" if success.get(end) else "-" for end in ("before", "after")]
        measured = [cell for of in MEASURED.values() for cell in _ends(of(one))]
        rows.append([one["run"], one["seed"], one["filter"], one["entropy"], one["steps"], *ends, gained, *measured])
    return rows


def _series(name: str) -> Callable[[Kept], list[float]]:
    return lambda one: [row[name] for row in one["rows"] if name in row]


def true_shares(one: Kept) -> list[float]:
    """At each scoring, the share of true reasonings among those that state anything; without scorings in which none
    does, and those of which only the share among all was kept."""
    return [row["judge"] / row["judge_names"] for row in one["rows"] if "judge" in row and row.get("judge_names")]


MEASURED: Mapping[str, Callable[[Kept], list[float]]] = {
    "H(Z|X)": _series("entropy"),
    "judge": true_shares,
    "probe MI": _series("probe_mi"),
}


def _ends(values: Sequence[float]) -> tuple[str, str]:
    return (f"{values[0]:.2f}", f"{values[-1]:.2f}") if values else ("-", "-")


def compared(found: Sequence[Kept]) -> list[str]:
    """A line for each environment, entropy bonus and figure that runs with top-p and without a filter have: top-p minus
    none, mean over seeds with its t-interval."""
    lines = []
    for environment, entropy, steps in dict.fromkeys(_setting(one) for one in found):
        alike = [one for one in found if _setting(one) == (environment, entropy, steps)]
        for name, of in {"success": _success_after, **MEASURED}.items():
            last = {(one["filter"], one["seed"]): of(one)[-1] for one in alike if of(one)}
            seeds = [seed for rule, seed in last if rule == "top_p" and ("none", seed) in last]
            if seeds:
                difference = text(t_interval([last["top_p", seed] - last["none", seed] for seed in seeds]), "+")
                where = f"{environment}, entropy bonus {entropy:g}, {steps} steps, seeds {seeds}"
                lines.append(f"{where}: {name}, top_p minus none {difference}")
    return lines


def _setting(one: Kept) -> tuple[str, float, int]:
    return one["environment"], one["entropy"], one["steps"]


def _success_after(one: Kept) -> list[float]:
    after = one["success"].get("after")
    return [after["success"]] if after else []


def main() -> int:
    """Runs one of the forms of the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", choices=tuple(PARTS), metavar="PART", help="sweep these parts")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="DIR", help="condense these finished runs")
    parser.add_argument("--seeds", help="run: other seeds than the study's")
    parser.add_argument("--runs-dir", default="runs", help="run: folder of the sweeps")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="run: further settings")
    parser.add_argument("--quick", action="store_true", help="report the committed figures, as without it")
    parser.add_argument("--json", action="store_true", help="report: one JSON object instead of the table")
    chosen = parser.parse_args()
    try:
        if chosen.run:
            seeds = read_seeds(chosen.seeds) if chosen.seeds else []
            return max(run_part(name, seeds, chosen.runs_dir, chosen.set) for name in chosen.run)
        for folder in chosen.keep or []:
            print(keep(folder))
    except (UserError, ValueError) as error:
        parser.error(str(error))
    if not chosen.keep:
        found = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
        notes = compared(found) if found else ["no run was kept yet"]
        print_figures({"benchmark": "real_model_study", "runs": found}, chosen.json, COLUMNS, report(found), notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
