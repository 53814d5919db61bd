"""`squelch trace`: writes the spans of a run's actors as a trace for Perfetto."""

from __future__ import annotations

import argparse
from pathlib import Path

from squelch.cluster.commands.arguments import run_folder
from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.process.terminal import say
from squelch.kit.untrusted.memory import memory_of_at_most

NAME = "trace.json.gz"


def run(options: argparse.Namespace) -> int:
    """Writes the trace."""
    with bad_files_are_the_users(), memory_of_at_most(str(options.run_dir)):
        path, count = trace(run_folder(options.run_dir), options.out)
    say(f"{path}: {count} events; open it in https://ui.perfetto.dev")
    return 0


def trace(run_dir: Path, out: Path | None = None) -> tuple[Path, int]:
    """Writes the trace of a run; returns the file and the number of its events. UserError if the run has no span."""
    from squelch.cluster.runs.shapes import checked_event
    from squelch.cluster.runs.timing.perfetto import trace_events, write_trace
    from squelch.kit.archive.store import writing
    from squelch.kit.base.disk import whole_file

    folder, path = RunFolder(run_dir).require(), out or run_dir / NAME
    with bad_files_are_the_users():
        spans = [checked_event(span, str(run_dir / "events.jsonl")) for span in folder.events()]
    if not spans:
        raise UserError(f"{run_dir}/events.jsonl holds no span yet: no actor has worked in this run")
    with bad_files_are_the_users(), writing(path), whole_file(path) as file:
        return path, write_trace(trace_events(folder.name, spans, folder.metrics()), file, path.suffix == ".gz")
