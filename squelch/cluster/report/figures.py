"""The table of the figures that a report draws, in the paper's order of ideas: dynamics, outcome, mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.plots.style import render
from squelch.cluster.report import by_kind_and_turn, dynamics, mechanism, outcomes
from squelch.cluster.report.points import Row
from squelch.cluster.report.runs import Study
from squelch.kit.untrusted.text import own_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = (
    "Bands are 95% t-intervals over seeds; an arm of one run has the 95% interval that the run states itself, over "
    "prompts or validation tasks, or none."
)


@dataclass(frozen=True)
class ReportFigure:
    """One figure, of the paper if it has a number there. `name`: of its data file; `reading`: how it is read; `needs`:
    the runs without which it cannot be drawn, as the end of "needs ..."."""

    number: int | None
    name: str
    title: str
    reading: str
    needs: str
    rows: Callable[[Study], list[Row]]
    draw: Callable[[Sequence[Row], Study], Figure]

    @property
    def heading(self) -> str:
        """Its title, with the paper's number."""
        return self.title if self.number is None else f"{self.title} (paper, Figure {self.number})"

    def svg(self, rows: Sequence[Row], study: Study) -> str:
        """The figure of these rows as an `<svg>` element."""
        return render(self.name, self.heading, self.reading, lambda: self.draw(rows, study))


DRAWN: Mapping[str, tuple[Callable[[Study], list[Row]], Callable[[Sequence[Row], Study], Figure]]] = {
    "dynamics": (dynamics.dynamics, dynamics.draw_dynamics),
    "where": (by_kind_and_turn.where, by_kind_and_turn.draw_where),
    "filtering": (outcomes.filtering, outcomes.draw_filtering),
    "length": (dynamics.lengths, dynamics.draw_lengths),
    "correlations": (outcomes.correlations, outcomes.draw_correlations),
    "noise": (outcomes.noise, outcomes.draw_noise),
    "selection": (dynamics.selection, dynamics.draw_selection),
    "phases": (mechanism.phases, mechanism.draw_phases),
    "format": (mechanism.form, mechanism.draw_form),
    "plane": (mechanism.plane, mechanism.draw_plane),
    "gradients": (mechanism.gradients, mechanism.draw_gradients),
}
"""The rows and the drawing of each figure."""


def _figures() -> tuple[ReportFigure, ...]:
    """The figures, with the words of `figures.yaml`."""
    fields = {"bands": BANDS, "lines": by_kind_and_turn.MOST_LINES, "arms": by_kind_and_turn.TOGETHER}
    fields |= {"runs": outcomes.MIN_RUNS, "noise": outcomes.NOISE}
    found = []
    for name, words in own_yaml(Path(__file__).with_suffix(".yaml")).items():
        reading, needs = (words[part].format(**fields) for part in ("reading", "needs"))
        found.append(ReportFigure(words.get("number"), name, words["title"], reading, needs, *DRAWN[name]))
    return tuple(found)


FIGURES = _figures()
