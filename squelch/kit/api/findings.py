"""The findings of one step's samples that were scored (`kit.findings`)."""

from __future__ import annotations

from squelch.kit.api.monitor import link_metrics, step_metrics
from squelch.kit.api.samples import Reasonings
from squelch.kit.api.scoring import ScoreResult
from squelch.kit.findings.finder import Finding, Findings
from squelch.kit.findings.view import SHOWN, StepView, TextView


def texts_of(samples: Reasonings) -> list[TextView]:
    """The reasonings of a step."""
    rows = zip(samples.rows, samples.source, samples.ids, samples.texts, strict=True)
    return [TextView.of(f"row {row}", int(prompt), ids.tolist(), text[:SHOWN]) for row, prompt, ids, text in rows]


def findings_of(result: ScoreResult, half_width: float) -> list[Finding]:
    """What is wrong with one step's samples. `half_width`: as of `squelch.Monitor`."""
    found = step_metrics(result.samples, result, half_width)
    metrics = {f"first_turn/{key}": value for key, value in found.items()} | link_metrics(result.answers)
    metrics |= {f"completion/{key}": value for key, value in (result.completion or {}).items()}
    findings = Findings(steps=1)
    findings.step(StepView(0, metrics, None, texts_of(result.samples)))
    return findings.open
