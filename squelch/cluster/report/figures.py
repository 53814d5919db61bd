"""The table of the figures that a report draws, in the paper's order of ideas: dynamics, outcome, mechanism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squelch.cluster.plots.style import render
from squelch.cluster.report import by_kind_and_turn, dynamics, mechanism, outcomes
from squelch.cluster.report.points import Row
from squelch.cluster.report.runs import Study

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


FIGURES = (
    ReportFigure(
        5,
        "dynamics",
        "Training dynamics",
        "Template collapse shows as retrieval accuracy that falls towards chance while H(Z|X) stays high, often before "
        f"success falls. {BANDS}",
        "a run with the scorer on (scorer.enabled) that was scored at least once",
        dynamics.dynamics,
        dynamics.draw_dynamics,
    ),
    ReportFigure(
        None,
        "where",
        "Where it collapses",
        "Each turn and each kind of task by itself: a run's means may stand while its late turns, or its hard kinds, "
        f"have collapsed. Means over seeds. At most {by_kind_and_turn.MOST_LINES} parts of {by_kind_and_turn.TOGETHER} "
        "arms are drawn; the data has all. MI: nats per token. D: of the fixed probe, nats per answer, measured at "
        "first turns alone. Kept: share of the groups of a kind, or of the trajectories that have the turn.",
        "a run of several turns, or of several kinds of tasks",
        by_kind_and_turn.where,
        by_kind_and_turn.draw_where,
    ),
    ReportFigure(
        6,
        "filtering",
        "Filtering strategies",
        "Success at each run's last validation (small dots), with the mean over seeds and its 95% t-interval. The arms "
        "of a panel differ in the filter only.",
        "validated runs of one environment with two or more filters (filter.rule, filter.rho), all else equal",
        outcomes.filtering,
        outcomes.draw_filtering,
    ),
    ReportFigure(
        7,
        "length",
        "Reasoning length",
        f"Reasoning that shortens steadily is a sign of templates. {BANDS}",
        "a run of at least one training step",
        dynamics.lengths,
        dynamics.draw_lengths,
    ),
    ReportFigure(
        8,
        "correlations",
        "Which diagnostic goes with success",
        "Spearman's rank correlation over runs, one pair a run: the success at its last validation, and the "
        "diagnostic's last value up to then. Intervals: 95%, by resampling runs. An interval that contains 0 shows no "
        "relation.",
        f"{outcomes.MIN_RUNS} or more scored and validated runs of one environment that differ in success",
        outcomes.correlations,
        outcomes.draw_correlations,
    ),
    ReportFigure(
        9,
        "noise",
        "Noise of the environment",
        "Success at the last validation against the probability that an action slips. Noise drowns the reward's "
        "signal, and with it the filter's advantage. Bands are 95% t-intervals over seeds.",
        f"validated runs of FrozenLake with two or more values of {outcomes.NOISE}, all else equal",
        outcomes.noise,
        outcomes.draw_noise,
    ),
    ReportFigure(
        10,
        "selection",
        "What the filter keeps",
        f"As more prompts have no reward variance (right), the filter should keep fewer groups (left). {BANDS}",
        "a run with a filter (filter.rule other than none)",
        dynamics.selection,
        dynamics.draw_selection,
    ),
    ReportFigure(
        11,
        "phases",
        "Rewards by phase of training",
        "Share of prompts of which no, some or all trajectories succeed, in each third of training, and the mean "
        "reward variance of the prompts. Only prompts of which some succeed give a task gradient. Means over seeds.",
        "a run of three training steps or more that records tasks_mixed",
        mechanism.phases,
        mechanism.draw_phases,
    ),
    ReportFigure(
        12,
        "format",
        "Format validity against mutual information",
        "Each point is a scorer step. Points of high validity at low MI-Est show that well-formed reasoning can be a "
        "template.",
        "a scored run (scorer.enabled)",
        mechanism.form,
        mechanism.draw_form,
    ),
    ReportFigure(
        13,
        "plane",
        "The plane of interventions",
        "Arrows lead from the first to the last part of training; the grey one is the arm that the others are compared "
        "with. Left: entropy and mutual information. Right: mutual information and success. Means over seeds.",
        "scored and validated runs that differ in the filter, the entropy bonus or the KL penalty only",
        mechanism.plane,
        mechanism.draw_plane,
    ),
    ReportFigure(
        3,
        "gradients",
        "Gradients by reward variance",
        "Mean norm of a prompt's gradient by bucket of reward variance. The task gradient should grow with the "
        "variance; the regularisers' gradient should not. Bands are 95% t-intervals over seeds.",
        "a run that decomposes its gradient (gradients.every=K)",
        mechanism.gradients,
        mechanism.draw_gradients,
    ),
)
