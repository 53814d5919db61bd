"""Draws docs/pictures.svg over a run whose environment shows pictures: a board as the policy is shown it, MI by
modality and success: `python -m docs.writers.modality_picture RUN docs/pictures.svg`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.cluster.plots import draw as drawing
from squelch.cluster.plots.style import BLUE, GREEN, render, standalone
from squelch.kit.archive.reader import read_groups, read_metrics
from squelch.kit.archive.rows import from_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READ = "probe/modality/picture"
SOLVED = "validation/success"


def points(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, ...]:
    """(num_points,) each: step that it describes, value, low and high of the lines that have the key and its
    interval."""
    names = (f"{key.partition('/')[0]}/step", key, f"{key}_low", f"{key}_high")
    found = [[line.get(name) for name in names] for line in lines]
    return tuple(np.array([one for one in found if None not in one], np.float64).reshape(-1, len(names)).T)


def board(run: Path) -> np.ndarray:
    """The first picture of the run's first group, (height, width, 3) uint8. ValueError if it shows none."""
    shown = [picture for one in from_table(read_groups(run, [1])) for picture in one.pictures]
    if not shown:
        raise ValueError(f"{run}: no picture was shown in step 1")
    return shown[0].decoded(f"{run}, step 1").rgb


def figure(rgb: np.ndarray, lines: Sequence[Mapping[str, Any]]) -> str:
    """The figure as an SVG file."""
    reading = "Left: what the policy is shown. Middle: what its reasoning takes from that. Right: validation success."
    return standalone(render("pictures", "A run from pictures", reading, lambda: _draw(rgb, lines)))


def _draw(rgb: np.ndarray, lines: Sequence[Mapping[str, Any]]) -> Figure:
    made, ((shown, read, solved),) = drawing.grid(1, 3, height=2.6)
    shown.imshow(rgb, interpolation="nearest")
    shown.set_axis_off()
    drawing.heading(shown, "A board as it is shown")
    for panel, key, title, colour in (
        (read, READ, "Dependence on the picture, nats", BLUE),
        (solved, SOLVED, "Validation success", GREEN),
    ):
        steps, values, low, high = (column.tolist() for column in points(lines, key))
        drawing.lines(panel, [drawing.Line("", steps, values, colour, low, high)], labels=False, markers=True)
        panel.set_ylim(bottom=0)
        drawing.heading(panel, title, "step")
    return drawing.finish(made)


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("out", type=Path, help="the SVG file")
    arguments = parser.parse_args()
    arguments.out.write_text(figure(board(arguments.run), read_metrics(arguments.run)), encoding="utf-8")


if __name__ == "__main__":
    main()
