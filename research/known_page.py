"""docs/research/known-truth.md with its picture, made from the tables of `research.known_truth` and
`research.known_links`, and how these tables are written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import markdown_table
from research.judging import PAGES, template
from research.tables import FOLDER, read_csv, write_csv
from squelch.cluster.plots import draw as drawing
from squelch.cluster.plots.style import BLUE, GREEN, MUTED, VERMILLION, render, standalone
from squelch.kit.process.terminal import UNKNOWN
from squelch.kit.scoring.settings import OTHERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA, NULLS, LINKS = (FOLDER / f"{name}.csv" for name in ("known_truth", "known_truth_null", "known_links"))
SIZES = (6, 8, 16, 32, 64)
SAMPLES = (1, 8)
LM_LENGTH, LM_PROMPTS = 4, 24
UNEQUAL = (2, 4)
"""Pairs of each task of the first and of the second half: turns without an answer have no pair."""
EITHER = " or ".join(map(str, UNEQUAL))
BAND = (0.90, 0.98)
"""Shares of intervals that must hold."""
TRIALS, QUICK = 400, 40
TYPES = {
    **dict.fromkeys(("estimate", "channel", "verdict"), str),
    **dict.fromkeys(("tasks", "held", "draws", "prompts"), int),
    **{"samples": lambda text: int(text) if text.isdigit() else text, "terminator": lambda text: text == "True"},
}
"""What a column of the table is read as; a float if it is not here."""


def write(tables: Mapping[Path, Sequence[Mapping[str, Any]]]) -> None:
    """Writes tables, with five digits after the point, and from all that are there the page and its picture."""
    for file, rows in tables.items():
        write_csv(file, [{key: _rounded(value) for key, value in row.items()} for row in rows])
    rows = read_rows(DATA)
    (PAGES / "known-truth.md").write_text(markdown(rows, read_rows(NULLS), read_rows(LINKS)))
    (PAGES / "known_truth.svg").write_text(figure(rows))


def _rounded(value: Any) -> Any:
    return round(value, 5) + 0.0 if isinstance(value, float) else value


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a table."""
    return [{key: TYPES.get(key, float)(value) for key, value in row.items()} for row in read_csv(file)]


def pooled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each estimate and K, the share of intervals that hold over all channels and N, without exact ones."""
    found: dict[tuple[str, int | str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["verdict"] != "exact":
            found.setdefault((row["estimate"], row["samples"]), []).append(row)
    lines = []
    for (estimate, samples), own in found.items():
        held, draws = sum(row["held"] for row in own), sum(row["draws"] for row in own)
        share = held / draws
        verdict = "below" if share < BAND[0] else "above" if share > BAND[1] and estimate != "both forms" else "in"
        lines.append({"estimate": estimate, "samples": samples, "draws": draws, "covers": share, "verdict": verdict})
    return lines


def links_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's table: the pooled shares, a row for each estimate and a column for each K."""
    found, shares = pooled(rows), dict[str, dict[str, str]]()
    for row in found:
        share = f"{row['covers']:.3f}" if row["verdict"] == "in" else f"**{row['covers']:.3f}**"
        shares.setdefault(row["estimate"].replace("|", "\\|"), {})[str(row["samples"])] = share
    counts = list(dict.fromkeys(str(row["samples"]) for row in found))
    lines = ([name, *(own.get(count, UNKNOWN) for count in counts)] for name, own in shares.items())
    return "\n".join(markdown_table(("estimate", *(f"K = {count}" for count in counts)), lines))


