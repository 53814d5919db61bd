"""The summary of a run: its success, its time by part, and the check of its ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squelch.cluster.config import RunConfig
from squelch.cluster.control.ledger import Ledger
from squelch.cluster.runs import driver
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.cluster.runs.gain import parts_of, success_interval, success_of
from squelch.cluster.runs.savings import filter_savings, savings_line
from squelch.cluster.runs.status import last_probe, last_scorer_step
from squelch.cluster.runs.status_text import hard_words, link_words, probe_words
from squelch.envs.mixture import Mixture
from squelch.kit.archive.reader import read_groups, read_metrics
from squelch.kit.archive.version import VERSION
from squelch.kit.base.disk import write_whole
from squelch.kit.base.package import code_version, commit
from squelch.kit.process.terminal import known
from squelch.kit.scoring.metrics import OUTCOMES

PARTS = ("rollout", "filter", "train", "publish", "score", "validation", "probe", "archive", "checkpoint", "step")


@dataclass(frozen=True)
class Outcome:
    """The loop's metrics at the end of a run; the rest of the summary is read from the run's folder."""

    ending: Ending | None
    """The reason why the run ended before its last step; None if it reached that step."""
    steps: int
    """Completed training steps."""
    optimizer_steps: int
    policy_version: int
    training_seconds: float
    """Wall seconds of the loop, over all processes of the run."""
    totals: Mapping[str, float]
    """Sums over the run, by flat key."""
    last: Mapping[str, float]
    """The newest value of every metric, by flat key."""
    carried: Mapping[str, float]
    """Metrics of work after the last step's record, e.g. of the last checkpoint."""
    first_validation: Mapping[str, Any] | None
    """The step of the first validation, and the success of each task in it."""
    best: tuple[float, int]
    """Best validation success and its step."""
    ledger: Ledger
    warnings: Sequence[str] = ()
    """What the run's watchers warn of at its end."""


