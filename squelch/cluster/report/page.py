"""The report as files: one self-contained HTML page, and a folder of CSV files with the data of its figures.

Invariants:

- The page loads nothing and runs nothing: its content policy forbids both. All text is escaped.
- The files are written whole, or not at all; equal runs give equal files.
- Files of figures that the runs no longer fill are removed from the data folder; other files there stay.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squelch.cluster.plots.style import dark_css
from squelch.cluster.report.figures import FIGURES, ReportFigure
from squelch.cluster.report.points import Row, last_value, with_interval
from squelch.cluster.report.runs import Study, differing
from squelch.cluster.setting_keys import labels_of
from squelch.cluster.sweep.table import text
from squelch.kit.base.disk import write_whole
from squelch.kit.findings.words import evidence_text
from squelch.kit.process.terminal import one_line
from squelch.kit.untrusted.files import WrongKind, shortened

LONGEST_CELL = 160
AT_THE_END = {
    "validation/success": "success",
    "first_turn/retrieval_accuracy": "retrieval",
    "first_turn/mi_est": "MI-Est",
    "probe/hard/mi": "MI, near variations",
    "first_turn/conditional_entropy": "H(Z|X)",
    "kept_fraction": "kept",
}
"""Figures of the table of arms, at the end of each run, and their columns."""


@dataclass(frozen=True)
class Report:
    """The files of a report. `data`: the text of each CSV file by its name; `drawn`, `missing`: figures."""

    html: str
    data: dict[str, str]
    drawn: tuple[ReportFigure, ...]
    missing: tuple[ReportFigure, ...]


@dataclass(frozen=True)
class _Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def make_report(study: Study, data_folder: str) -> Report:
    """The report of these runs.

    Args:
        data_folder: name of the folder beside the page to which its links to data lead.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    found = {figure: figure.rows(study) for figure in FIGURES}
    drawn = tuple(figure for figure, rows in found.items() if rows)
    missing = tuple(figure for figure, rows in found.items() if not rows)
    svgs = {figure: figure.svg(found[figure], study) for figure in drawn}
    pages = Environment(
        loader=PackageLoader("squelch.cluster.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    arms = arm_rows(study)
    html = pages.get_template("report.html.j2").render(
        title=title_of(study),
        subtitle=subtitle_of(study),
        data=data_folder,
        figure_css=Markup(dark_css()),
        findings=found_in(study),
        arms=_arms_table(arms),
        notes=study.notes,
        figures=[_shown(figure, Markup(svgs[figure])) for figure in drawn],
        settings=_settings_table(study),
        missing=missing,
    )
    data = {f"{figure.name}.csv": csv_text(found[figure]) for figure in drawn}
    return Report(html + "\n", data | {"arms.csv": csv_text(arms)}, drawn, missing)


def found_in(study: Study) -> list[dict[str, Any]]:
    """What is wrong with each run that says so, the most severe first; an only run of an earlier release is judged by
    its metrics."""
    from squelch.cluster.runs.findings import replayed

    shown: list[dict[str, Any]] = []
    for run in study.runs:
        found = run.findings
        if found is None:
            found = [(one, "") for one in replayed(run.lines).open] if len(study.runs) == 1 else []
        for one, command in found:
            told = {"run": Path(run.folder).name if len(study.runs) > 1 else "", "finding": one, "command": command}
            shown.append({**told, "evidence": ", ".join(map(evidence_text, one.evidence))})
    return sorted(shown, key=lambda one: -one["finding"].rank)


def _shown(figure: ReportFigure, svg: str) -> dict[str, str]:
    return {
        "name": figure.name,
        "title": figure.title,
        "heading": figure.heading,
        "reading": figure.reading,
        "svg": svg,
    }


def write_report(page: Path, report: Report) -> None:
    """Writes the page, and its data into the folder that its links name (`data_folder_of`)."""
    folder = page.parent / data_folder_of(page)
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():  # of a stranger's run
        raise WrongKind(f"{folder} is a link, and nothing is written through one; remove it, or give --out FILE")
    for name, content in report.data.items():
        write_whole(folder / name, content)
    for figure in report.missing:
        (folder / f"{figure.name}.csv").unlink(missing_ok=True)
    write_whole(page, report.html)


def data_folder_of(page: Path) -> str:
    """Name of the folder beside a page that holds its data, e.g. `report-data`."""
    return f"{page.stem}-data"


def title_of(study: Study) -> str:
    """The page's title: the run's name, or what is compared."""
    runs = study.runs
    if len(runs) == 1:
        return f"Run {one_line(Path(runs[0].folder).name)}"
    return f"{len(runs)} runs of {', '.join(study.environments)}"


def subtitle_of(study: Study) -> str:
    """Number of arms, seeds and steps in one line."""
    seeds = {run.seed for run in study.runs}
    steps = sorted({run.steps for run in study.runs})
    lasting = f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
    return (
        f"{_count(len(study.arms), 'arm')}, {_count(len(study.runs), 'run')}, {_count(len(seeds), 'seed')}, {lasting}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def arm_rows(study: Study) -> list[Row]:
    """One row for each arm and figure of `AT_THE_END`: mean over seeds at each run's end, with its interval; of an arm
    that plays several environments also one for each of these."""
    rows = []
    for arm in study.arms:
        own: Row = {"arm": arm.label, "seeds": " ".join(str(run.seed) for run in arm.runs)}
        own["steps"] = min(run.steps for run in arm.runs)
        parts = {arm.environment: {key: key for key in AT_THE_END}}
        parts |= {f"{arm.environment}: {label}": _keys_of(label) for label in labels_of(arm.settings)}
        for environment, keys in parts.items():
            for figure, key in keys.items():
                found = with_interval([last_value(run, key) for run in arm.runs])
                values = {name: found[name] for name in ("mean", "low", "high")}
                rows.append({"environment": environment, **own, "figure": figure, **values})
    return rows


def _keys_of(label: str) -> dict[str, str]:
    """The key of each figure of `AT_THE_END` for one of several environments, where there is one."""
    own = {"validation/success": f"environment/validation/{label}", "kept_fraction": f"environment/kept/{label}"}
    return {figure: own.get(figure, f"environment/none/{label}") for figure in AT_THE_END}


def _arms_table(rows: Sequence[Row]) -> _Table:
    head = ("environment", "arm", "seeds", "steps", *AT_THE_END.values())
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        seeds = row["seeds"].split()
        named = f"{_count(len(seeds), 'seed')}: {', '.join(seeds)}"
        key = (row["environment"], row["arm"], named, str(row["steps"]))
        lines.setdefault(key, []).append(text(row))
    return _Table(head, [(*key, *cells) for key, cells in lines.items()])


def _settings_table(study: Study) -> _Table:
    several = len(study.environments) > 1
    names = [f"{arm.environment}: {arm.label}" if several else arm.label for arm in study.arms]
    rows = [[key, *map(_cell, values)] for key, values in differing(study.arms).items()]
    return _Table(["setting", *names], rows)


def _cell(value: Any) -> str:
    return shortened(one_line(value if isinstance(value, str) else json.dumps(value, default=str)), LONGEST_CELL)


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV, with a column for every key; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
