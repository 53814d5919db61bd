"""The rows of a file as the samples that are scored under checkpoints: which weights the run claims of each, and what
is recorded of its tokens. Pure; `weights_results` loads torch once it scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from squelch.kit.base.errors import UserError
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.fed_tokens import numbers_of
from squelch.kit.checks.result import Result
from squelch.kit.checks.weights import check_weights
from squelch.kit.checks.weights_data import Draw, Sample, WeightClaims
from squelch.kit.readers.format_rows import Row
from squelch.kit.readers.formats import Format
from squelch.kit.readers.weights import WeightsRule
from squelch.kit.untrusted.files import is_file

OWN = WeightsRule("step-{}", -1)
"""A run of Squelch samples step N from the checkpoint of step N - 1, whether or not that step had an update."""
VERSIONED = ("verifiers",)
"""Formats that number the recorded versions of weights as their checkpoints."""


def rule_of(found: Format | None, path: Path) -> WeightsRule | None:
    """Which checkpoint sampled a step; None if nothing says so."""
    if found is None:
        return None
    return OWN if found.name == "squelch" else found.rule_for(path)


def sample_of(row: Row, where: str, found: Format, rule: WeightsRule, staleness: int) -> Sample | None:
    """The row as a sample; None unless it has ids. `staleness`: steps by which its weights may be older."""
    prompt, said, step, span = (row.get(key) for key in ("prompt_ids", "completion_ids", "step", "versions"))
    if not isinstance(prompt, list) or not isinstance(said, list) or not prompt or not said:
        return None
    recorded = found.name in VERSIONED and isinstance(span, list) and None not in span
    claimed = tuple(span) if recorded else None if step is None else (rule.sampled_by(step),) * 2
    drawn = numbers_of(row.get("logprobs"))
    return Sample(
        where,
        step,
        str(row.get("rollout") or where),
        np.asarray(prompt),
        np.asarray(said),
        claimed=None if claimed is None else (claimed[0] - staleness, claimed[1]),
        recorded=recorded,
        engine=drawn if drawn is not None and len(drawn) == len(said) else None,
    )


def draw_of(checkpoints: Path | None, rule: WeightsRule | None, tokens: int | None, seed: int) -> Draw | None:
    """The draw of the rows to be scored; None if there is nothing to score them with. UserError if no checkpoint is
    where the user says."""
    if checkpoints is None or rule is None:
        return None
    saved = rule.checkpoints(checkpoints)
    if not saved:
        raise UserError(f"--checkpoints {checkpoints}: no folder in it is named {rule.folder}, as this trainer's are")
    return Draw(saved, seed=seed) if tokens is None else Draw(saved, tokens, seed)


def weights_results(
    draw: Draw | None, checkpoints: Path | None, base: Path | None, rule: WeightsRule | None, claims: Claims
) -> list[Result]:
    """The checks of weights."""
    cuts = None if claims.top_p is None or claims.top_p == 1.0 else True
    said = WeightClaims(claims.temperature, cuts)
    if draw is None or rule is None:
        needs = "" if checkpoints is None else "files of a trainer whose numbering of checkpoints is known"
        return check_weights(None, said, needs)
    samples: Sequence[Sample] = draw.samples()
    if not samples:
        return check_weights(None, said, "rows as token ids: text is not scored")
    from squelch.kit.checks.scored import candidates_in, score

    initial = base if base is not None and is_file(base / "config.json") else None
    candidates = candidates_in(checkpoints, rule, initial)
    return check_weights(score(samples, candidates, claims.temperature, base=initial), said)
