"""The answers of `squelch score`, and MI by modality, as JSON and as text (`squelch.kit.api.answers`,
`squelch.kit.api.pictures`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squelch.kit.api.answers import Answers
from squelch.kit.commands.mi import disagreement
from squelch.kit.diagnosis.metrics import PARTS, POSITIONS
from squelch.kit.process.terminal import aligned, known

if TYPE_CHECKING:
    from squelch.kit.api.scoring import ScoreResult

NAMES = {
    "dependence": ("D", "nats per answer; 0 if the answer ignores its reasoning"),
    "dependence_share": ("D / surprise", "D without the answer's length"),
    "information": ("I(A;Z|X), lower form", "within a prompt"),
    "information_upper": ("I(A;Z|X), upper form", "the truth lies between the two in expectation"),
    "past_reasoning": ("X to A past Z", "0 if the reasoning holds all that the answer takes from the prompt"),
}
"""By link: its name and its meaning."""
MODALITY = {
    "picture": ("D_V", "nats per reasoning; what it takes from the pictures, given the text"),
    "text": ("D_T", "what it takes from the text, given the pictures"),
}
"""By part of the prompt, as `NAMES`."""
COMPLETION = {
    **{
        f"dependence@{q}": (f"of its first {q}%", "nats; of an answer at the end only the last part") for q in POSITIONS
    },
    "near": ("own prompt among near ones", "share in which it is the likeliest"),
    "near_chance": ("chance", ""),
    "near_new": ("the same without repeats", "by what repeats no three tokens of the prompt"),
    "repeated": ("repeats", "share of the tokens that repeat the prompt"),
    "one_text": ("one text", "share of the prompts with the most widespread completion"),
}
"""Of whole completions, as `NAMES`."""


def answers_json(answers: Answers | None) -> dict[str, Any] | None:
    """The links for `--json`, null for unknown metrics; None without links."""
    if answers is None or answers.links is None:
        return None
    return with_nulls(answers.links.metrics())


def with_nulls(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics for `--json`, null for unknown ones."""
    return {key: None if math.isnan(value) else value for key, value in metrics.items()}


def regime_text(found: ScoreResult) -> str:
    """The regime as a line of text, or why none is named."""
    if not found.regime:
        return f"no regime: {found.regime_reason} (docs/guide/reasoning.md)"
    return f"regime without a judge: {found.regime}: {found.regime_reason} (docs/guide/reasoning.md)"


def completion_text(metrics: Mapping[str, float]) -> list[str]:
    """The dependence of whole completions on their prompts as lines of text."""
    return [
        f"completions used: {metrics['num_samples']:.0f} of {metrics['num_prompts']:.0f} distinct prompts",
        *_table(metrics, {"dependence": ("prompt dependence", f"nats, at most {known(metrics['ceiling'], '.4f')}")}),
        *aligned([(name, known(metrics[key], ".4f"), meaning) for key, (name, meaning) in COMPLETION.items()]),
    ]


def answers_text(answers: Answers) -> list[str]:
    """The links as lines of text."""
    counts = sorted((+answers.excluded).items())
    left_out = "; ".join(f"{reason.replace('_', ' ')}: {count}" for reason, count in counts)
    lines = [f"answers left out: {left_out}"] if left_out else []
    if answers.links is None:
        return ["answers are not linked: links need scored answers of 2 prompts", *lines]
    metrics = answers.links.metrics()
    return [f"answers: {metrics['answers']:.0f}", *lines, *_table(metrics, NAMES)]


def modality_text(metrics: Mapping[str, float]) -> list[str]:
    """MI by modality as lines of text."""
    if all(math.isnan(metrics[part]) for part in PARTS):
        return ["by modality: not known; that needs 4 prompts with pictures of the same sizes and other parts"]
    blank = known(metrics["blank"], ".4f")
    return ["by modality", *_table(metrics, MODALITY), f"loss under pictures of one colour: {blank} nats"]


def _table(metrics: Mapping[str, float], names: Mapping[str, tuple[str, str]]) -> list[str]:
    """The named metrics with their intervals and p-values."""
    rows, tested = [], []
    for key, (name, meaning) in names.items():
        low, high = metrics[f"{key}_low"], metrics[f"{key}_high"]
        interval = "" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
        p_value = metrics.get(f"{key}_p_value", math.nan)
        against = "" if math.isnan(p_value) else f"p = {p_value:.3f}"
        rows.append((name, known(metrics[key], ".4f"), interval, meaning, against))
        tested.append((p_value, low, high, 0.0))
    return [*aligned(rows), *disagreement(tested)]
