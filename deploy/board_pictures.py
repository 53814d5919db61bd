"""Draws the dashboards over a run as Grafana would show them, for the docs.

    python -m squelch.deploy.board_pictures runs/frozenlake docs

A real Prometheus answers the dashboards' own queries, and the answers are drawn with the dashboards' own layout
(`cluster.plots.panels`). `--prometheus URL` names one that scraped the run. Without it, one is started that holds
what the run recorded (`cluster.grafana.recorded`). The panels that have no data are printed.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from squelch.cluster.errors import UserError
from squelch.cluster.grafana import boards
from squelch.cluster.grafana.prometheus import Prometheus, Span
from squelch.cluster.grafana.recorded import prometheus_over
from squelch.cluster.plots import panels
from squelch.cluster.plots.style import standalone
from squelch.cluster.runs.folder import RunFolder

README = "reasoning"
"""The dashboard whose first two rows the README shows."""


def main() -> None:
    """Writes dashboard-NAME.svg for every dashboard, with the rows that have data, and the README's view."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, for example runs/frozenlake")
    parser.add_argument("out", type=Path, help="the folder of the pictures, for example docs")
    parser.add_argument("--prometheus", metavar="URL", help="a Prometheus that scraped the run")
    args = parser.parse_args()
    folder = RunFolder(args.run)
    try:
        lines, settings = folder.require().metrics(), folder.settings()
    except UserError as error:
        parser.error(str(error))
    if not lines:
        parser.error(f"{args.run}: no step is recorded yet")
    span = Span(lines[0]["time"], lines[-1]["time"])
    given = nullcontext(Prometheus(args.prometheus)) if args.prometheus else None
    with given or prometheus_over(lines, settings, folder.name) as prometheus:
        chosen = prometheus.chosen(".*", span)
        for name, board in boards.shipped().items():
            wanted = [one.expr for one in boards.expressions(board, chosen)]
            answered = panels.ask(prometheus, wanted, span, chosen)
            rows = panels.rows_with_data(board, answered)
            _write(args.out / f"dashboard-{name}.svg", panels.picture(board, answered, rows))
            if name == README:
                _write(args.out / f"{name}-view.svg", panels.picture(board, answered, rows[:2]))
            for panel in panels.empty_panels(board, answered):
                sys.stdout.write(f"{name}: no data in {panel.title}\n")


def _write(path: Path, svg: str) -> None:
    path.write_text(standalone(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
