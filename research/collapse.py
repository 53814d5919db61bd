"""The collapse study: the effect of filter, entropy bonus and KL on MI, H(Z|X), success, the alarm and the judge.

python -m research.collapse [--quick] [--json] [--write]

FrozenLake and Sokoban; each arm changes one setting of a base with entropy bonus 0.001 and KL 0.001: the filter (none,
top_p 0.9, top_k 0.25) or, with and without top_p, the entropy bonus (0.03, 0.1) or the KL (0.1). All arms were fixed
before the first run. research/results/collapse.csv has a row for each arm, figure and step: the mean over seeds with
its 95% t-interval; rows without a step are figures of whole runs, to three digits. The runs were too large to be kept.

`--write` writes docs/research/collapse.md and its pictures, one for each environment: a column for each strength of
the regularisers, a row for each figure, and in each panel the arms that differ in the filter only.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import markdown_table
from research.judging import PAGES, Report, judge
from research.tables import FOLDER
from squelch.cluster.plots import draw
from squelch.cluster.plots.style import BASELINE, BLUE, VERMILLION, render, standalone
from squelch.cluster.sweep.table import INTERVAL, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, DATA = PAGES / "collapse.md", FOLDER / "collapse.csv"
Row = Mapping[str, Any]
NUMBERS = {"entropy": float, "kl": float, "step": int, "mean": float, "low": float, "high": float}
OVER_STEPS = {
    "mi": "MI-Est, nats/token",
    "entropy": "H(Z|X), nats/token",
    "success": "success",
    "judge": "true coordinates",
    "alarm": "alarm raised",
}
"""The figures by step, as the pictures name them."""
SHARES = ("success", "judge", "alarm")
COLOURS = {"no filter": BASELINE, "top_p": BLUE, "top_k": VERMILLION}
"""Colour of a filter, by its rule."""
OF_RUNS = {
    "last_success": "success",
    "gain": "gain",
    "mi_first": "MI first",
    "mi_last": "MI last",
    "mi_change": "MI change",
    "entropy_change": "H(Z\\|X) change",
    "judge_last": "judge last",
    "judge_change": "judge change",
    "judge_and_mi": "judge ~ MI",
    "ever_alarmed": "alarm",
    "success_minus_no_filter": "success - no filter",
    "mi_last_minus_no_filter": "MI last - no filter",
}
"""The figures of whole runs, as the page's table names them."""
SIGNED = ("gain", "mi_change", "entropy_change", "judge_change", "success_minus_no_filter", "mi_last_minus_no_filter")
HEAD = ("environment", "arm", "seeds", "steps", *OF_RUNS.values())
LEGEND = (
    f"Each cell is a mean over seeds with its [{INTERVAL}]. One seed gives no interval, and two seeds give a wide one. "
    "first, last: mean of the run's first and last 3 scorings of the first turn. judge: share of reasonings that "
    "name true coordinates. judge ~ MI: rank correlation of the judge and MI over a run. alarm: share of runs that "
    "ever raised the alarm. - no filter: difference from the same arm without a filter, paired by seed. "
    "`-`: not recorded."
)


def read_rows(file: Path = DATA) -> list[Row]:
    """The rows of the table; None for what is empty."""
    with file.open(newline="") as lines:
        return [
            {key: (NUMBERS.get(key, str)(value) if value else None) for key, value in row.items()}
            for row in csv.DictReader(lines)
        ]


def arm_of(row: Row) -> tuple[str, str]:
    """Environment and arm of a row."""
    return row["environment"], f"{row['filter']}, entropy {row['entropy']:g}, KL {row['kl']:g}"


def cells(found: Sequence[Row]) -> list[list[str]]:
    """The printed cells: a row for each arm."""
    lines = []
    for arm in dict.fromkeys(map(arm_of, found)):
        own = [row for row in found if arm_of(row) == arm]
        whole = {row["figure"]: row for row in own if row["step"] is None}
        steps = max(row["step"] for row in own if row["step"] is not None)
        figures = [_cell(whole.get(name), "+" if name in SIGNED else "") for name in OF_RUNS]
        lines.append([*arm, own[0]["seeds"].replace(" ", ","), str(steps), *figures])
    return lines


def _cell(row: Row | None, sign: str) -> str:
    return "-" if row is None else text(row, sign)


def picture_of(environment: str) -> str:
    """Name of an environment's picture."""
    return f"collapse-{environment.lower()}.svg"


def markdown(found: Sequence[Row]) -> str:
    """The text of docs/research/collapse.md."""
    lines = [
        "# The collapse study",
        "",
        "`python -m research.collapse --write` generates this page and its pictures from",
        "`research/results/collapse.csv`; do not edit it. [findings.md](findings.md) discusses the results.",
        "",
    ]
    environments = dict.fromkeys(row["environment"] for row in found)
    lines += [line for name in environments for line in (f"![{name} over steps]({picture_of(name)})", "")]
    return "\n".join([*lines, *markdown_table(HEAD, cells(found)), "", LEGEND]) + "\n"


def figure(environment: str, found: Sequence[Row]) -> str:
    """An environment's picture, an SVG file."""
    own = [row for row in found if row["environment"] == environment and row["step"] is not None]
    strengths = sorted({(row["kl"], row["entropy"]) for row in own})

    def drawn() -> Figure:
        figure, axes = draw.grid(len(OVER_STEPS), len(strengths), height=1.6, share_y="row")
        for line, name in zip(axes, OVER_STEPS, strict=True):
            for panel, (kl, entropy) in zip(line, strengths, strict=True):
                here = [r for r in own if (r["kl"], r["entropy"], r["figure"]) == (kl, entropy, name)]
                _panel(panel, here, name)
                title = f"entropy {entropy:g}, KL {kl:g}" if line is axes[0] else ""
                draw.heading(panel, title, "training step" if line is axes[-1] else "")
                panel.set_ylabel(OVER_STEPS[name] if panel is line[0] else "")
        names = list(dict.fromkeys(row["filter"] for row in own))
        draw.legend(figure, names, [_colour(name) for name in names])
        return draw.finish(figure)

    reading = (
        "Columns: strength of the regularisers. Bands: 95% t-intervals over three seeds; a line without one is one run."
    )
    drawing = render(f"collapse-{environment.lower()}", f"The collapse study on {environment}", reading, drawn)
    return standalone(drawing)


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


def report(quick: bool = False) -> Report:
    """The page's table, and its page."""
    found = read_rows()
    whole = [row for row in found if row["step"] is None]
    return Report({"benchmark": "collapse", "rows": whole}, HEAD, cells(found), [LEGEND], lambda: write(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    return judge(__doc__, report, argv, writes=PAGE.name)


def write(found: Sequence[Row]) -> None:
    """Writes the page, and every environment's picture beside it."""
    PAGE.write_text(markdown(found))
    for environment in dict.fromkeys(row["environment"] for row in found):
        (PAGE.parent / picture_of(environment)).write_text(figure(environment, found))


if __name__ == "__main__":
    raise SystemExit(main())
