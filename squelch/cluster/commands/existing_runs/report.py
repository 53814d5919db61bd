"""`squelch report`: writes the paper's figures of runs as one HTML file, with the data beside it.

Every run writes its own report when it ends (`after_the_run`), in a process of its own: a report that fails, or takes
longer than `TIMEOUT_S`, is reported in one line and changes neither the run's files nor its exit code.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from squelch.cluster.commands.arguments import in_store, place_of
from squelch.kit.base.errors import UserError
from squelch.kit.base.package import variables
from squelch.kit.process.terminal import say
from squelch.kit.untrusted.files import require_output

TIMEOUT_S = 90.0
PAGE = "report.html"


def run(options: argparse.Namespace) -> int:
    """Writes the report, and prints where it is and which figures it lacks; or prints the tables."""
    if options.tables and options.out is not None:
        raise UserError("--tables prints and writes no page; leave --out out")
    page = page_of(options.runs, options.out)
    if not options.tables:
        require_output(page)
    from squelch.cluster.report.runs import find_runs, study_of

    study = study_of(find_runs([place_of(run) if in_store(run) else Path(run) for run in options.runs]))
    if not any(run.lines for run in study.runs):
        raise UserError(f"{', '.join(map(str, options.runs))}: no step has been recorded yet; report it after a step")
    if options.tables:
        from squelch.cluster.report.tables import lines

        say("\n".join(lines(study)))
        return 0
    from squelch.cluster.report.page import data_folder_of, make_report, write_report

    report = make_report(study, data_folder_of(page))
    write_report(page, report)
    say(f"{page}: {len(report.drawn)} figures; data in {page.parent / data_folder_of(page)}")
    for note in study.notes:
        say(note)
    for figure in report.missing:
        say(f"not drawn: {figure.heading}; needs {figure.needs}")
    return 0


def page_of(runs: Sequence[str], out: Path | None) -> Path:
    """The page's path. UserError unless it is that of an HTML file."""
    if out is None:
        return Path(runs[0]) / PAGE if len(runs) == 1 and not in_store(runs[0]) else Path(PAGE)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: give the path of an HTML file, e.g. --out report.html")
    return out


def after_the_run(run_dir: Path, say: Callable[[str], None], timeout_s: float = TIMEOUT_S) -> None:
    """Writes the report of a run that has ended. Reports any error in one line and raises none."""
    command = [sys.executable, "-P", "-m", "squelch.cluster.cli", "report", str(run_dir.resolve())]
    again = f"squelch report {run_dir}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=variables(), check=False)
    except subprocess.TimeoutExpired:
        say(f"no report: it was not ready after {timeout_s:g} s; write it with {again}")
    except OSError as error:
        say(f"no report: {error}; write it with {again}")
    else:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        say(f"report: {run_dir / PAGE}" if done.returncode == 0 else f"no report: {reason}; write it with {again}")
