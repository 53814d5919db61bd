"""The study on a real language model: does it learn, and what does its reasoning do meanwhile?

python -m research.real_model --list [--only WORD ...]
python -m research.real_model --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m research.real_model [--quick] [--json] [--write]

The model is SmolLM2-135M-Instruct (docs/guide/real-models.md). The parts and their arms were fixed before the first
run:

    part                  recipe               steps   arms                                             seeds
    countdown             smollm2-countdown    60      as it comes                                      0, 1
    frozenlake            smollm2-frozenlake   60      the board alone is shown, as it came at first    0
    question              smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.03      0 to 4
    question-entropy      smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.001     0
    frozenlake-cells      smollm2-frozenlake   60      as it comes                                      0
    question-frozenlake   smollm2-frozenlake   60      no filter and top-p 0.9, entropy bonus 0.03      0

`frozenlake` learned nothing, because the model could not read its board. The recipe shows the cells of things beside it
since, and its warm-up looks at what the reasoning states. `frozenlake-cells` was added then; `question-frozenlake` had
not been run. Seeds 3 and 4 of `question` were added when a GPU was at hand, on which each seed's two runs were made.

`--list` and `--run` are those of `research.claims`. The minutes of `--list` are those of a Zen 4 in bfloat16: 29 to
49 a cell on Countdown, 79 to 149 on FrozenLake, where two steps without a filter were seen (149 and 163 s). Beside
other work cells took up to one and a half times as long.

A finished cell leaves one small file under `research/results/real_model`, with ten reasonings of the first
and the last step; commit it. A run that was made by hand with a cell's settings is kept too: move its folder to
DIR/real-model/CELL and call `--run --only CELL` with the same `--set`; other settings are refused. On processors with
fast bfloat16, the types of numbers may be set (docs/guide/real-models.md), for all cells that are compared.

Without either form the committed files are reported, `--quick` alike; nothing is run. First and last are the first and
the last measurement. The judge reads the reasonings: "states" is the share of those that state anything, and "true"
the share of true ones among these, at scorings where there are any. Under the table, the filter is compared with none:
differences at the last measurement that both have, the first aside, paired by seed and by what was set. `--write`
writes docs/research/real-model-study.md, with the first and the last reasonings side by side.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import markdown_table
from research.cells import Report, Study, StudyCell, command
from research.kept import finished, how_it_ended, parsed
from squelch.actors.archive.reader import read_groups
from squelch.actors.archive.rows import from_table
from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.sweep.plan import Arm
from squelch.cluster.sweep.table import t_interval, text

RESULTS = Path(__file__).parent / "results" / "real_model"
PAGE = Path(__file__).parents[1] / "docs" / "research" / "real-model-study.md"
ENTROPY = "learner.objective.entropy_coefficient"
REASONINGS = 10
STEP_S = {"smollm2-countdown": {"none": 27.0, "top_p": 22.0}, "smollm2-frozenlake": {"none": 140.0, "top_p": 70.0}}
"""Expected seconds of a step by recipe and filter, without validation: measured on a Zen 4 in bfloat16. On FrozenLake
without a filter two steps were measured."""
VALIDATION_S = {"smollm2-countdown": 0.17, "smollm2-frozenlake": 0.93}
"""Expected seconds of a validation task on the same machine."""


@dataclass(frozen=True)
class Part:
    """A part of the study. `tasks`: fixed validation tasks before and after."""

    recipe: str
    steps: int
    tasks: int
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]


def _filters(entropy: float) -> tuple[Arm, ...]:
    chosen: Mapping[str, Mapping[str, Any]] = {"none": {"filter.rule": "none"}, "top_p": {"filter.rule": "top_p"}}
    return tuple(Arm(f"{name}_ent{entropy:g}", {**rule, ENTROPY: entropy}) for name, rule in chosen.items())


AS_IT_COMES = (Arm("base", {}),)
BOARD_ALONE = {"environment.options.observation_format": "grid", "model.warmup.true_reasonings": None}
PARTS = {
    "countdown": Part("smollm2-countdown", 60, 1024, AS_IT_COMES, (0, 1)),
    "frozenlake": Part("smollm2-frozenlake", 60, 512, (Arm("base", BOARD_ALONE),), (0,)),
    "question": Part("smollm2-countdown", 100, 512, _filters(0.03), (0, 1, 2, 3, 4)),
    "question-entropy": Part("smollm2-countdown", 100, 512, _filters(0.001), (0,)),
    "frozenlake-cells": Part("smollm2-frozenlake", 60, 512, AS_IT_COMES, (0,)),
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
    "dependence": "probe/link/dependence",
    "kept_groups": "kept_groups",
    "zero_variance_groups": "zero_variance_groups",
    "format_validity": "format_validity",
    "length": "reasoning_length",
    "step_seconds": "seconds/step",
    "validation_failed": "validation/failed",
}
"""Figures of a step that are kept, by the keys of metrics.jsonl; those that a run lacks are left out. A scoring and a
reading of the probe are recorded with a later step than `scored_step` and `probe_step`, which they describe."""


def every_cell() -> Iterator[StudyCell]:
    """The cells, part by part and seed by seed."""
    for name, part in PARTS.items():
        validated = {"validation.tasks": part.tasks, "validation.every": part.steps}
        validation_s = 2 * part.tasks * VALIDATION_S[part.recipe] / part.steps
        for seed, arm in itertools.product(part.seeds, part.arms):
            own = {**arm.settings, **validated}
            step_s = STEP_S[part.recipe][arm.settings.get("filter.rule", "top_p")] + validation_s
            yield StudyCell(name, part.recipe, arm.label, own, seed, part.steps, step_s)


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
        {"prompt": pieces.text(one.prompt_ids(0))[-400:], "reasoning": pieces.text(one.reasoning_ids(0))}
        for one in first
    ]


def note_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a reader must know of a run's validations, given its metrics; empty if all tasks were played."""
    failed = max((row.get("validation/failed") or 0.0 for row in rows), default=0.0)
    return f"up to {failed:.0f} validation tasks failed and count as no success" if failed else ""


