"""A finding as text: one line for a log, a paragraph for a reader, and the settings that its remedy changes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from squelch.kit.findings.finder import Change, Evidence, Finding
from squelch.kit.findings.view import SHOWN

ALARMS = ("dependence_falls", "probe_falls")
"""Findings that repeat an alarm, which other trainers' users are told by itself."""
Special = Mapping[str, Callable[[], Mapping[str, Any]]]
"""Changes of a run's own settings, by `KEY: VALUE` as the catalogue writes them, e.g. `filter: stricter`."""


def next_settings(
    alternatives: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], special: Special | None = None
) -> dict[str, Any]:
    """The changed settings of the first alternative that changes these settings; empty if none does.

    Args:
        settings: the present ones by dotted key.
    """
    for alternative in alternatives:
        found: dict[str, Any] = {}
        for key, wanted in alternative.items():
            if (own := (special or {}).get(f"{key}: {wanted}")) is not None:
                found |= own()
            elif (value := _changed(settings.get(key), wanted)) is not None:
                found[key] = value
        if found:
            return found
    return {}


def _changed(present: Any, wanted: Any) -> Any:
    """The value to set; None if nothing would change, or the factor of a setting that is unset or 0 is asked for."""
    if not (isinstance(wanted, str) and wanted[:1] == "x"):
        return None if present is None or present == wanted else wanted
    if not present or isinstance(present, bool) or not isinstance(present, int | float):
        return None
    value = present * float(wanted[1:])
    if isinstance(present, float):
        return float(f"{value:.6g}")
    return None if round(value) == present else round(value)


def headline(finding: Finding, command: str = "") -> str:
    """One line: severity, name, what is wrong, and what to do, with the command if there is one."""
    change = finding.entry.change
    remedy = f"{change[:1].upper()}{change[1:]}" + (f": {command}" if command else "")
    return f"{finding.severity.upper()} {finding.name}: {finding.says}. {remedy}"


def step_lines(changes: Sequence[Change], command: Callable[[Finding], str], more: str) -> list[str]:
    """The one line of a step's changes, none without a change: the first in full and how many others there are.

    Args:
        command: gives a finding's command.
        more: the command that shows the others.
    """
    if not changes:
        return []
    first, *others = changes
    found = first.finding
    ended = f"{found.name} ended; it held since step {found.since}"
    line = ended if first.kind == "ended" else headline(found, command(found))
    return [line + (f" (and {len(others)} more: {more})" if others else "")]


def paragraph(finding: Finding, command: str = "") -> list[str]:
    """The lines of a finding with its evidence, examples, causes and remedy."""
    entry = finding.entry
    since = f", since step {finding.since}" if finding.since else ""
    lines = [f"{finding.name} ({finding.severity}{since})", f"  {finding.says}."]
    if finding.evidence:
        lines.append(f"  evidence: {', '.join(map(evidence_text, finding.evidence))}")
    lines += [f"  example: {one.row}: {' '.join(one.text.split())[:SHOWN]}" for one in finding.examples]
    lines.append(f"  usual causes: {' '.join(entry.causes.split())}")
    lines.append(f"  what to do: {entry.change}")
    if command:
        lines.append(f"    {command}")
    basis = f"tried in {entry.tried}" if entry.tried else f"advice: {entry.source}"
    more = "" if basis.endswith(entry.page) else f"; {entry.page}"
    return [*lines, f"  {basis}{more}"]


def evidence_text(evidence: Evidence) -> str:
    """The metric with its interval."""
    return f"{evidence.key} {with_bounds(evidence.value, evidence.low, evidence.high)}"


def with_bounds(value: float, low: float | None, high: float | None) -> str:
    """The value, and its interval if it has one."""
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def trl_settings(finding: Finding, settings: Mapping[str, Any]) -> str:
    """The remedy as settings of TRL, such as `GRPOConfig(learning_rate=5e-07), now learning_rate=1e-06`; empty where no
    setting is one. `settings`: the present ones."""
    found = next_settings([finding.entry.trl], settings) if finding.entry.trl else {}
    given, now = (
        ", ".join(f"{key}={value!r}" for key, value in values.items())
        for values in (found, {key: settings[key] for key in found if key in settings})
    )
    return f"GRPOConfig({given})" + (f", now {now}" if now else "") if given else ""


def plain(finding: Finding, command: str = "") -> dict[str, Any]:
    """The finding as JSON, with its causes, remedy and pages."""
    entry = finding.entry
    told = {"causes": entry.causes, "change": entry.change, "command": command or None}
    return {**asdict(finding), **told, "tried": entry.tried or None, "source": entry.source or None, "page": entry.page}