def summarise_run(config: RunConfig, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
    """The content of `summary.json`."""
    lines = read_metrics(config.run_dir)
    metrics = [line for line in lines if line["step"] > 0]
    totals, ending, success = outcome.totals, outcome.ending, _success(config.mixture, outcome, metrics)
    return {
        "schema": VERSION,
        "run": config.name,
        "version": code_version(),
        "commit": commit(),
        "driver": driver.name(),
        "finished": outcome.steps >= config.loop.steps and not (ending and ending.cause is EndCause.FAILED),
        "stopped": ending.text if ending else None,
        "end_cause": ending.cause if ending else None,
        "environment": config.mixture.name,
        "algorithm": {"name": config.learner.algorithm, "differences": config.algorithm_differences},
        "filter": config.filter.model_dump(mode="json"),
        "steps": outcome.steps,
        "optimizer_steps": outcome.optimizer_steps,
        "policy_version": outcome.policy_version,
        "wall_seconds": wall_seconds,
        "training_seconds": outcome.training_seconds,
        "seconds": {part: float(sum(_values([*lines, outcome.carried], f"seconds/{part}"))) for part in PARTS},
        "seconds_per_step_median": _median(metrics, "seconds/step"),
        "tokens_sampled": totals.get("tokens/sampled", 0.0),
        "tokens_trained": totals.get("tokens/trained", 0.0),
        "tokens_per_second": totals.get("tokens/sampled", 0.0) / max(totals.get("seconds/step", 0.0), 1e-9),
        "kept_mass_mean": _mean(metrics, "kept_mass"),
        "kept_groups_mean": _mean(metrics, "kept_groups"),
        "filter_savings": filter_savings(metrics, success.get("gain", {}).get("mean")),
        "success": success,
        "reasoning": _reasoning(metrics),
        "probe": last_probe(metrics),
        "scorer": _scorer_steps(metrics),
        "warnings": list(outcome.warnings),
        "ledger": _ledger(config.run_dir, outcome.ledger),
    }


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Writes the summary completely, or leaves an existing file unchanged."""
    write_whole(path, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The last lines that a run prints."""
    success, reasoning, ledger = summary["success"], summary["reasoning"], summary["ledger"]
    lines = [f"{summary['steps']} steps, {summary['optimizer_steps']} optimizer steps, {summary['wall_seconds']:.0f} s"]
    for when in ("before", "after"):
        if success.get(when):
            s = success[when]
            lines.append(f"success {when:6s} {s['success']:.3f}  [{s['low']:.3f}, {s['high']:.3f}]  step {s['step']}")
    if success.get("gain"):
        gain = success["gain"]
        bounds = f"  [{gain['low']:+.3f}, {gain['high']:+.3f}]" if gain["low"] is not None else ""
        lines.append(f"gain           {gain['mean']:+.3f}{bounds}  same tasks, 95%")
    if reasoning:
        lines.append(
            f"retrieval      {reasoning['retrieval_accuracy']:.3f} against chance {reasoning['retrieval_chance']:.3f}, "
            f"H(Z|X) {reasoning['conditional_entropy']:.2f} nats per token"
        )
    lines += _probe_lines(summary["probe"])
    seconds = "  ".join(f"{part} {value:.1f}" for part, value in summary["seconds"].items() if value)
    lines.append(f"seconds        {seconds}")
    of_steps = ("kept_groups_mean", "kept_mass_mean", "seconds_per_step_median")
    groups, mass, seconds = (known(summary[name], ".2f") for name in of_steps)
    text = f"tokens/s {summary['tokens_per_second']:.0f}   kept groups {groups} kept mass {mass}"
    lines.append(f"{text}   step {seconds} s (median)")
    if saved := savings_line(summary.get("filter_savings", {})):
        lines.append(f"filter         {saved}")
    counts = "  ".join(f"{state} {n}" for state, n in ledger["counts"].items() if n)
    lines.append(f"ledger         {counts}  ({'balanced' if ledger['balanced'] else 'NOT BALANCED'})")
    return [*lines, *(f"WARNING        {text}" for text in summary.get("warnings", ()))]


def _success(mixture: Mixture, outcome: Outcome, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Success before and after. The last validation may be of an earlier process of the run, but it is of the same
    tasks as the first: after a change of them there is a new first one."""
    first = outcome.first_validation
    if first is None:
        return {}
    gains = (line for line in (outcome.last, *reversed(metrics)) if line.get("gain") is not None)
    last = next((line for line in gains if line["validation/step"] > first["step"]), {})
    solved = np.array(first["solved"])
    parts = parts_of(mixture, len(solved) // len(mixture.entries))
    low, high = success_interval(solved, parts)
    before = {"step": first["step"], "success": success_of(solved, parts), "low": low, "high": high}
    result: dict[str, Any] = {"before": before, "best": outcome.best[0], "best_step": outcome.best[1]}
    if "gain" in last:
        result["after"] = {
            "step": int(last["validation/step"]),
            "success": last["validation/success"],
            "low": last["validation/success_low"],
            "high": last["validation/success_high"],
        }
        result["gain"] = {"mean": last["gain"], "low": _known(last["gain_low"]), "high": _known(last["gain_high"])}
    return result


def _known(bound: float | None) -> float | None:
    """A bound, None if one task alone gives none."""
    return bound if bound is not None and math.isfinite(bound) else None


def _scorer_steps(metrics: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Number of scorer steps of the whole run by outcome, of those outcomes that happened."""
    counts = {name: sum(int(line.get(f"scorer/{name}") or 0) for line in metrics) for name in OUTCOMES}
    return {name: count for name, count in counts.items() if count}


def _probe_lines(probe: dict[str, float | None]) -> list[str]:
    if not probe:
        return []
    linked = [f"answer         {link_words(probe)}"] if probe["link_dependence"] is not None else []
    hard = [f"variations     {hard_words(probe)}"] if probe.get("hard_mi") is not None else []
    return [f"probe MI       {probe_words(probe)}", *hard, *linked]


def _reasoning(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """The first-turn metrics of the last scored step; empty if no step was scored, or if they were unknown there."""
    last = last_scorer_step(metrics)
    names = ("retrieval_accuracy", "retrieval_chance", "mi_est", "conditional_entropy", "marginal_entropy")
    known = last.get("first_turn/retrieval_accuracy") is not None
    return {name: last[f"first_turn/{name}"] for name in names} if known else {}


def _ledger(run_dir: Path, ledger: Ledger) -> dict[str, Any]:
    """The terms of the ledger's equation, and whether they agree with the archive's rows."""
    counts = ledger.counts()
    ended = counts["trained"] + counts["dropped"] + counts["spared"] + counts["failed"]
    archived = len(read_groups(run_dir, columns=["group_id"]).column("group_id").unique()) if ended else 0
    return {
        "counts": counts,
        "dropped": ledger.reasons("dropped"),
        "spared": ledger.reasons("spared"),
        "failed": ledger.reasons("failed"),
        "archived_groups": archived,
        "balanced": ledger.balanced() and archived == ended,
    }


def _values(metrics: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [m[key] for m in metrics if m.get(key) is not None]


def _mean(metrics: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _values(metrics, key)
    return float(np.mean(values)) if values else None


def _median(metrics: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _values(metrics, key)
    return float(np.median(values)) if values else None
