"""The findings of a run: the file `findings.json` with those that hold, written at each change.

A run of an earlier release has no such file; `replayed` finds its findings again from its metrics, without examples.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from squelch.kit.base.disk import write_whole
from squelch.kit.findings.catalogue import catalogue
from squelch.kit.findings.finder import Finding, Findings
from squelch.kit.findings.view import StepView
from squelch.kit.findings.words import plain
from squelch.kit.untrusted.files import Unreadable

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig

FILE = "findings.json"
FEWEST = 5
"""Fewest steps that a finding of a short run needs, unless its thresholds need fewer."""
_FINDINGS = TypeAdapter(list[Finding])


def check_command(run_dir: Path | str) -> str:
    """The command that prints all findings."""
    return shlex.join(["squelch", "check", str(run_dir)])


def write_findings(config: RunConfig, found: Sequence[Finding]) -> None:
    """Writes those that hold, with causes and remedies."""
    from squelch.cluster.runs.next_run import remedy

    config.run_dir.mkdir(parents=True, exist_ok=True)
    told = [plain(one, remedy(config, one)) for one in found]
    write_whole(config.run_dir / FILE, json.dumps({"findings": told}, indent=2) + "\n")


def read_findings(content: Mapping[str, Any], where: str) -> list[tuple[Finding, str]]:
    """(finding, command) of each in the file's content. Raises Unreadable for another shape; a finding of another
    release is left out."""
    try:
        raw = content["findings"]
        known = [one for one in raw if one["name"] in catalogue()]
        found = _FINDINGS.validate_python([{key: one.get(key) for key in _FIELDS} for one in known])
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise Unreadable(f"{where} holds no findings: {error}") from error
    return [(one, str(kept.get("command") or "")) for one, kept in zip(found, known, strict=True)]


_FIELDS = ("name", "severity", "since", "step", "says", "evidence", "examples")


def replayed(lines: Sequence[Mapping[str, Any]], ignore: Sequence[str] = ()) -> Findings:
    """The findings after the lines of `metrics.jsonl`; of a short run, thresholds need no more steps than it has."""
    found = Findings(ignore, steps=max(FEWEST, len({line["step"] for line in lines} - {0})))
    for line in lines:
        metrics = {key: value for key, value in line.items() if key not in ("step", "time")}
        found.step(StepView(line["step"], metrics))
    return found