def condense(folder: Path, **labels: Any) -> dict[str, Any]:
    """The content of a run's file. UserError if the run has neither finished nor ended for lack of signal."""
    run, summary = finished(folder)
    settings = run.settings()
    steps = run.steps()
    return {
        "name": folder.name,
        **labels,
        "note": note_of(run.metrics()),
        "environment": summary["environment"],
        "filter": summary["filter"]["rule"],
        "entropy": settings[ENTROPY],
        "seed": settings["seed"],
        "steps": summary["steps"],
        **how_it_ended(summary, settings),
        "success": summary["success"],
        "probe": summary.get("probe"),
        "seconds": summary["seconds"],
        "rows": [_row(row) for row in run.metrics()],
        "reasonings": {str(step): reasonings(folder, step) for step in (steps[0], steps[-1])},
    }


STUDY = Study("real-model", (), tuple(every_cell()), RESULTS, condense)


COLUMNS = (
    *("run", "seed", "filter", "entropy", "steps", "success before", "after", "gain"),
    *("H(Z|X) first", "last", "states first", "last", "true first", "last", "probe MI first", "last"),
)
Kept = Mapping[str, Any]


def report_rows(found: Sequence[Kept]) -> list[list[Any]]:
    """A row for each kept run."""
    rows = []
    for one in found:
        success, gain = one["success"], one["success"].get("gain")
        gained = f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]" if gain else "-"
        ends = [f"{success[end]['success']:.3f}" if success.get(end) else "-" for end in ("before", "after")]
        measured = [cell for of in MEASURED.values() for cell in _ends(of(one))]
        rows.append([one["name"], one["seed"], one["filter"], one["entropy"], one["steps"], *ends, gained, *measured])
    return rows


Series = list[float | None]
"""A figure at each of its measurements; None where it is not known."""


def _series(name: str) -> Callable[[Kept], Series]:
    return lambda one: [row[name] for row in one["rows"] if name in row]


def true_shares(one: Kept) -> Series:
    """At each scoring, the share of true reasonings among those that state anything; None where none does, or only the
    share among all was kept."""
    judged = (row for row in one["rows"] if "judge" in row)
    return [row["judge"] / row["judge_names"] if row.get("judge_names") else None for row in judged]


MEASURED: Mapping[str, Callable[[Kept], Series]] = {
    "H(Z|X)": _series("entropy"),
    "states": _series("judge_names"),
    "true": true_shares,
    "probe MI": _series("probe_mi"),
}


def _ends(values: Series) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    return (f"{known[0]:.2f}", f"{known[-1]:.2f}") if known else ("-", "-")


def compared(found: Sequence[Kept]) -> list[str]:
    """A line for each environment, entropy bonus and figure that runs with top-p and without a filter have: top-p minus
    none at the last measurement of both, mean over seeds with its t-interval; success at each run's last validation."""
    lines = []
    for setting in dict.fromkeys(_setting(one) for one in found):
        environment, entropy, steps = setting
        runs = {(one["filter"], _pair(one)): one for one in found if _setting(one) == setting}
        both = [pair for rule, pair in runs if rule == "top_p" and ("none", pair) in runs]
        mixed = ", pairs with other settings among them" if len({further for _, further in both}) > 1 else ""
        trained = {name: _after_the_first(of) for name, of in MEASURED.items()}
        for name, of in {"success": _success_after, **trained}.items():
            ends = {pair: _last_of_both(of(runs["top_p", pair]), of(runs["none", pair])) for pair in both}
            differences = {pair: end[0] - end[1] for pair, end in ends.items() if end}
            if differences:
                difference = text(t_interval(list(differences.values())), "+")
                seeds = [seed for seed, _ in differences]
                where = f"{environment}, entropy bonus {entropy:g}, {steps} steps, seeds {seeds}{mixed}"
                lines.append(f"{where}: {name}, top_p minus none {difference}")
    return lines


