"""The study on a real language model: does it learn, and what does its reasoning do meanwhile?

python -m research.real_model [--quick] [--json] [--write]

The model is SmolLM2-135M-Instruct (docs/guide/real-models.md). Parts and arms were fixed before the first run:

    part                  recipe               steps   arms                                             seeds
    countdown             smollm2-countdown    60      as it comes                                      0, 1
    frozenlake            smollm2-frozenlake   60      the board alone is shown, as it came at first    0
    question              smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.03      0 to 4
    question-entropy      smollm2-countdown    100     no filter and top-p 0.9, entropy bonus 0.001     0
    frozenlake-cells      smollm2-frozenlake   60      as it comes                                      0
    question-frozenlake   smollm2-frozenlake   60      no filter and top-p 0.9, entropy bonus 0.03      0

`frozenlake` learned nothing, because the model could not read its board. The recipe shows the cells of things beside it
since, and its warm-up looks at what the reasoning states. `frozenlake-cells` was added then; `question-frozenlake` had
not been run, and has no run. Seeds 3 and 4 of `question` were added when a GPU was at hand, on which each seed's two
runs were made. research/results/real_model.parquet has the runs, with ten reasonings of the first and the last step.

First and last are the first and the last measurement. The judge reads the reasonings: "states" is the share of those
that state anything, and "true" the share of true ones among these, at scorings where there are any. Under the table,
the filter is compared with none: differences at the last measurement that both have, the first aside, paired by seed
and by what was set. `--write` writes docs/research/real-model-study.md, with the first and the last reasonings side by
side.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common import markdown_table
from research.judging import PAGES, Report, judge, template
from research.tables import FOLDER, read_as
from squelch.cluster.sweep.table import t_interval, text

RESULTS, PAGE = FOLDER / "real_model.parquet", PAGES / "real-model-study.md"


COLUMNS = (
    *("run", "seed", "filter", "entropy", "steps", "success before", "after", "gain"),
    *("H(Z|X) first", "last", "states first", "last", "true first", "last", "probe MI first", "last"),
)
Kept = Mapping[str, Any]
"""A run: the content of its table, `rows` (its records by step) and `reasonings` (some of the first and last step)."""


def of_content(content: Mapping[str, Any]) -> Kept:
    """A run from its content. What `markdown` raises if an entry is missing."""
    own = content["tables"]
    rows = [row for name in ("repeated", "rows") for row in _records(own.get(name, {"step": []}))]
    texts = {row.pop("step"): row for row in _records(own["reasonings"])}
    reasonings = {step: [_pair_of(row, k) for k in range(len(row) // 2)] for step, row in texts.items()}
    run = {**content, "rows": sorted(rows, key=lambda row: row["step"]), "reasonings": reasonings}
    del run["tables"]
    markdown([run])
    return run


def _records(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a table, without what they lack."""
    rows = zip(*table.values(), strict=True)
    return [{key: value for key, value in zip(table, row, strict=True) if value is not None} for row in rows]


def _pair_of(row: Mapping[str, str], k: int) -> dict[str, str]:
    return {word: row[f"{k}.{word}"] for word in ("prompt", "reasoning")}


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
    first, last = min(one["reasonings"]), max(one["reasonings"])
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


def markdown(found: Sequence[Kept]) -> str:
    """The text of docs/research/real-model-study.md."""
    heads = [head.replace("|", "\\|") for head in COLUMNS]
    lines = [
        template("real-model-study"),
        *markdown_table(heads, ([str(cell) for cell in row] for row in report_rows(found))),
    ]
    if notes := [*compared(found), *early_ends(found), *remarks(found)]:
        lines += ["", *(f"- {note}" for note in notes)]
    for one in found:
        lines += ["", f"## The first reasonings of {one['name']}", "", *side_by_side(one)]
    return "\n".join(lines) + "\n"


def report(quick: bool = False) -> Report:
    """Reports the runs of the table."""
    found = read_as(RESULTS, of_content)
    notes = [*compared(found), *early_ends(found), *remarks(found)]
    figures = {"benchmark": "real_model_study", "runs": found}
    return Report(figures, COLUMNS, report_rows(found), notes, lambda: PAGE.write_text(markdown(found)))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv, writes=PAGE.name)


if __name__ == "__main__":
    raise SystemExit(main())
