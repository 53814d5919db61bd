"""Draws the view of `squelch watch` as an SVG, for the docs.

    python -m docs.writers.watch_picture runs/frozenlake docs/watch.svg

The picture shows the run's folder at the time of the call, exactly as a terminal would; a call during training shows a
run in progress. The SVG loads nothing from the network, not even a font.
"""

from __future__ import annotations

import argparse
import io
import re
import time
from pathlib import Path

from rich.console import Console, RenderableType

from squelch.cluster.commands.existing_runs.watch import view
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.status import read_status

WIDTH = 112
"""Columns of the drawn terminal, wide enough for the longest metric and its sparkline."""
WEB_FONT = re.compile(r" *@font-face \{.*?\}\n", re.DOTALL)
"""Rich's references to two web fonts. Without them the viewer uses its monospace font, and texts keep their length."""


def picture(shown: RenderableType, title: str) -> str:
    """The output of a terminal with `WIDTH` columns as an SVG. Equal content gives equal text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(shown)
    return WEB_FONT.sub("", console.export_svg(title=title, unique_id="squelch-watch"))


def main() -> None:
    """Draws the view of one run's folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, for example runs/frozenlake")
    parser.add_argument("out", type=Path, help="the SVG to write")
    args = parser.parse_args()
    folder = RunFolder(args.run)
    status = read_status(folder, time.time())
    drawn = picture(view(status, folder.metrics()), f"squelch watch runs/{args.run.name}")
    args.out.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
