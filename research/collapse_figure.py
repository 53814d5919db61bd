"""The pictures of the collapse study, one for each environment: a column for each strength of the regularisers, a row
for each figure, and in each panel the arms that differ in the filter only.

`rows` computes the data from runs; it is committed as docs/research/collapse.csv, and `figures` draws it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from research.collapse_runs import TITLES, Arm, Run, mean_series
from squelch.cluster.plots import draw
from squelch.cluster.plots.style import BASELINE, BLUE, VERMILLION, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = ("success", "judge", "alarm")
HEADS = {
    "mi": "MI-Est, nats/token",
    "entropy": "H(Z|X), nats/token",
    "success": "success",
    "judge": "true coordinates",
    "alarm": "alarm raised",
}
COLOURS = {"no filter": BASELINE, "top_p": BLUE, "top_k": VERMILLION}
"""Colour of a filter, by its rule."""
Row = dict[str, Any]


def rows(arms: Mapping[Arm, Sequence[Run]]) -> list[Row]:
    """One row for each arm, figure and step: the mean over seeds and its interval."""
    return [
        {
            **{"environment": arm.environment, "filter": arm.filter, "entropy": arm.entropy, "kl": arm.kl},
            **{"figure": name, "step": step, "mean": found["mean"], "low": found["low"], "high": found["high"]},
        }
        for arm, runs in arms.items()
        for name in TITLES
        for step, found in mean_series(runs, name)
    ]


def csv_of(found: Sequence[Row]) -> str:
    """The rows as CSV, with four digits after the point."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(found[0]), lineterminator="\n")
    writer.writeheader()
    for row in found:
        writer.writerow(row | {k: "" if row[k] is None else f"{row[k]:.4f}" for k in ("mean", "low", "high")})
    return buffer.getvalue()


def read_rows(text: str) -> list[Row]:
    """The rows of `csv_of`."""
    numbers = {"entropy": float, "kl": float, "step": int, "mean": float, "low": float, "high": float}
    return [
        {key: (numbers.get(key, str)(value) if value else None) for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


def figures(found: Sequence[Row]) -> dict[str, str]:
    """The figure of each environment as an `<svg>` element."""
    return {environment: _figure(environment, found) for environment in dict.fromkeys(r["environment"] for r in found)}


def _figure(environment: str, found: Sequence[Row]) -> str:
    own = [row for row in found if row["environment"] == environment]
    strengths = sorted({(row["kl"], row["entropy"]) for row in own})

    def drawn() -> Figure:
        figure, axes = draw.grid(len(TITLES), len(strengths), height=1.6, share_y="row")
        for line, name in zip(axes, TITLES, strict=True):
            for panel, (kl, entropy) in zip(line, strengths, strict=True):
                here = [r for r in own if (r["kl"], r["entropy"], r["figure"]) == (kl, entropy, name)]
                _panel(panel, here, name)
                title = f"entropy {entropy:g}, KL {kl:g}" if line is axes[0] else ""
                draw.heading(panel, title, "training step" if line is axes[-1] else "")
                panel.set_ylabel(HEADS[name] if panel is line[0] else "")
        names = list(dict.fromkeys(row["filter"] for row in own))
        draw.legend(figure, names, [_colour(name) for name in names])
        return draw.finish(figure)

    reading = (
        "Columns: strength of the regularisers. Bands: 95% t-intervals over three seeds; a line without one is one run."
    )
    return render(f"collapse-{environment.lower()}", f"The collapse study on {environment}", reading, drawn)


def _panel(panel: Axes, found: Sequence[Row], name: str) -> None:
    if not found:
        draw.empty(panel, "not recorded")
        return
    lines = [_line(found, chosen, name) for chosen in dict.fromkeys(row["filter"] for row in found)]
    draw.lines(panel, lines, labels=False)
    if name in SHARES:
        draw.percent(panel)


def _line(found: Sequence[Row], chosen: str, name: str) -> draw.Line:
    points = [row for row in found if row["filter"] == chosen]
    banded = name != "alarm" and all(row["low"] is not None for row in points)
    low, high = ([row[end] for row in points] if banded else () for end in ("low", "high"))
    return draw.Line(chosen, [r["step"] for r in points], [r["mean"] for r in points], _colour(chosen), low, high)


def _colour(chosen: str) -> str:
    return next(colour for rule, colour in COLOURS.items() if chosen.startswith(rule))
