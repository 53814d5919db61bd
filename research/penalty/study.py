"""Is it the penalty, does one divisor do what the filter does, and do regularisers harm? The runs and their verdicts.

python -m research.penalty --list
python -m research.penalty --run [--only WORD ...] [--minutes N] [--runs-dir DIR]
python -m research.penalty [--quick | --write] [--json]

`--run` adds each finished cell to research/results/penalty.parquet; commit it. `--write` writes
docs/research/penalty.md. `plan.py` has the questions, the arms, what decides, and the order, all fixed before the first
run. A seed's warm-up is built when its first cell is run; the arms of a seed are run on one machine, since another may
build other weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import markdown_table
from research import tables
from research.cells import Study, StudyCell, command, failures_of
from research.judging import PAGES, Report, template
from research.kept import ACTIONS, DEPENDENCE, SHARE, SUCCESS, SURPRISE, Kept, caveats, read_all, short
from research.penalty.judged import (
    BONUS_WEIGHT,
    MI,
    NOISE,
    VALIDITY,
    Verdict,
    arm_means,
    by_arm,
    changed_start,
    judged,
    shown,
)
from research.penalty.plan import COMMON, FREE, RECIPE, every_cell
from research.tables import FOLDER
from squelch.actors.process.folders import file_digest
from squelch.cluster.config import load
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.sweep.plan import is_finished
from squelch.cluster.sweep.table import text
from squelch.envs.mixture import EnvironmentEntry, Mixture
from squelch.kit.archive.reader import stream_groups
from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import known, say

NAME = "penalty"
PAGE, RESULTS = PAGES / f"{NAME}.md", FOLDER / f"{NAME}.parquet"
WEIGHTS = "model.safetensors"
STEPS = ("success", "reward_mean", ACTIONS, VALIDITY, "rollout_entropy", "reasoning_length")
FILTERED = ("kept_fraction", "kept_mass", "zero_variance_groups", "dropped_with_variance", "learner/grad_norm")
PROBE = (MI, "probe/mi_standard_error", NOISE, DEPENDENCE, SURPRISE, SHARE)
READ: Mapping[str, tuple[Sequence[str], str]] = {
    "validated": ((SUCCESS,), "validation/step"),
    "probe": (PROBE, "probe/step"),
    "steps": ((*STEPS, *FILTERED), "step"),
}
"""The tables that are kept: their metrics, and the one that names the step which they describe."""


def study() -> Study:
    """The study with all of its cells."""
    return Study(NAME, COMMON, [*every_cell()], RESULTS, condensed, ready=warmed_up)


def warmed_up(cells: Sequence[StudyCell]) -> None:
    """Builds the warm-ups of the cells' seeds.

    Raises:
        UserError: runs of a seed are there that began with other weights.
    """
    from squelch.learner.warmup.tiny import build_tiny  # both import torch
    from squelch.learner.warmup.tiny_recipe import recipe_for, recipe_of

    mixture = played()
    recipe = recipe_of(mixture, recipe_for(mixture.entries[0].environment.name).tokens)
    begun = {content["seed"]: content["warm_up"] for content in tables.read(RESULTS)}
    for folder, seed in {str(cell.settings["model.path"]): cell.seed for cell in cells}.items():
        say(f"the warm-up of seed {seed}: {folder}")
        build_tiny(folder, mixture, seed, recipe)
        if begun.get(seed, own := file_digest(Path(folder) / WEIGHTS)) != own:
            raise UserError(
                f"{folder}: the runs of seed {seed} in {RESULTS.name} began with other weights ({begun[seed]}, not "
                f"{own}); run all arms of a seed on one machine, or leave this seed out with --only"
            )


def played() -> Mixture:
    """The environments whose demonstrations a warm-up learns: both action rewards, which differ in the rewards that are
    shown alone, so that its words are those of all arms."""
    recipes = {"penalty": load(RECIPE, []), "free": load(RECIPE, [f"{key}={value}" for key, value in FREE.items()])}
    entries = (EnvironmentEntry(label=label, **one.environment.model_dump()) for label, one in recipes.items())
    return Mixture.several([*entries])


def condensed(folder: Path, **labels: Any) -> dict[str, Any]:
    """What is kept of a run. UserError if it has not finished."""
    run = RunFolder(folder)
    summary, settings, lines = run.summary(), run.settings(), run.metrics()
    if summary is None or not is_finished(folder):
        raise UserError(f"{folder}: the run has not finished; continue it with --run")
    found = {name: table_of(lines, *how) for name, how in READ.items()}
    if settings["filter.target"] == "regulariser":
        found["bonus"] = bonus_weights(folder)
    return {
        "name": folder.name,
        **labels,
        "seed": settings["seed"],
        "steps": summary["steps"],
        "tables": {name: table for name, table in found.items() if table["step"]},
        "groups": {},
        "warm_up": file_digest(Path(settings["model.path"]) / WEIGHTS),
        "began": next(event["checksum"] for event in run.events() if event["name"] == "weights"),
    }


def table_of(lines: Sequence[Mapping[str, Any]], keys: Sequence[str], step: str) -> dict[str, list[Any]]:
    """The metrics by the step that they describe. A line repeats no evaluation: only the first with a step counts."""
    rows = dict[int, Mapping[str, Any]]()
    for line in lines:
        at = line.get(step)
        if at is not None and any(line.get(key) is not None for key in keys):
            rows.setdefault(int(at), line)
    ordered = sorted(rows)
    return {"step": [*ordered], **{key: [short(rows[at].get(key)) for at in ordered] for key in keys}}


def bonus_weights(folder: Path) -> dict[str, list[Any]]:
    """By step, the summed weight of the entropy bonus under `sequence_mean` and `filter.target=regulariser`: the share
    of the trajectories that are trained on whose group the filter keeps. Failed trajectories and refused groups are in
    no loss."""
    kept, trained = defaultdict[int, int](int), defaultdict[int, int](int)
    for table in stream_groups(folder, columns=("step", "decision", "failure_cause")):
        for row in table.to_pylist():
            if row["failure_cause"] is None and row["decision"] in ("kept", "dropped"):
                trained[row["step"]] += 1
                kept[row["step"]] += row["decision"] == "kept"
    steps = sorted(trained)
    return {"step": [*steps], BONUS_WEIGHT: [short(kept[step] / trained[step]) for step in steps]}


COLUMNS = ("question", "verdict", "difference", "95%, and each seed", "90%")


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A row for each verdict, and one for each of its differences."""
    rows = list[list[str]]()
    for one in verdicts:
        rows.append([one.question, one.says, "", "", ""])
        rows += [["", "", found.says, shown(found), text(found.over_seeds(0.9), "+")] for found in one.differences]
    return rows