def _after_the_first(of: Callable[[Kept], Series]) -> Callable[[Kept], Series]:
    """The figure without its first measurement, which is of the weights with which both runs of a pair began."""
    return lambda one: of(one)[1:]


def _last_of_both(ours: Series, theirs: Series) -> tuple[float, float] | None:
    """The last measurement that both know."""
    both = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
    return both[-1] if both else None


def _setting(one: Kept) -> tuple[str, float, int]:
    """What pairs over which a mean is taken have in common: environment, entropy bonus and planned steps."""
    return one["environment"], one["entropy"], one.get("planned", one["steps"])


def _pair(one: Kept) -> tuple[int, tuple[str, ...]]:
    """What the two runs of a pair have in common besides: the seed, and the overrides, which name the devices."""
    return one["seed"], tuple(one["set"])


def _success_after(one: Kept) -> Series:
    """The last validation; of a run that ended for lack of signal the first, if there was no other."""
    success = one["success"]
    last = success.get("after") or (success.get("before") if one.get("ended") else None)
    return [last["success"]] if last else []


def early_ends(found: Sequence[Kept]) -> list[str]:
    """A line for each run that ended before its planned last step."""
    lines = []
    for one in found:
        if one.get("ended"):
            last = one["success"].get("after") or one["success"].get("before")
            at = f"its last validation, of step {last['step']:g}, counts" if last else "it was never validated"
            lines.append(f"{one['name']} ended for lack of signal after step {one['steps']} of {one['planned']}; {at}")
    return lines


def remarks(found: Sequence[Kept]) -> list[str]:
    """A line for each run whose file has a `note`: what a reader must know who compares it."""
    return [f"{one['name']}: {one['note']}" for one in found if one.get("note")]


def side_by_side(one: Kept) -> list[str]:
    """The run's first reasonings of its first and of its last step as a Markdown table."""
    first, last = sorted(one["reasonings"], key=int)[0], sorted(one["reasonings"], key=int)[-1]
    pairs = zip(one["reasonings"][first], one["reasonings"][last], strict=False)
    heads = [f"{what}, step {step}" for step in (first, last) for what in ("task", "reasoning")]
    rows = ([_task(a["prompt"]), _plain(a["reasoning"]), _task(b["prompt"]), _plain(b["reasoning"])] for a, b in pairs)
    return markdown_table(heads, rows)


def _task(prompt: str) -> str:
    """The last message of a prompt's end, without the marks of the chat template."""
    return _plain(re.sub(r"<\|[^|]*\|>(user|assistant|system)?|<think>", "", prompt.rpartition("<|im_start|>user")[2]))


def _plain(words: str) -> str:
    """Text of a model for a cell of a Markdown table: shown as it is, whatever it holds."""
    shown = html.escape(words.strip())
    for mark in "|*_`[]~\\$":
        shown = shown.replace(mark, f"&#{ord(mark)};")
    return "<br>".join(line for line in shown.splitlines() if line.strip())


HEAD = """# The study on a real language model

`python -m research.real_model --write` generates this page from the runs in
`research/results/real_model`; do not edit it. [real-models.md](../guide/real-models.md) describes the model and says
what was run. First and last are the first and the last measurement. The judge reads the reasonings: "states" is the
share of those that state anything, and "true" the share of true ones among these, at scorings where there are any.
Differences are those at the last measurement that both runs have, the first aside, and of success at each run's last
validation.
"""


def markdown(found: Sequence[Kept]) -> str:
    """The text of docs/research/real-model-study.md."""
    heads = [head.replace("|", "\\|") for head in COLUMNS]
    lines = [HEAD, *markdown_table(heads, ([str(cell) for cell in row] for row in report_rows(found)))]
    if notes := [*compared(found), *early_ends(found), *remarks(found)]:
        lines += ["", *(f"- {note}" for note in notes)]
    for one in found:
        lines += ["", f"## The first reasonings of {one['name']}", "", *side_by_side(one)]
    return "\n".join(lines) + "\n"


def whole(one: Kept) -> Kept:
    """The run, if its file has every entry that a report needs; else what a missing one raises."""
    markdown([one])
    return one


def report(quick: bool = False) -> Report:
    """Reports the committed files."""
    found = [parsed(file, whole) for file in sorted(RESULTS.glob("*.json"))]
    done = sum(STUDY.is_done(cell) for cell in STUDY.cells)
    notes = [*compared(found), *early_ends(found), *remarks(found), f"{done} of {len(STUDY.cells)} runs are done"]
    figures = {"benchmark": "real_model_study", "runs": found}
    return Report(figures, COLUMNS, report_rows(found), notes, markdown(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, lambda: STUDY, report, argv, page=PAGE)


if __name__ == "__main__":
    raise SystemExit(main())