def missed(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows whose share lies outside the band."""
    outside = [row for row in rows if row["verdict"] not in ("in", "exact")]
    named = (f"{row['estimate']}, `{row['channel']}`, N = {row['tasks']}, K = {row['samples']}" for row in outside)
    shares = (f"{row['covers']:.3f}" for row in outside)
    return "; ".join(f"{name}: {share}" for name, share in zip(named, shares, strict=True)) or "none is outside"


COLUMNS = ("channel", "Z ends", "length", "K", "N", "I(X;Z)", "mean", "bias", "half width", "covers mean", "covers I")


def cells(row: Mapping[str, Any]) -> list[Any]:
    """The printed cells of one row."""
    ends = "with terminator" if row["terminator"] else "without"
    head = [row["channel"], ends, round(row["length"], 1), row["samples"], row["prompts"]]
    return head + [float(row[k]) for k in ("truth", "mean", "bias", "half_width", "covers_mean", "covers_truth")]


def nulls(false: Sequence[Mapping[str, Any]]) -> str:
    """The rates of false positives in words."""
    return ", ".join(f"{one['rate']:.3f} at N={one['prompts']}, K={one['samples']}" for one in false)


SHOWN_AT = {**dict.fromkeys(("weak", "medium", "strong"), (8, 64)), "tiny LM": (LM_PROMPTS,)}
"""The channels on the page, and the numbers of prompts at which they are there."""


def _texts(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row on the page, without length and K."""
    channel, ends, _, _, prompts, *numbers = cells(row)
    return [channel, ends, str(prompts), *(f"{number:.3f}" for number in numbers)]


def markdown(
    rows: Sequence[Mapping[str, Any]], false: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]]
) -> str:
    """The text of docs/research/known-truth.md. `rows`, `false`: of `measure`; `links`: of `research.known_links`."""
    shown = [
        row for row in rows if row["samples"] == SAMPLES[-1] and row["prompts"] in SHOWN_AT.get(row["channel"], ())
    ]
    columns = [name for name in COLUMNS if name not in ("length", "K")]
    low, high = BAND
    return template("known-truth").format(
        length=LM_LENGTH,
        trials=TRIALS,
        table="\n".join(markdown_table(columns, map(_texts, shown))),
        nulls=nulls(false),
        links=links_table(links),
        tasks=" or ".join(map(str, sorted({row["tasks"] for row in links}))),
        others=OTHERS,
        unequal=EITHER,
        rows=len(links),
        missed=missed(links),
        low=low,
        high=high,
    )


def figure(rows: Sequence[Mapping[str, Any]]) -> str:
    """docs/research/known_truth.svg: mean estimate against N with I(X;Z) beside it, and coverage of the mean (K =
    8)."""
    chosen = {
        name: [row for row in rows if (row["channel"], row["samples"]) == (name, 8) and row["terminator"]]
        for name in SHOWN
    }
    reading = "Left: the mean estimate rises to the true value with the number of prompts. Right: coverage of the mean."
    drawn = render("known-truth", "Estimates compared with known mutual information", reading, lambda: _draw(chosen))
    return standalone(drawn)


SHOWN = {"weak": GREEN, "medium": BLUE, "strong": VERMILLION}
"""The channels of the figure, and their colours."""


def _draw(chosen: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    figure, ((left, right),) = drawing.grid(1, 2, height=3.2)
    left.plot(SIZES, [float(np.log(n)) for n in SIZES], color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
    drawing.end_label(left, "log N, the bound", float(np.log(SIZES[-1])), MUTED)
    for (name, own), colour in zip(chosen.items(), SHOWN.values(), strict=True):
        sizes = [row["prompts"] for row in own]
        left.axhline(own[0]["truth"], color=colour, linewidth=1.0, linestyle=(0, (4, 2)))
        drawing.lines(left, [drawing.Line(f"{name} dependence", sizes, [row["mean"] for row in own], colour)])
        drawing.lines(right, [drawing.Line(name, sizes, [row["covers_mean"] for row in own], colour)])
    drawing.reference(right, 0.95, "95%")
    right.set_ylim(0.5, 1.0)
    drawing.percent(right, whole=False)
    titles = "MI-Seq-Est, nats per sequence (dashed: I(X;Z))", "Intervals that hold the mean"
    for panel, title in zip((left, right), titles, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        drawing.heading(panel, title, "N, prompts")
    return drawing.finish(figure)
