"""`squelch check`: prints what is wrong with a run, or with what other trainers' files show, for people and for CI.

Findings follow a run's steps; checks say whether its files are what they seem. A fault counts as a critical finding.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.cluster.commands.arguments import in_store, place_of
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.listing import is_run
from squelch.kit.base.errors import UserError, as_user_error
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.result import Result
from squelch.kit.checks.words import as_json, fault_lines, short_lines
from squelch.kit.findings.finder import Finding, Findings
from squelch.kit.findings.view import Example
from squelch.kit.findings.words import paragraph, plain
from squelch.kit.process.terminal import say, say_json
from squelch.kit.untrusted.files import is_file

if TYPE_CHECKING:
    from squelch.cluster.inspector.texts import Pieces

CRITICAL_FOUND = 1
Found = tuple[list[tuple[Finding, str]], list[str], list[Result]]
"""Findings with their commands, notes, and the results of checks."""


def run(options: argparse.Namespace) -> int:
    """Prints the findings and the results; returns 1 if a finding is critical or a result is a fault."""
    ignored = [name for name in options.ignore if name not in checks()]
    with as_user_error(about="--ignore"):
        Findings(ignored)
    of_run = in_store(options.place) or is_run(Path(options.place))
    if of_run and options.format is not None:
        raise UserError(f"--format is for files of other trainers, and {options.place} is a run of Squelch; drop it")
    found, notes, results = _of_run(options, ignored) if of_run else _of_files(options, ignored)
    results = [one for one in results if one.name not in options.ignore]
    faults = [one for one in results if one.verdict == "fault"]
    if options.json:
        told = {"findings": [plain(*one) for one in found], "checks": [as_json(one) for one in results]}
        say_json({"place": options.place, **told, "notes": notes}, indent=2)
    else:
        lines = [line for fault in faults for line in (*fault_lines(fault), "")]
        lines += [line for one in found for line in (*paragraph(*one), "")]
        others = short_lines(results)
        head = f"{options.place}: {_counts(found, results)}"
        say("\n".join([head, "", *lines, *others, *([""] if others else []), *notes]).rstrip())
    return CRITICAL_FOUND if faults or any(one.severity == "critical" for one, _ in found) else 0


def _counts(found: Sequence[tuple[Finding, str]], results: Sequence[Result]) -> str:
    """How many findings there are, and how the checks ended: the first line, which must not sound well if it is not."""
    critical = sum(one.severity == "critical" for one, _ in found)
    counts = _number(len(found), "finding") + (f", {critical} critical" if critical else "")
    ends = Counter(one.verdict for one in results)
    checked = f"{_number(ends['fault'], 'fault')}, {ends['sound']} sound, {ends['unknown']} unknown"
    return f"{counts}; {_number(len(results), 'check')}: {checked}" if results else counts


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _of_run(options: argparse.Namespace, ignored: list[str]) -> Found:
    """The findings that hold at the run's last record, with their commands, and the checks of its archive."""
    from squelch.cluster.runs.findings import replayed

    folder = RunFolder(place_of(options.place))
    results, notes = _checked_archive(options)
    found = folder.findings()
    if found is not None:
        kept = [(_with_texts(folder, one), command) for one, command in found if one.name not in ignored]
        return kept, notes, results
    lines = folder.metrics()
    if not lines:
        raise UserError(f"{options.place}: no step has been recorded yet; check it after a step")
    note = "This run is of a release without findings: they are found again from its metrics, without examples."
    return [(one, "") for one in replayed(lines, ignored).open], [note, *notes], results


def _checked_archive(options: argparse.Namespace) -> tuple[list[Result], list[str]]:
    """The checks of a run's groups, with its own tokenizer; none of a run in a store, or before its first step."""
    from squelch.kit.checks.run import checked

    groups = Path(options.place) / "groups"
    if in_store(options.place):
        return [], ["Its rows are not checked, because the run lies in a store: copy it to a folder and check that."]
    if not any(groups.glob("**/step*.parquet")):
        return [], []
    own = groups.parent if is_file(groups.parent / "tokenizer.json") else None
    result = checked(groups, base=options.base or own, name="squelch", **_given(options))
    return list(result.results), list(result.notes)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What the checks of a run and of files take alike."""
    names = ("checkpoints", "data", "tokens")
    return {"claims": options.claim, **{name: getattr(options, name) for name in names}}


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


def _of_files(options: argparse.Namespace, ignored: list[str]) -> Found:
    """Those that hold at the last step of the files, and the checks of these."""
    from squelch.kit.checks.run import checked
    from squelch.kit.readers.step_views import StepViews

    steps = StepViews()
    result = checked(Path(options.place), base=options.base, name=options.format, views=steps, **_given(options))
    views = steps.views()
    findings = Findings(ignored, steps=len(views))
    for view in views:
        findings.step(view)
    return [(one, "") for one in findings.open], list(result.notes), list(result.results)
