"""`squelch score --scorer`: what a model shows of reasonings that it did not sample (`squelch.kit.api.evidence`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import aligned, say, say_json

if TYPE_CHECKING:
    from squelch.kit.api.evidence import EvidenceResult
    from squelch.kit.api.samples import Reasonings
    from squelch.kit.diagnosis.evidence import Bound
    from squelch.kit.scoring.cross_scoring import CrossScorer

OF_THE_POLICY = {
    **{name: f"--{name}" for name in ("temperature", "compat", "force", "templates", "out")},
    **{"half_width": "--half-width", "links": "--no-links", "turns": "--turns all"},
}
"""Flags, by argument, that have no meaning with another model than the policy."""


def refuse_with_scorer(args: argparse.Namespace) -> None:
    """UserError for a flag that has no meaning with a scorer. `args.default`: the value of one that is not given."""
    given = next((name for name in OF_THE_POLICY if getattr(args, name) != args.default(name)), None)
    if given == "turns":
        raise UserError(
            "--turns all with --scorer: the prompt of a later turn holds what the same rollout wrote, so that the rows "
            "would not be independent; leave it out, and first turns are scored"
        )
    if given is not None:
        raise UserError(f"{OF_THE_POLICY[given]} is about the policy's own weights; leave it out with --scorer")


def say_evidence(engine: CrossScorer, found: Reasonings, notes: Sequence[str], args: argparse.Namespace) -> int:
    """Prints what the scorer shows; returns 0. `notes`: on the file."""
    from squelch.kit.api.evidence import evidenced

    result = evidenced(engine, found, args.seed)
    if args.json:
        facts = {"file": str(args.file), "scorer": str(args.scorer), "step": args.step}
        say_json({**facts, **evidence_json(result), "notes": [*result.notes, *notes]})
    else:
        head = f"{args.file} under {args.scorer}, which did not sample it"
        say("\n".join([head, *evidence_text(result, (*result.notes, *notes))]))
    return 0


def evidence_json(found: EvidenceResult) -> dict[str, Any]:
    """The output of `--json`; `bound` is null where it is unknown."""
    shown = found.evidence
    return {
        "num_prompts": shown.num_prompts,
        "num_samples": shown.num_samples,
        "excluded": shown.excluded,
        "turns": dict(+found.samples.turns),
        "retrieval_accuracy": shown.retrieval_accuracy,
        "retrieval_chance": shown.retrieval_chance,
        "null": {"retrieval_accuracy": asdict(shown.null)},
        "bound": None if shown.bound is None else _bound_json(shown.bound),
        "verdict": found.verdict,
        "questions": list(found.questions),
    }


def _bound_json(bound: Bound) -> dict[str, Any]:
    interval = [bound.interval.low, bound.interval.high]
    facts = {"ceiling": bound.ceiling, "scale": bound.scale, "prompts": len(bound.prompts)}
    return {"nats": bound.value, "interval_95": interval, **facts}


def evidence_text(found: EvidenceResult, notes: Sequence[str] = ()) -> list[str]:
    """The report as lines of text. `notes`: on the file and its samples."""
    from squelch.kit.diagnosis.evidence import DEPENDS

    shown, bound = found.evidence, found.evidence.bound
    null = f"null {shown.null.point_95:.4f}, p = {shown.null.p_value:.3f}"
    rows = [
        ("reasonings used", f"{shown.num_samples}", "", f"of {shown.num_prompts} distinct prompts", ""),
        *((f"left out: {reason}", str(count), "", "", "") for reason, count in shown.excluded.items()),
        ("retrieval accuracy", f"{shown.retrieval_accuracy:.4f}", "", f"chance {shown.retrieval_chance:.4f}", null),
    ]
    if bound is not None:
        interval = f"[{bound.interval.low:.4f}, {bound.interval.high:.4f}]"
        meaning = f"nats per reasoning, ceiling {bound.ceiling:.4f}"
        scale = f"on {len(bound.prompts)} prompts; scale {bound.scale:.4g}, of the others"
        rows.append(("MI, at least", f"{bound.value:.4f}", interval, meaning, scale))
    if found.verdict != DEPENDS:
        nothing = "which says nothing about the reasoning: another scorer, or more prompts, may show it"
        return [*aligned(rows), *notes, "", f"{found.verdict}, {nothing}"]
    asked = [f"- {question}" for question in found.questions]
    return [*aligned(rows), *notes, "", f"{found.verdict}, if the answer to each question is yes:", *asked]
