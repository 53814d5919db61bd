"""The report of `squelch filter` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squelch.kit.process.terminal import aligned, known


def filter_table(report: Mapping[str, Any]) -> str:
    """The report as text: the summary, then one line per step or group."""
    head = [
        ("filter", report["filter"]),
        ("kept groups", f"{len(report['kept'])} of {report['num_groups']} ({report['kept_fraction']:.1%})"),
        ("kept mass", "no reward variance" if report["kept_mass"] is None else f"{report['kept_mass']:.1%}"),
        ("zero scores", str(report["num_zero"])),
        *([("nothing is kept", report["rejection"])] if report["rejection"] else []),
        *_kind_lines(report),
    ]
    body = _step_lines(report) if "steps" in report else _group_lines(report)
    return "\n".join([*aligned(head), "", *body])


def _kind_lines(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The coverage of kinds; the kinds of which no group was kept are named, SHOWN_KINDS at most."""
    from squelch.kit.filter.coverage import SHOWN_KINDS

    if "kinds" not in report:
        return []
    effective, starved = report["effective_kinds"], [k for k, found in report["kinds"].items() if not found["kept"]]
    of_kept = f"{effective['kept']:.1f} among the kept ones" if "kept" in effective else "none among the kept ones"
    lines = [("kinds of tasks", f"{len(report['kinds'])}; effectively {effective['groups']:.1f}, {of_kept}")]
    if starved:
        more = f" and {len(starved) - SHOWN_KINDS} more" if len(starved) > SHOWN_KINDS else ""
        lines.append(("kinds not kept", ", ".join(starved[:SHOWN_KINDS]) + more))
    return lines


def _step_lines(report: Mapping[str, Any]) -> list[str]:
    rows = [("step", "kept", "mass", "zero", "why nothing is kept")]
    for step in report["steps"]:
        mass = known(step["kept_mass"])
        kept = f"{len(step['kept'])}/{step['num_groups']}"
        rows.append((str(step["step"]), kept, mass, str(step["num_zero"]), step["rejection"]))
    return aligned(rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows])


def _group_lines(report: Mapping[str, Any]) -> list[str]:
    reasons = {row["index"]: (row["decision"], row["reason"]) for row in report["rejected"]}
    rows = [("group", "score", "decision", "reason")]
    for index, value in enumerate(report["statistic"]):
        rows.append((str(index), known(value, ".6g"), *reasons.get(index, ("kept", ""))))
    return aligned(rows)
