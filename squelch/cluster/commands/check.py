"""`squelch check`: prints what is wrong with a run, or with what other trainers' files show, for people and for CI."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.commands.arguments import in_store, named, place_of
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.listing import is_run
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.commands.arguments import add_format
from squelch.kit.findings.finder import Finding, Findings
from squelch.kit.findings.view import Example
from squelch.kit.findings.words import paragraph, plain
from squelch.kit.process.terminal import say, say_json

if TYPE_CHECKING:
    from squelch.cluster.inspector.texts import Pieces

CRITICAL_FOUND = 1
DESCRIPTION = """\
Says what is wrong with a run, with evidence, usual causes and what to change (docs/reference/findings.md). Of other
trainers' files, or a folder of them, it follows all steps; with few of them, thresholds need fewer. It exits with 1 if
a finding is critical."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = DESCRIPTION
    help_text = "a run's name, folder or place in a store; or a file or folder that another trainer wrote"
    parser.add_argument("place", metavar="RUN_OR_FILES", type=named, help=help_text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help="leave a finding out")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if one is critical."""
    with as_user_error(about="--ignore"):
        Findings(options.ignore)
    of_run = in_store(options.place) or is_run(Path(options.place))
    found, notes = _of_run(options) if of_run else _of_files(options)
    if options.json:
        say_json({"place": options.place, "findings": [plain(*one) for one in found], "notes": notes}, indent=2)
    else:
        lines = [line for one in found for line in (*paragraph(*one), "")]
        count = f"{len(found)} finding{'s' if len(found) != 1 else ''}"
        say("\n".join([f"{options.place}: {count}", "", *lines, *notes]).rstrip())
    return CRITICAL_FOUND if any(one.severity == "critical" for one, _ in found) else 0


def _of_run(options: argparse.Namespace) -> tuple[list[tuple[Finding, str]], list[str]]:
    """The findings that hold at the run's last record, with their commands."""
    from squelch.cluster.runs.findings import replayed

    folder = RunFolder(place_of(options.place))
    found = folder.findings()
    if found is not None:
        return [(_with_texts(folder, one), command) for one, command in found if one.name not in options.ignore], []
    lines = folder.metrics()
    if not lines:
        raise UserError(f"{options.place}: no step has been recorded yet; check it after a step")
    note = "This run is of a release without findings: they are found again from its metrics, without examples."
    return [(one, "") for one in replayed(lines, options.ignore).open], [note]


def _with_texts(folder: RunFolder, found: Finding) -> Finding:
    """The finding with the first turns that it shows as text, if its step is archived."""
    if not found.entry.examples.startswith("texts/"):
        return found
    from squelch.cluster.inspector.texts import Pieces

    with suppress(UserError):
        pieces = Pieces(folder.tokenizer(), folder.store.where())
        return replace(found, examples=tuple(_with_text(folder, found.step, one, pieces) for one in found.examples))
    return found


def _with_text(folder: RunFolder, step: int, example: Example, pieces: Pieces) -> Example:
    group, _, index = example.row.rpartition(" ")
    rows = [row for row in folder.group(step, group).to_pylist() if str(row["trajectory"]) == index and row["turns"]]
    if not rows:
        return example
    turn = rows[0]["turns"][0]
    return Example(example.row, pieces.text(rows[0]["token_ids"][turn["sample_start"] : turn["sample_end"]]))


def _of_files(options: argparse.Namespace) -> tuple[list[tuple[Finding, str]], list[str]]:
    """Those that hold at the last step of the files."""
    from squelch.kit.readers.step_views import step_views

    views, notes = step_views(Path(options.place), options.format)
    findings = Findings(options.ignore, steps=len(views))
    for view in views:
        findings.step(view)
    return [(one, "") for one in findings.open], notes
