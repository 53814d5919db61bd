"""The collapse study: the effect of filter, entropy bonus and KL on MI, H(Z|X), success, the alarm and the judge.

python -m research.collapse --run ENV ... [--seeds 0,1,2] [--other-seeds 0] [--parallel N] [--runs-dir DIR]
python -m research.collapse --report DIR ... [--out FOLDER] [--unfinished] [--json]
python -m research.collapse --redraw FOLDER
python -m research.collapse --quick [--json]

`--run` sweeps the arms on sokoban and frozenlake; the sweep can be resumed (docs/guide/sweep.md), and a cell takes
about five minutes on two idle cores. The base has entropy bonus 0.001 and KL 0.001. Each arm changes one setting: the
filter (none, top_p 0.9, top_k 0.25) or, with and without top_p, the entropy bonus (0.03, 0.1) or the KL (0.1). The arms
of MAIN run with `--seeds`, the others with `--other-seeds`. All arms were fixed before the first run; do not tune an
arm until a seed shows an effect.

`--report` reads every run at or below the folders. It prints means with 95% t-intervals over seeds, differences from
the same arm without a filter paired by seed. `--out` writes them as collapse.md, the figures over steps as
collapse.csv, and a picture of these for each environment. `--redraw` draws the pictures again from collapse.csv.
`--quick` shows the report on synthetic runs, and says so.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.common import markdown_table, print_figures
from research import collapse_figure
from research.collapse_runs import COLUMNS, ENDS, Run, arm_rows, by_arm, find_runs, missing
from squelch.cluster.errors import UserError
from squelch.cluster.plots.style import standalone
from squelch.cluster.sweep.plan import Arm, make_plan, read_seeds
from squelch.cluster.sweep.table import INTERVAL, text

ENTROPY, KL = "learner.objective.entropy_coefficient", "learner.objective.kl.coefficient"
FILTERS: Mapping[str, Mapping[str, Any]] = {
    "none": {"filter.rule": "none"},
    "top_p": {"filter.rule": "top_p", "filter.rho": 0.9},
    "top_k": {"filter.rule": "top_k", "filter.rho": 0.25},
}
REGULARISERS: Mapping[str, Mapping[str, Any]] = {
    "ent0.001": {ENTROPY: 0.001, KL: 0.001},
    "ent0.03": {ENTROPY: 0.03, KL: 0.001},
    "ent0.1": {ENTROPY: 0.1, KL: 0.001},
    "kl0.1": {ENTROPY: 0.001, KL: 0.1},
}
MAIN = ("none_ent0.001", "top_p_ent0.001", "none_ent0.1", "top_p_ent0.1")
"""Arms that test the paper's claim: regularisers that ignore the input cause templates; the filter prevents them."""
DATA = "collapse.csv"
COMMON = ["scorer.every=3", "filter.include_zero=false"]


def study_arms() -> list[Arm]:
    """Every arm; top_k only with the base's regularisers."""
    return [
        Arm(f"{rule}_{name}", {**chosen, **strengths})
        for name, strengths in REGULARISERS.items()
        for rule, chosen in FILTERS.items()
        if rule != "top_k" or name == "ent0.001"
    ]


def run_study(environments: Sequence[str], seeds: list[int], others: list[int], parallel: int, runs_dir: str) -> int:
    """Sweeps the environments one after another; returns the largest exit code. An interrupted sweep ends the study."""
    from squelch.cluster.sweep.cells import execute

    arms = study_arms()
    by_label = {arm.label: seeds if arm.label in MAIN else others for arm in arms}
    overrides = [f"runs_dir={json.dumps(runs_dir)}", *COMMON]
    plans = [make_plan(e, overrides, arms, by_label, name=f"collapse-{e}", parallel=parallel) for e in environments]
    code = 0
    for plan in plans:
        code = max(code, execute(plan, parallel))
        if code > 2:
            break
    return code


def report(runs: Sequence[Run], unfinished: bool) -> dict[str, Any]:
    """All figures of the report."""
    chosen = [run for run in runs if run.finished or unfinished]
    cut = [f"{run.folder} (step {run.steps} of {run.asked_steps})" for run in runs if not run.finished]
    notes = missing(chosen) if chosen else []
    if cut:
        notes.append(f"not finished, {'read as far as they went' if unfinished else 'left out'}: {', '.join(cut)}")
    return {"interval": INTERVAL, "runs": len(chosen), "arms": arm_rows(by_arm(chosen)), "notes": notes}


def cells(row: Mapping[str, Any]) -> list[str]:
    """The printed cells of one row."""
    figures = [text(row["figures"][name], "+" if "change" in name or name == "gain" else "") for name in COLUMNS]
    less = [text(row["minus_no_filter"][name], "+") for name in ("success", "mi_last")]
    return [row["environment"], row["arm"], ",".join(map(str, row["seeds"])), str(row["steps"]), *figures, *less]


HEAD = ("environment", "arm", "seeds", "steps", *COLUMNS.values(), "success - no filter", "MI last - no filter")
LEGEND = (
    f"Each cell is a mean over seeds with its [{INTERVAL}]. One seed gives no interval, and two seeds give a wide one. "
    f"first, last: mean of the run's first and last {ENDS} scorings of the first turn. judge: share of reasonings that "
    "name true coordinates. judge ~ MI: rank correlation of the judge and MI over a run. alarm: share of runs that "
    "ever raised the alarm. - no filter: difference from the same arm without a filter, paired by seed. "
    "`-`: not recorded."
)


