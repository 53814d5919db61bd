"""Draws the first two rows of the Reasoning dashboard over a run, for the docs.

    python -m docs.writers.reasoning_picture runs/frozenlake docs/reasoning-view.svg

A Prometheus that holds what the run recorded (`cluster.grafana.run_prometheus`) answers the dashboard's own queries,
and the answers are drawn in the dashboard's layout (`cluster.plots.panels`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from squelch.cluster.grafana import boards
from squelch.cluster.grafana.prometheus import Span
from squelch.cluster.grafana.run_prometheus import prometheus_over
from squelch.cluster.plots import panels
from squelch.cluster.plots.style import standalone
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError

NUM_ROWS = 2


def main() -> None:
    """Draws the dashboard over one run's folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, for example runs/frozenlake")
    parser.add_argument("out", type=Path, help="the SVG to write")
    args = parser.parse_args()
    folder, board = RunFolder(args.run), boards.shipped()["reasoning"]
    try:
        lines, settings = folder.require().metrics(), folder.settings()
    except UserError as error:
        parser.error(str(error))
    if not lines:
        parser.error(f"{args.run}: no step is recorded yet")
    span = Span(lines[0]["time"], lines[-1]["time"])
    with prometheus_over(lines, settings, folder.name) as prometheus:
        chosen = prometheus.chosen(".*", span)
        wanted = list(boards.expressions(board, chosen))
        drawn = panels.picture(board, panels.ask(prometheus, wanted, span, chosen), board.rows[:NUM_ROWS])
    args.out.write_text(standalone(drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