def notes_of(runs: Sequence[Kept]) -> list[str]:
    """What the runs are: how many, at which commit, which began or ended otherwise, and which were repeated."""
    notes = [f"{len(runs)} of {len(study().cells)} runs", *caveats(runs)]
    if left_out := changed_start(by_arm(runs)):
        notes.append(f"seeds whose runs began with other weights, in no comparison: {', '.join(map(str, left_out))}")
    return [*notes, f"failed attempts, which were repeated: {len(failures_of(study()))}"]


def arm_rows(means: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row for each arm that has runs."""
    return [[f"`{arm}`", *(known(value, ".3g") for value in own.values())] for arm, own in means.items()]


def markdown(runs: Sequence[Kept]) -> str:
    """The text of docs/research/penalty.md."""
    verdicts, means = judged(runs), arm_means(by_arm(runs))
    measured = [*next(iter(means.values()))] if means else []
    return template(NAME).format(
        verdicts="\n".join(markdown_table(COLUMNS, verdict_rows(verdicts))),
        secondary="\n".join(f"- {one.question}: {note}." for one in verdicts for note in one.notes),
        arms="\n".join(markdown_table(("arm", *measured), arm_rows(means))),
        notes="\n".join(f"- {note}" for note in notes_of(runs)),
    )


def report(quick: bool = False) -> Report:
    """The verdicts on the committed runs."""
    runs = read_all(RESULTS)
    means, verdicts = arm_means(by_arm(runs)), judged(runs)
    notes = [f"{one.question}: {note}" for one in verdicts for note in one.notes]
    for arm, own in means.items():
        said = ", ".join(f"{name} {known(value, '.3g')}" for name, value in own.items())
        notes.append(f"{arm}: {said}")
    metrics = {
        "benchmark": NAME,
        "runs": len(runs),
        "questions": [
            {
                "question": one.question,
                "verdict": one.says,
                "differences": [
                    {"says": d.says, "at_95": d.over_seeds(), "at_90": d.over_seeds(0.9), "seeds": d.values}
                    for d in one.differences
                ],
                "notes": one.notes,
            }
            for one in verdicts
        ],
        "arms": means,
        "failed": failures_of(study()),
    }
    return Report(
        metrics, COLUMNS, verdict_rows(verdicts), [*notes, *notes_of(runs)], lambda: PAGE.write_text(markdown(runs))
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, study, report, argv, writes=PAGE.name)