def markdown(figures: Mapping[str, Any]) -> str:
    """The text of collapse.md."""
    lines = [
        "# The collapse study",
        "",
        "`python -m research.collapse --report DIR --out docs/research` generates this page from its run folders,",
        "which `--run` makes; they are too large to be kept here. Do not edit it. [results.md](results.md)",
        "discusses the results.",
        "",
    ]
    if figures["made_up"]:
        lines += ["**These runs are made up.**", ""]
    environments = dict.fromkeys(row["environment"] for row in figures["arms"])
    lines += [line for name in environments for line in (f"![{name} over steps]({picture_of(name)})", "")]
    lines += ["The data of the pictures is in [collapse.csv](collapse.csv).", ""]
    lines += markdown_table(HEAD, map(cells, figures["arms"]))
    return "\n".join([*lines, "", LEGEND, "", *(f"- {note}" for note in figures["notes"])]).rstrip() + "\n"


def write_made_up(folder: Path) -> None:
    """Writes synthetic runs of three seeds with and without a filter; without it MI decays from the middle on."""
    for rule in ("none", "top_p"):
        for seed in range(3):
            path = folder / f"made-up-{rule}-{seed}"
            path.mkdir(parents=True)
            config = {
                "seed": seed,
                "environment": {"name": "MadeUp"},
                "loop": {"steps": 60},
                "filter": {"rule": rule, "rho": 0.9},
                "learner": {"objective": {"entropy_coefficient": 0.1, "kl": {"coefficient": 0.001}}},
            }
            (path / "config.yaml").write_text(yaml.safe_dump(config))
            lines = _made_up_lines(rule == "none", np.random.default_rng(seed))
            (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _made_up_lines(collapses: bool, rng: np.random.Generator) -> list[dict[str, float]]:
    lines = []
    for step in range(0, 61, 3):
        left = math.exp(-max(0, step - 30) / 10) if collapses else 1.0
        noise = 0.01 * rng.normal(size=3)
        lines.append(
            {
                "step": step,
                "scorer/step": step,
                "first_turn/mi_est": 0.12 * left + noise[0],
                "first_turn/conditional_entropy": 0.8 + noise[1],
                "judge/right": 0.6 * left + noise[2],
                "alarm/raised": float(left < 0.6),
                "validation/success": 0.4 + 0.002 * step,
                "validation/step": step,
            }
        )
    return lines


def picture_of(environment: str) -> str:
    """Name of an environment's picture."""
    return f"collapse-{environment.lower()}.svg"


def redraw(folder: Path) -> None:
    """Draws the pictures from the folder's collapse.csv."""
    for environment, svg in collapse_figure.figures(collapse_figure.read_rows((folder / DATA).read_text())).items():
        (folder / picture_of(environment)).write_text(standalone(svg))


def show(folders: Sequence[Path], args: argparse.Namespace, made_up: bool) -> None:
    """Prints the report, and writes it into the folder of `--out`."""
    runs = find_runs(folders)
    figures = report(runs, args.unfinished) | {"made_up": made_up}
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "collapse.md").write_text(markdown(figures))
        shown = [run for run in runs if run.finished or args.unfinished]
        (args.out / DATA).write_text(collapse_figure.csv_of(collapse_figure.rows(by_arm(shown))))
        redraw(args.out)
    notes = [LEGEND, *figures["notes"], *(["these runs are made up; give --report DIR"] if made_up else [])]
    print_figures(figures, args.json, [h.replace("\\", "") for h in HEAD], [cells(r) for r in figures["arms"]], notes)


def main() -> int:
    """Runs one of the three forms of the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--run", nargs="+", choices=("sokoban", "frozenlake"), metavar="ENV", help="sweep the arms")
    form.add_argument("--report", nargs="+", type=Path, metavar="DIR", help="folders with runs at or below them")
    form.add_argument("--redraw", type=Path, metavar="FOLDER", help="draw the pictures from FOLDER/collapse.csv again")
    form.add_argument("--quick", action="store_true", help="the report on synthetic runs, in seconds")
    parser.add_argument("--json", action="store_true", help="report: one JSON object instead of the table")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="report: write collapse.md and its pictures there")
    parser.add_argument("--unfinished", action="store_true", help="report: also read runs that have not finished")
    parser.add_argument("--seeds", help="run: seeds of the main arms (default: 0,1,2)")
    parser.add_argument("--other-seeds", help="run: seeds of the other arms (default: 0)")
    parser.add_argument("--parallel", type=int, help="run: number of cells that run at once (default: 1)")
    parser.add_argument("--runs-dir", help="run: folder of the sweeps (default: runs)")
    args = parser.parse_args()
    of_run = (args.seeds, args.other_seeds, args.parallel, args.runs_dir)
    if not args.run and any(value is not None for value in of_run):
        parser.error("--seeds, --other-seeds, --parallel and --runs-dir go with --run")
    if args.run and (args.json or args.out or args.unfinished):
        parser.error("--json, --out and --unfinished go with --report and --quick")
    if args.parallel is not None and args.parallel < 1:
        parser.error("--parallel: at least 1")
    try:
        if args.run:
            seeds, others = read_seeds(args.seeds or "0,1,2"), read_seeds(args.other_seeds or "0")
            return run_study(args.run, seeds, others, args.parallel or 1, args.runs_dir or "runs")
        if args.redraw:
            redraw(args.redraw)
            return 0
        with tempfile.TemporaryDirectory() as scratch:
            if args.quick:
                write_made_up(Path(scratch))
            show([Path(scratch)] if args.quick else args.report, args, args.quick)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
